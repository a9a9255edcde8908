"""One text's chain of best tokens in a single call of its model: step by step, each call would cost as much as its step.

It is the tree that the growing loop would grow, node by node: given tokens, each scored by the product of probabilities.
"""

from dataclasses import replace
from itertools import accumulate
from math import log
from time import perf_counter

from jaxtyping import Int
from torch import Tensor

from draftwood.core.draw import Draw
from draftwood.core.forward import ForwardInput
from draftwood.core.host import put
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Cache
from draftwood.drafters.nets.runner import FeatureModel
from draftwood.trees.grow import NO_NUMBERS


def in_one_call(
    model: FeatureModel,
    cache: Cache,
    base: Proposal,
    limit: Limit,
    chain: ForwardInput,
    temperature: float,
    only: Int[Tensor, "W"] | None,
) -> Proposal | None:
    """None where the model cannot, or the base is more than a root: then the loop does it."""
    line = getattr(model, "line", None)
    steps = min(limit.depths[0], limit.budgets[0])
    if line is None or steps < 1 or base.tree.num_nodes > 1:
        return None
    started = perf_counter()
    found = line(chain, cache, temperature, steps, only)
    if found is None:
        return None
    tokens, prob = found
    real = next((i for i, p in enumerate(prob) if not p > 0), steps)  # nothing follows what is no probability
    fault = NO_NUMBERS if any(p != p for p in prob) else base.fault
    score = list(accumulate((log(p) for p in prob[:real]), initial=float(base.tree.score[0, 0])))[1:]
    device, kind = base.tree.tokens.device, base.tree.score.dtype
    tree = base.tree
    if real:
        scores = put([score], device, kind)
        tree = tree.append(
            tokens=put([tokens[:real]], device), parents=put([[*range(real)]], device), live=scores <= 0, score=scores
        )
    return replace(
        base,
        tree=tree,
        draw=Draw.GIVEN,
        q_index=put([[-1] * tree.num_nodes], device),
        passes=base.passes + steps,
        pass_seconds=perf_counter() - started,
        fault=fault,
    )
