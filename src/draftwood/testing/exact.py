"""The exact tester: runs the engine itself on every outcome of every coin, and adds up what comes out.

Each sequence of a batch is one branch. A branch answers its coins and picks from a script; where the script ends, it takes
the first possible answer and notes the others, which become branches of their own. A branch's probability is the product of
its answers', so the emitted distribution is known to rounding, not estimated. Small vocabularies only.

Coins and picks are functions of one uniform per key, and so they are here: a branch remembers for every key the interval
its uniform must lie in. Two questions under one key are then as dependent as in a real run, so a rule that reuses a coin is
found.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.config import EngineConfig
from draftwood.core.protocols import Model
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.verdict import Times
from draftwood.engine.engine import Engine
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.table_model import Conditional, joint

_CAPACITY = 64  # entries of a slot
_DUST = 1e-15  # narrower intervals are rounding, not outcomes


@dataclass(slots=True)
class _Branch:
    script: list[int]
    prob: float = 1.0
    asked: int = 0
    others: list[list[int]] = field(default_factory=list[list[int]])
    taken: list[int] = field(default_factory=list[int])
    known: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])  # key -> its uniform

    def ask(self, key: int, edges: Sequence[float]) -> int:
        """Which of the intervals [edges[i], edges[i+1]) of the unit the key's uniform lies in."""
        low, high = self.known.get(key, (0.0, 1.0))
        parts = [(max(low, a), min(high, b)) for a, b in pairwise(edges)]
        options = [(i, (b - a) / (high - low)) for i, (a, b) in enumerate(parts) if b - a > _DUST]
        chosen = self._answer(options)
        self.known[key] = parts[chosen]
        return chosen

    def _answer(self, options: list[tuple[int, float]]) -> int:
        """One of the (value, probability) options, by the script or the first of them; certain answers are not choices."""
        if len(options) == 1:
            self.prob *= options[0][1]
            return options[0][0]
        if self.asked < len(self.script):
            at = self.script[self.asked]
        else:
            at = 0
            self.others += [[*self.taken, i] for i in range(1, len(options))]
        self.asked += 1
        self.taken.append(at)
        self.prob *= options[at][1]
        return options[at][0]


class Forking:
    """Noise whose answers come from the branches' scripts; request ids name the branches."""

    def __init__(self, branches: dict[int, _Branch]) -> None:
        self.branches = branches

    def coin(
        self, key: Int[Tensor, "B *S"], prob: Float[Tensor, "B *S"], where: Bool[Tensor, "B *S"], who: Sequence[int]
    ) -> Bool[Tensor, "B *S"]:
        out = torch.zeros_like(where)
        each = key[0].numel() if len(key) else 0
        keys, chances, asked = (x.flatten().tolist() for x in (key, prob, where))
        for i, (k, p) in enumerate(zip(keys, chances, strict=True)):
            if asked[i]:
                heads = min(max(p, 0.0), 1.0)
                out.view(-1)[i] = self.branches[who[i // each]].ask(k, (0.0, heads, 1.0)) == 0
        return out

    def pick(
        self,
        key: Int[Tensor, "B *S"],
        probs: Float[Tensor, "B *S W"] | Int[Tensor, "B *S W"] | TokenProbs,
        where: Bool[Tensor, "B *S"],
        who: Sequence[int],
    ) -> Int[Tensor, "B *S"]:
        probs = probs.dense() if isinstance(probs, TokenProbs) else probs
        out = torch.full_like(key, -1)
        each = key[0].numel() if len(key) else 0
        keys, asked = key.flatten().tolist(), where.flatten().tolist()
        for i, each_prob in enumerate(probs.reshape(-1, probs.shape[-1]).tolist()):
            total = sum(each_prob)
            if asked[i] and total > 0:
                edges = [0.0, *(x / total for x in accumulate(each_prob))]
                edges[-1] = 1.0
                out.view(-1)[i] = self.branches[who[i // each]].ask(keys[i], edges)
        return out

    def uniforms(self, key: Int[Tensor, "B"]) -> None:
        """None: every pick branches on its own."""


class Free:
    """A cost model in which drafting takes no time."""

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1.0

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return 0.0

    def rest_seconds(self) -> float:
        return 0.0

    def observe(self, times: Times) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Leaf:
    """One outcome: what was emitted, with which probability, and how many drafted tokens the first round kept."""

    output: tuple[int, ...]
    prob: float
    accepted: int


def leaves(
    target: Model,
    recipe: Callable[[], Recipe],
    *,
    prompt: Sequence[int] = (0,),
    tokens: int | None = None,
    params: SamplingParams | None = None,
    width: int = 256,
    disabled: bool = False,
) -> list[Leaf]:
    """Every outcome of the engine: of one round, or (with `tokens`) of whole requests of that length. A drafter that gets
    disabled is an error unless `disabled` expects it."""
    params = SamplingParams(temperature=1.0, seed=0) if params is None else params
    params = replace(params, max_tokens=32 if tokens is None else tokens)
    scripts: list[list[int]] = [[]]
    found: list[Leaf] = []
    while scripts:
        part, scripts = scripts[-width:], scripts[:-width]
        branches = {i: _Branch(script) for i, script in enumerate(part)}
        config = EngineConfig(max_num_seqs=len(part), disable_slow_drafts=False)
        made, noise = recipe(), Forking(branches)
        runner = CpuRunner(target).open(len(part), _CAPACITY, pools=made.needs.pools)
        engine = Engine(runner, made, cost_model=Free(), config=config, noise=noise)
        requests = [Request(i, list(prompt), params, target.info.vocab_size) for i in branches]
        for request in requests:
            engine.add(request)
        engine.step()
        while tokens is not None and engine.has_work:
            engine.step()
        for request, branch in zip(requests, branches.values(), strict=True):
            if request.stats.disabled and not disabled:
                raise AssertionError(f"the drafter was disabled: {request.stats.disabled}")
            found.append(Leaf(tuple(request.output), branch.prob, sum(request.stats.accepted)))
            scripts += branch.others
    return found


def probs_of(found: Sequence[Leaf]) -> dict[tuple[int, ...], float]:
    """Outcomes with their probabilities added up."""
    probs: dict[tuple[int, ...], float] = defaultdict(float)
    for leaf in found:
        probs[leaf.output] += leaf.prob
    return dict(probs)


def joint_error(
    found: Sequence[Leaf], probs: Conditional, vocab_size: int, length: int, prompt: Sequence[int] = (0,)
) -> float:
    """Largest |got - p| over all texts of `length` tokens; shorter outcomes are continued with the target's own
    distribution."""
    start = tuple(prompt)
    emitted = probs_of(found)
    worst = 0.0
    for text in product(range(vocab_size), repeat=length):
        got = sum(
            prob * joint(probs, start + out, text[len(out) :]) if len(out) <= length else prob
            for out, prob in emitted.items()
            if out[:length] == text[: len(out)]
        )
        worst = max(worst, abs(got - joint(probs, start, text)))
    return worst


def first_token(found: Sequence[Leaf], vocab_size: int) -> list[float]:
    """Distribution of the first emitted token."""
    probs = [0.0] * vocab_size
    for leaf in found:
        probs[leaf.output[0]] += leaf.prob
    return probs


def distance(p: Sequence[float], q: Sequence[float]) -> float:
    """Total variation."""
    return 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))


def acceptance(found: Sequence[Leaf]) -> float:
    """Probability that the round kept at least one drafted token."""
    return sum(leaf.prob for leaf in found if leaf.accepted > 0)


def expected_accepted(found: Sequence[Leaf]) -> float:
    """E[tau]: drafted tokens kept in one round."""
    return sum(leaf.prob * leaf.accepted for leaf in found)
