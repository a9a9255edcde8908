"""Scripts: how one dialogue comes about, turn by turn. Each is a generator: it asks the target for tokens and is sent them.

    chat         user turn (drawn) -> answer [-> user turn (drawn) -> answer]
    over text    prompt by rule -> answer
    own text     chat as above, then a prompt over its answer -> answer       two dialogues
    translation  prompt by rule -> answer [-> "translate back" -> answer]     two dialogues

Everything a script draws is keyed by (seed, number), so it does not matter what else runs or ran before.
"""

import hashlib
import random
from collections.abc import Container, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from draftwood.core.sampling import SamplingParams
from draftwood.train.exclude import Exclusion
from draftwood.train.folder import Line, Outcome
from draftwood.train.prompts import CHAT, FOLLOWUP, MADE, OVER_TEXT, Prompt, Prompts, held_out
from draftwood.train.repeats import without_loop
from draftwood.train.turns import Turns, key_of

MIX = {
    CHAT: 0.40,
    "question": 0.12,
    "math": 0.12,
    "summary": 0.10,
    "extraction": 0.12,
    "translation": 0.08,
    "code": 0.06,
}
assert set(MIX) == {CHAT, *MADE}
TURN_TOKENS = 160
GREEDY_SHARE, FOLLOW_SHARE, OWN_SHARE, BACK_SHARE = 0.7, 0.15, 0.3, 0.4
SHORTEST_OWN = 60  # tokens of an answer that others are made from
SHORTEST = 2  # tokens of an answer, its end included


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
    prompt: Prompt | None = None  # None: the target writes its own user turn
    ids: list[int] = field(default_factory=list[int])


class Scripts:
    """What all scripts share. `seen` are keys of dialogues that are done; `longest`: tokens of a dialogue."""

    def __init__(
        self,
        turns: Turns,
        prompts: Prompts,
        *,
        mix: Mapping[str, float] = MIX,
        exclusion: Exclusion | None = None,
        seen: Container[str] = (),
        seed: int = 0,
        max_tokens: int = 256,
        longest: int = 2048,
    ) -> None:
        self.turns, self.prompts, self.seen, self.seed = turns, prompts, seen, seed
        self.exclusion = Exclusion() if exclusion is None else exclusion
        self.max_tokens, self.longest = max_tokens, longest
        self.kinds, self.weights = zip(*_balanced(mix, self.own_share).items(), strict=True)

    @property
    def own_share(self) -> float:
        """How many of the prompts over texts are made over the target's own."""
        return OWN_SHARE if self.prompts.has_prose else 1.0

    def plan(self, numbers: Sequence[int]) -> list[Plan]:
        """Kinds and prompts of these numbers; all prompts are tokenised together."""
        plans: list[Plan] = []
        for number in numbers:
            rng = random.Random(f"{self.seed}:{number}")
            plan = Plan(number, rng.choices(self.kinds, self.weights)[0], rng)
            if plan.kind in MADE and not (plan.kind in OVER_TEXT and rng.random() < self.own_share):
                plan.prompt = self.prompts.make(plan.kind, rng)
            plans.append(plan)
        made = [p for p in plans if p.prompt is not None]
        for plan, ids in zip(made, self.turns.first_of_many([p.prompt.turn for p in made if p.prompt]), strict=True):
            plan.ids = ids
        return plans

    def run(self, plan: Plan) -> Script:
        """From a plan to its dialogues."""
        made = _Made()
        if plan.prompt is None:
            reply = yield self._ask_turn(plan, self.turns.header, 0)
            turn = self.turns.words(reply.tokens) if reply.ended else ""
            if not turn:
                return Outcome(dropped=("unended turn" if not reply.ended else "empty turn",))
            prompt = Prompt(CHAT, turn, held_out(turn))
            plan.ids = self.turns.first(turn)
        else:
            prompt = plan.prompt
        made.begin(prompt)
        first = yield from self._talk(plan, made, prompt, plan.ids, 1, follow=plan.prompt is None and plan.kind == CHAT)
        second = None if first is None else self._second(plan, prompt, first)
        if second is not None:
            yield from self._talk(plan, made, second, self.turns.first(second.turn), 5)
        return made.outcome()

    def _second(self, plan: Plan, prompt: Prompt, answer: Reply) -> Prompt | None:
        """A dialogue about the first one's answer, if there is one to be had."""
        if prompt.language and answer.ended and plan.rng.random() < BACK_SHARE:
            return self.prompts.back(plan.rng, prompt, self.turns.words(answer.tokens))
        if plan.prompt is None and plan.kind in OVER_TEXT and answer.ended and len(answer.tokens) >= SHORTEST_OWN:
            return self.prompts.make(plan.kind, plan.rng, self.turns.words(answer.tokens), prompt.held)
        return None

    def _talk(
        self, plan: Plan, made: "_Made", prompt: Prompt, ids: list[int], turn: int, *, follow: bool = False
    ) -> Generator[Ask, Reply, Reply | None]:
        """One dialogue from its first user turn; None if it came to nothing."""
        key = key_of(prompt.turn)
        if why := self._unwanted(prompt.turn, key, ids):
            return made.drop(why)
        reply = yield self._ask_answer(plan, ids, turn)
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

    def _ask_answer(self, plan: Plan, prompt: list[int], turn: int) -> Ask:
        heat = 0.0 if plan.rng.random() < GREEDY_SHARE else round(plan.rng.uniform(0.7, 1.0), 2)
        return Ask(prompt, SamplingParams(temperature=heat, max_tokens=self.max_tokens, seed=self._seed(plan, turn)))

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


def _balanced(mix: Mapping[str, float], own_share: float) -> dict[str, float]:
    """Weights of numbers for a mix of dialogues: a prompt over the target's own text brings a chat of its own."""
    along = own_share * sum(mix.get(kind, 0.0) for kind in OVER_TEXT)
    return {kind: max(0.0, share - along) if kind == CHAT else share for kind, share in mix.items()}
