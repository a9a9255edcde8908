"""Dialogue scripts: generators that ask the target for text, turn by turn, and receive its replies.

    chat         user turn (sampled) -> answer [-> user turn (sampled) -> answer]
    over text    prompt from a template -> answer
    own text     a chat as above or an article, then a prompt over its answer -> answer                  two dialogues
    translation  prompt from a template or over its own text -> answer [-> "translate back" -> answer]   one to three
    retrieval    questions about a few subjects -> answers; then for each a question over all of them as documents -> answer

All randomness of a script is keyed by (seed, number), so it does not depend on other scripts.
"""

import hashlib
import random
from collections.abc import Container, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from draftwood.core.sampling.params import SamplingParams
from draftwood.train.data import mixture
from draftwood.train.data.chat_turns import Turns, key_of
from draftwood.train.data.dataset_folder import Line, Outcome
from draftwood.train.data.exclude import Exclusion
from draftwood.train.data.passages import language_of
from draftwood.train.data.prompts import CHAT, FOLLOWUP, OVER_TEXT, Prompt, Prompts, held_out
from draftwood.train.data.repeats import whole_sentences, without_loop, without_repeats
from draftwood.train.data.retrieval_prompts import Document, question_in, written

TURN_TOKENS = 160
GREEDY_SHARE, FOLLOW_SHARE = 0.7, 0.15
SHORTEST_OWN = {"summary": 250}  # characters of a text that a prompt is made over; 80 for other kinds
SHORTEST = 2  # tokens of an answer, including its end
_TURNS = 4  # turn numbers reserved for each dialogue of a script


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for the next text."""

    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Reply:
    tokens: list[int]
    ended: bool  # with an end-of-turn token


Script = Generator[Ask, Reply, Outcome]


@dataclass(slots=True)
class Plan:
    """A script before it starts."""

    number: int
    kind: str
    rng: random.Random
    prompt: Prompt | None = None  # of the first dialogue; None: the target writes the user turn
    own: bool = False  # the second prompt is made over the first answer
    ids: list[int] = field(default_factory=list[int])


class Scripts:
    """Makes scripts. `seen`: keys of finished dialogues. `longest`: tokens of a dialogue. `own`: share of the prompts
    over texts that use texts written by the target, if the user gives texts too."""

    def __init__(
        self,
        turns: Turns,
        prompts: Prompts,
        *,
        mix: Mapping[str, float] = mixture.MIX,
        own: float = mixture.OWN_SHARE,
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
        self.kinds, self.weights = zip(*mixture.script_weights(mix, self.own_share).items(), strict=True)

    def plan(self, which: Sequence[int]) -> list[Plan]:
        """Draws kinds and prompts for these numbers; all prompts are tokenised together."""
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
        """Draws the first prompt, if it comes from a template."""
        kind, rng = plan.kind, plan.rng
        if kind == "translation":
            which = rng.random()
            if which < mixture.FOREIGN_SHARE + mixture.WRITTEN_SHARE:
                make = self.prompts.into_english if which < mixture.FOREIGN_SHARE else self.prompts.in_language
                plan.prompt = make(rng)
                return
        plan.own = kind in OVER_TEXT and rng.random() < self.own_share
        if kind == "retrieval":
            asked = rng.random() < mixture.ASKED_SHARE
            plan.prompt = None if plan.own or asked else self.prompts.make(kind, rng)
        else:
            plan.prompt = self.prompts.first(kind, rng) if plan.own else self.prompts.make(kind, rng)

    def run(self, plan: Plan) -> Script:
        """The script of a plan."""
        made = Outcome()
        if plan.kind == "retrieval" and plan.prompt is None:
            yield from self._retrieval(plan, made)
            return made
        if plan.prompt is None:
            reply = yield self._ask_turn(plan, self.turns.header, 0)
            turn = self.turns.words(reply.tokens) if reply.ended else ""
            if not turn:
                return Outcome(dropped=["unended turn" if not reply.ended else "empty turn"])
            plan.prompt = Prompt(CHAT, turn, held_out(turn))
            plan.ids = self.turns.first(turn)
        prompt: Prompt | None = plan.prompt
        ids, turn, follow = plan.ids, 1, plan.kind == CHAT
        while prompt is not None:
            reply = yield from self._dialogue(plan, made, prompt, ids, turn, follow=follow)
            prompt = None if reply is None else self._next(plan, prompt, reply)
            ids, turn = self.turns.first(prompt.turn) if prompt is not None else [], turn + _TURNS
        return made

    def _next(self, plan: Plan, prompt: Prompt, answer: Reply) -> Prompt | None:
        """The prompt of a dialogue about the last answer, if there is one."""
        if prompt.language:
            words = self.turns.words(answer.tokens) if answer.ended else ""
            # Small models often answer in English instead.
            back = language_of(words) == prompt.language and plan.rng.random() < mixture.BACK_SHARE
            return self.prompts.back(plan.rng, prompt, words) if back else None
        text = self._text(answer) if plan.own and prompt is plan.prompt else ""
        enough = len(text) >= SHORTEST_OWN.get(plan.kind, 80)
        return self.prompts.make(plan.kind, plan.rng, text, prompt.held) if enough else None

    def _retrieval(self, plan: Plan, made: Outcome) -> Generator[Ask, Reply, None]:
        """Documents first, then questions about them: one, or one for each document that the target wrote.

        The script ends with the first dropped dialogue. A duplicate may be recognised now or only when it is stored, and
        the files must not depend on which.
        """
        rng, turn = plan.rng, 1
        subjects: list[list[Document]] = []
        if plan.own:
            for _ in range(rng.choice(mixture.SUBJECTS)):
                prompt = self.prompts.entry(rng)
                reply = yield from self._dialogue(plan, made, prompt, self.turns.first(prompt.turn), turn)
                if reply is None:
                    return
                found = written(self._text(reply), prompt.title)
                subjects += [found] if found else []
                turn += _TURNS
            held = made.held
        else:
            held = self.prompts.side(rng)
            subjects = [self.prompts.documents(rng, held)]
        documents = [document for found in subjects for document in found]
        for found in subjects if len(documents) > 1 else []:
            right, question = rng.choice(found), None
            if not plan.own or rng.random() < mixture.ASKED_SHARE:
                asked = self.prompts.ask(rng, right, held)
                reply = yield from self._dialogue(plan, made, asked, self.turns.first(asked.turn), turn)
                if reply is None:
                    return
                question = question_in(self.turns.words(reply.tokens))
            prompt = self.prompts.retrieve(rng, documents, documents.index(right), held, question)
            reply = yield from self._dialogue(plan, made, prompt, self.turns.first(prompt.turn), turn + _TURNS)
            if reply is None:
                return
            turn += 2 * _TURNS

    def _text(self, answer: Reply) -> str:
        """An answer as a text for a prompt: complete sentences without repetition."""
        words = self.turns.words(answer.tokens if answer.ended else without_loop(answer.tokens))
        return without_repeats(words if answer.ended else whole_sentences(words))

    def _dialogue(
        self, plan: Plan, made: Outcome, prompt: Prompt, ids: list[int], turn: int, *, follow: bool = False
    ) -> Generator[Ask, Reply, Reply | None]:
        """One dialogue, from its first user turn. None if it was dropped."""
        key = key_of(prompt.turn)
        if not made.key:  # the first prompt decides whether the script is held out
            made.key, made.held = key, prompt.held
        times = max(1, min(prompt.times, (self.longest - len(ids)) // self.max_tokens))
        if why := self._unwanted(prompt.turn, key, ids):
            made.dropped.append(why)
            return None
        reply = yield self._ask_answer(plan, ids, turn, times, cool=bool(prompt.title) or (plan.own and turn == 1))
        answer = reply.tokens if reply.ended else _cut(made, reply.tokens)
        if len(answer) < SHORTEST:
            made.dropped.append("empty answer")
            return None
        kind, tokens, spans = prompt.kind, ids + answer, [(len(ids), len(ids) + len(answer))]
        if follow and reply.ended and plan.rng.random() < FOLLOW_SHARE:
            more = yield from self._follow(plan, made, ids, answer, turn + 1)
            if more is not None:
                kind, (tokens, spans) = FOLLOWUP, more
        if self.exclusion.overlaps(tokens):
            made.dropped.append("excluded")
            return None
        made.lines.append(Line(kind, tokens, spans, key))
        return reply

    def _follow(
        self, plan: Plan, made: Outcome, ids: list[int], answer: list[int], turn: int
    ) -> Generator[Ask, Reply, tuple[list[int], list[tuple[int, int]]] | None]:
        """A second user turn and its answer: (all tokens, both spans), or None if there is none."""
        kept, tail = self.turns.continued(answer, self.turns.next_header)
        if len(ids) + len(kept) + len(tail) + TURN_TOKENS + self.max_tokens > self.longest:
            return None
        asked = yield self._ask_turn(plan, ids + kept + tail, turn)
        words = self.turns.words(asked.tokens) if asked.ended else ""
        if not words or self.exclusion.is_question(words):
            return None
        kept, tail = self.turns.continued(answer, self.turns.next(words))
        before = ids + kept + tail
        if len(before) + self.max_tokens > self.longest:
            return None
        reply = yield self._ask_answer(plan, before, turn + 1)
        last = reply.tokens if reply.ended else _cut(made, reply.tokens)
        if len(last) < SHORTEST:
            return None
        return before + last, [(len(ids), len(ids) + len(kept)), (len(before), len(before) + len(last))]

    def _unwanted(self, turn: str, key: str, ids: list[int]) -> str | None:
        """Why this turn gets no answer. Duplicates are checked again when the dialogue is stored."""
        if key in self.seen:
            return "duplicate"
        if self.exclusion.is_question(turn) or self.exclusion.overlaps(ids):
            return "excluded"
        return "too long" if len(ids) + self.max_tokens > self.longest else None

    def _ask_turn(self, plan: Plan, prompt: list[int], turn: int) -> Ask:
        most = min(TURN_TOKENS, self.longest - len(prompt))
        return Ask(prompt, SamplingParams(temperature=1.0, top_p=0.98, max_tokens=most, seed=self._seed(plan, turn)))

    def _ask_answer(self, plan: Plan, prompt: list[int], turn: int, times: int = 1, cool: bool = False) -> Ask:
        """Mostly greedy. Long answers are sampled, because greedy ones repeat themselves. `cool`: sample texts that prompts
        are made over at a lower temperature."""
        greedy = plan.rng.random() < GREEDY_SHARE and times == 1
        temperature = 0.0 if greedy else round(plan.rng.uniform(0.4, 0.7) if cool else plan.rng.uniform(0.7, 1.0), 2)
        most = times * self.max_tokens
        return Ask(prompt, SamplingParams(temperature=temperature, max_tokens=most, seed=self._seed(plan, turn)))

    def _seed(self, plan: Plan, turn: int) -> int:
        name = f"{self.seed}:{plan.number}:{turn}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)


def _cut(made: Outcome, tokens: list[int]) -> list[int]:
    """An answer that reached its limit, without its loop."""
    kept = without_loop(tokens)
    made.shortened += len(kept) < len(tokens)
    return kept
