"""What a draft pass costs with some sub-layers left out, from passes that are timed once.

All layers of a model have the same shapes, so four passes over one token tell the cost of an attention, of an MLP and of the
rest: with all sub-layers, without any attention, without any MLP, without both. They are timed in turn, many times, and the
medians are kept.
"""

from dataclasses import asdict, dataclass
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

from draftwood.core.forward import ForwardInput, HostInput, LayerPlan
from draftwood.core.host import host
from draftwood.core.protocols import Runner
from draftwood.drafters.layers.skip_set import SkipSet
from draftwood.sizing.choose_route import pass_costs
from draftwood.sizing.choose_size import timed

CONTEXT = 128  # tokens before the one that is timed
ROUNDS, WARM = 15, 3


@dataclass(frozen=True, slots=True)
class SubLayerCosts:
    """Seconds: of one attention, of one MLP, and of the rest of a pass over one token."""

    attention: float
    mlp: float
    rest: float
    num_layers: int

    def seconds(self, skip: SkipSet) -> float:
        """Of a pass over one token."""
        left = self.num_layers - len(skip.attention), self.num_layers - len(skip.mlp)
        return self.rest + left[0] * self.attention + left[1] * self.mlp


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds: of draft passes, of target passes over 1, 2, .. tokens, and of the rest of a round."""

    draft: SubLayerCosts
    passes: tuple[float, ...]
    rest: float

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(record: dict[str, Any]) -> "RoundCosts":
        """ValueError, KeyError or TypeError if these are none."""
        found = RoundCosts(SubLayerCosts(**record["draft"]), tuple(record["passes"]), record["rest"])
        numbers = *found.passes, found.rest, found.draft.attention, found.draft.mlp, found.draft.rest
        if any(type(x) is not float or not 0 <= x < inf for x in numbers) or not found.passes or not min(found.passes):
            raise ValueError(f"no costs: {record}")
        return found


def round_costs(target: Runner, depth: int) -> RoundCosts:
    """For chains of up to `depth` tokens."""
    cost = timed(pass_costs(target))
    passes = tuple(cost.pass_seconds(tokens, CONTEXT) for tokens in range(1, depth + 2))
    return RoundCosts(sub_layer_costs(target), passes, cost.rest_seconds())


def sub_layer_costs(target: Runner) -> SubLayerCosts:
    layers = target.info.num_layers
    every = frozenset(range(layers))
    plans = (
        LayerPlan(),
        LayerPlan(skip_attention=every),
        LayerPlan(skip_mlp=every),
        LayerPlan(skip_attention=every, skip_mlp=every),
    )
    context = min(CONTEXT, target.info.max_positions - 2)
    runner = target.open(1, context + 1)
    text = [i % target.info.vocab_size for i in range(1, 1 + context)]
    runner.admit(0, [*text, 0])
    runner.reserve([0], [context])
    prompt = HostInput(text, [0] * context, list(range(context)), list(range(-1, context - 1)))
    runner.execute(ForwardInput.of(prompt, list(range(context)), [], target.info.device))
    runner.commit([0], [list(range(context))], [text])
    one = ForwardInput.of(HostInput([1], [0], [0], [-1]), [context], [0], target.info.device)
    seconds: list[list[float]] = [[] for _ in plans]
    for i in range(WARM + ROUNDS):
        for found, plan in zip(seconds, plans, strict=True):
            runner.reserve([0], [1])
            started = perf_counter()
            host(runner.execute(one, layers=plan).logits[:, :1])
            if i >= WARM:
                found.append(perf_counter() - started)
            runner.commit([0], [[]], [[]])
    whole, no_attention, no_mlp, neither = (median(each) for each in seconds)
    # Both ways to leave a kind out tell its cost: from the whole pass, and from one without the other kind.
    attention = max((whole - no_attention + no_mlp - neither) / 2, 0.0) / layers
    mlp = max((whole - no_mlp + no_attention - neither) / 2, 0.0) / layers
    return SubLayerCosts(attention, mlp, max(whole - layers * (attention + mlp), 0.0), layers)
