"""Scripts: how one dialogue comes about, turn by turn. Each is a generator: it asks the target for tokens and is sent them.

    chat         user turn (drawn) -> answer [-> user turn (drawn) -> answer]
    over text    prompt by rule -> answer
    own text     chat as above, or an article, then a prompt over its answer -> answer                   two dialogues
    translation  prompt by rule or over its own text -> answer [-> "translate back" -> answer]           one to three
    retrieval    questions about a few subjects -> answers; documents of these, a question -> answer, and so for each

Everything a script draws is keyed by (seed, number), so it does not matter what else runs or ran before.
"""

import hashlib
import random
from collections.abc import Container, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from draftwood.core.sampling.params import SamplingParams
from draftwood.train.data.exclude import Exclusion
from draftwood.train.data.folder import Line, Outcome
from draftwood.train.data.mix import (
    ASKED_SHARE,
    BACK_SHARE,
    FOREIGN_SHARE,
    MIX,
    OWN_SHARE,
    SUBJECTS,
    WRITTEN_SHARE,
    numbers,
)
from draftwood.train.data.prompts import CHAT, FOLLOWUP, OVER_TEXT, Prompt, Prompts, held_out
from draftwood.train.data.repeats import whole_sentences, without_loop, without_repeats
from draftwood.train.data.retrieval import Document, question_in, written
from draftwood.train.data.texts import language_of
from draftwood.train.data.turns import Turns, key_of

TURN_TOKENS = 160
GREEDY_SHARE, FOLLOW_SHARE = 0.7, 0.15
SHORTEST_OWN = {"summary": 250}  # letters of a text that others are made from; 80 for other kinds
SHORTEST = 2  # tokens of an answer, its end included
_APART = 4  # numbers of turns from one dialogue of a script to the next


@dataclass(frozen=True, slots=True)
class Ask:
    """What a script wants written next."""

    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Reply:
    tokens: list[int]
    ended: bool  # by the target itself, with an end-of-turn token


Script = Generator[Ask, Reply, Outcome]


@dataclass(slots=True)
class Plan:
    """One number before it starts."""

    number: int
    kind: str
    rng: random.Random
    prompt: Prompt | None = None  # of the first dialogue; None: the target writes its own user turn
    own: bool = False  # the first dialogue's answer is what a prompt of this kind is made over
    ids: list[int] = field(default_factory=list[int])


class Scripts:
    """What all scripts share. `seen` are keys of dialogues that are done; `longest`: tokens of a dialogue; `own`: how many
    of the prompts over texts are made over the target's own, where there are others."""

    def __init__(
        self,
        turns: Turns,
        prompts: Prompts,
        *,
        mix: Mapping[str, float] = MIX,
        own: float = OWN_SHARE,
        exclusion: Exclusion | None = None,
        seen: Container[str] = (),
        seed: int = 0,
        max_tokens: int = 256,
        longest: int = 2048,
    ) -> None:
        self.turns, self.prompts, self.seen, self.seed = turns, prompts, seen, seed
        self.exclusion = Exclusion() if exclusion is None else exclusion
        self.max_tokens, self.longest = max_tokens, longest
        self.own_share = own if prompts.has_prose else 1.0
        self.kinds, self.weights = zip(*numbers(mix, self.own_share).items(), strict=True)

    def plan(self, which: Sequence[int]) -> list[Plan]:
        """Kinds and prompts of these numbers; all prompts are tokenised together."""
        plans: list[Plan] = []
        for number in which:
            rng = random.Random(f"{self.seed}:{number}")
            plan = Plan(number, rng.choices(self.kinds, self.weights)[0], rng)
            if plan.kind != CHAT:
                self._begin(plan)
            plans.append(plan)
        made = [p for p in plans if p.prompt is not None]
        for plan, ids in zip(made, self.turns.first_of_many([p.prompt.turn for p in made if p.prompt]), strict=True):
            plan.ids = ids
        return plans

    def _begin(self, plan: Plan) -> None:
        """The first prompt, or that there is none by rule."""
        kind, rng = plan.kind, plan.rng
        if kind == "translation":
            which = rng.random()
            if which < FOREIGN_SHARE + WRITTEN_SHARE:
                make = self.prompts.into_english if which < FOREIGN_SHARE else self.prompts.in_language
                plan.prompt = make(rng)
                return
        plan.own = kind in OVER_TEXT and rng.random() < self.own_share
        if kind == "retrieval":
            asked = rng.random() < ASKED_SHARE
            plan.prompt = None if plan.own or asked else self.prompts.make(kind, rng)
        else:
            plan.prompt = self.prompts.first(kind, rng) if plan.own else self.prompts.make(kind, rng)

    def run(self, plan: Plan) -> Script:
        """From a plan to its dialogues."""
        made = _Made()
        if plan.kind == "retrieval" and plan.prompt is None:
            yield from self._retrieval(plan, made)
            return made.outcome()
        if plan.prompt is None:
            reply = yield self._ask_turn(plan, self.turns.header, 0)
            turn = self.turns.words(reply.tokens) if reply.ended else ""
            if not turn:
                return Outcome(dropped=("unended turn" if not reply.ended else "empty turn",))
            plan.prompt = Prompt(CHAT, turn, held_out(turn))
            plan.ids = self.turns.first(turn)
        prompt: Prompt | None = plan.prompt
        ids, turn, follow = plan.ids, 1, plan.kind == CHAT
        while prompt is not None:
            reply = yield from self._talk(plan, made, prompt, ids, turn, follow=follow)
            prompt = None if reply is None else self._next(plan, prompt, reply)
            ids, turn = self.turns.first(prompt.turn) if prompt is not None else [], turn + _APART
        return made.outcome()

    def _next(self, plan: Plan, prompt: Prompt, answer: Reply) -> Prompt | None:
        """A dialogue about the last one's answer, if there is one to be had."""
        if prompt.language:
            words = self.turns.words(answer.tokens) if answer.ended else ""
            back = (
                language_of(words) == prompt.language and plan.rng.random() < BACK_SHARE
            )  # small models answer in English
            return self.prompts.back(plan.rng, prompt, words) if back else None
        text = self._text(answer) if plan.own and prompt is plan.prompt else ""
        enough = len(text) >= SHORTEST_OWN.get(plan.kind, 80)
        return self.prompts.make(plan.kind, plan.rng, text, prompt.held) if enough else None

    def _retrieval(self, plan: Plan, made: "_Made") -> Generator[Ask, Reply, None]:
        """Documents first, then a question about one of them; about one of each subject's, where the target wrote them.

        It ends with the first dialogue that comes to nothing: a duplicate may be noticed now or when all is done, and the
        files must not depend on it.
        """
        rng, turn = plan.rng, 1
        subjects: list[list[Document]] = []
        if plan.own:
            for _ in range(rng.choice(SUBJECTS)):
                prompt = self.prompts.entry(rng)
                reply = yield from self._talk(plan, made, prompt, self.turns.first(prompt.turn), turn)
                if reply is None:
                    return
                found = written(self._text(reply), prompt.title)
                subjects += [found] if found else []
                turn += _APART
            held = made.held
        else:
            held = self.prompts.side(rng)
            subjects = [self.prompts.documents(rng, held)]
        documents = [document for found in subjects for document in found]
        for found in subjects if len(documents) > 1 else []:
            right, question = rng.choice(found), None
            if not plan.own or rng.random() < ASKED_SHARE:
                asked = self.prompts.ask(rng, right, held)
                reply = yield from self._talk(plan, made, asked, self.turns.first(asked.turn), turn)
                if reply is None:
                    return
                question = question_in(self.turns.words(reply.tokens))
            prompt = self.prompts.retrieve(rng, documents, documents.index(right), held, question)
            reply = yield from self._talk(plan, made, prompt, self.turns.first(prompt.turn), turn + _APART)
            if reply is None:
                return
            turn += 2 * _APART

    def _text(self, answer: Reply) -> str:
        """What the target wrote, to be used as a text: whole sentences, each of them once."""
        words = self.turns.words(answer.tokens if answer.ended else without_loop(answer.tokens))
        return without_repeats(words if answer.ended else whole_sentences(words))

    def _talk(
        self, plan: Plan, made: "_Made", prompt: Prompt, ids: list[int], turn: int, *, follow: bool = False
    ) -> Generator[Ask, Reply, Reply | None]:
        """One dialogue from its first user turn; None if it came to nothing."""
        key = key_of(prompt.turn)
        made.begin(prompt)
        times = max(1, min(prompt.times, (self.longest - len(ids)) // self.max_tokens))
        if why := self._unwanted(prompt.turn, key, ids):
            return made.drop(why)
        reply = yield self._ask_answer(plan, ids, turn, times, cool=bool(prompt.title) or (plan.own and turn == 1))
        answer = reply.tokens if reply.ended else made.cut(reply.tokens)
        if len(answer) < SHORTEST:
            return made.drop("empty answer")
        kind, tokens, spans = prompt.kind, ids + answer, [(len(ids), len(ids) + len(answer))]
        if follow and reply.ended and plan.rng.random() < FOLLOW_SHARE:
            more = yield from self._follow(plan, made, ids, answer, turn + 1)
            if more is not None:
                kind, (tokens, spans) = FOLLOWUP, more
        if self.exclusion.hits(tokens):
            return made.drop("excluded")
        made.lines.append(Line(kind, tokens, spans, key))
        return reply

    def _follow(
        self, plan: Plan, made: "_Made", ids: list[int], answer: list[int], turn: int
    ) -> Generator[Ask, Reply, tuple[list[int], list[tuple[int, int]]] | None]:
        """A second user turn and its answer: (all tokens, both spans), or None if the user has nothing more to say."""
        kept, tail = self.turns.continued(answer, self.turns.next_header)
        if len(ids) + len(kept) + len(tail) + TURN_TOKENS + self.max_tokens > self.longest:
            return None
        asked = yield self._ask_turn(plan, ids + kept + tail, turn)
        words = self.turns.words(asked.tokens) if asked.ended else ""
        if not words or self.exclusion.says(words):
            return None
        kept, tail = self.turns.continued(answer, self.turns.next(words))
        before = ids + kept + tail
        if len(before) + self.max_tokens > self.longest:
            return None
        reply = yield self._ask_answer(plan, before, turn + 1)
        last = reply.tokens if reply.ended else made.cut(reply.tokens)
        if len(last) < SHORTEST:
            return None
        return before + last, [(len(ids), len(ids) + len(kept)), (len(before), len(before) + len(last))]

    def _unwanted(self, turn: str, key: str, ids: list[int]) -> str | None:
        """Why no answer to this turn is needed. Looked at again when the dialogue is done: by then others may be."""
        if key in self.seen:
            return "duplicate"
        if self.exclusion.says(turn) or self.exclusion.hits(ids):
            return "excluded"
        return "too long" if len(ids) + self.max_tokens > self.longest else None

    def _ask_turn(self, plan: Plan, prompt: list[int], turn: int) -> Ask:
        most = min(TURN_TOKENS, self.longest - len(prompt))
        return Ask(prompt, SamplingParams(temperature=1.0, top_p=0.98, max_tokens=most, seed=self._seed(plan, turn)))

    def _ask_answer(self, plan: Plan, prompt: list[int], turn: int, times: int = 1, cool: bool = False) -> Ask:
        """Greedy as a rule, but not where it is long: it would go round in circles. `cool`: a text that others are made from
        should make sense."""
        greedy = plan.rng.random() < GREEDY_SHARE and times == 1
        temperature = 0.0 if greedy else round(plan.rng.uniform(0.4, 0.7) if cool else plan.rng.uniform(0.7, 1.0), 2)
        most = times * self.max_tokens
        return Ask(prompt, SamplingParams(temperature=temperature, max_tokens=most, seed=self._seed(plan, turn)))

    def _seed(self, plan: Plan, turn: int) -> int:
        name = f"{self.seed}:{plan.number}:{turn}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)


class _Made:
    """What a script has made so far."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.dropped: list[str] = []
        self.shortened = 0
        self.key, self.held = "", False

    def begin(self, prompt: Prompt) -> None:
        """The first prompt says on which side all of it is."""
        if not self.key:
            self.key, self.held = key_of(prompt.turn), prompt.held

    def drop(self, why: str) -> None:
        self.dropped.append(why)

    def cut(self, tokens: list[int]) -> list[int]:
        """An answer that met its limit, without its loop."""
        kept = without_loop(tokens)
        self.shortened += len(kept) < len(tokens)
        return kept

    def outcome(self) -> Outcome:
        return Outcome(self.key, self.held, tuple(self.lines), tuple(self.dropped), self.shortened)
