"""The first level of a tree: how often a rule accepts one of the root's children, and the bound of any exact rule.

The bound also holds for rules that look further ahead: the first token they emit has the target's distribution, and the
root's children are drawn independently of what follows.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.bench.study.rules.paired_runs import Root
from draftwood.core.legal_draws import Draw
from draftwood.verifiers.formulas import rates
from draftwood.verifiers.formulas.bounds import best_distinct, best_iid, distributions

IID: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "Match": rates.match_iid,
    "Rejection": rates.rejection_iid,
    "Transport": rates.transport_iid,
    "Selection": rates.selection_iid,  # a lower bound for three draws and more
}
DISTINCT_TWO = {"Match": rates.match_two_distinct, "Rejection": rates.rejection_two_distinct}


def bound(root: Root, draw: Draw, most: int | None = None) -> float:
    """The highest acceptance of any exact rule. `most`: the largest number of draws, where that number depends on what was
    drawn; the bound is then loose, because it never falls with more draws."""
    if not root.draws or root.given:
        assert root.draws <= 1, "several draws together with given tokens have no formula here"
        p, q = _distributions(root)
        return float(p[list(root.given)].sum() + torch.minimum(p, q).sum())
    count = root.draws if most is None else most
    best = best_iid if draw is Draw.IID else best_distinct
    return float(best(root.p[None], root.q[None], count)[0, -1])


def rate(rule: str, root: Root, draw: Draw) -> float | None:
    """The expected acceptance of a token-level rule over drafts and coins; None where no formula is known."""
    if not root.draws or root.given:
        p, q = _distributions(root)
        kept = {"Match": p * q, "Rejection": torch.minimum(p, q)}.get(rule)
        return None if kept is None else float(p[list(root.given)].sum() + kept.sum())
    p, q, count = root.p[None], root.q[None], root.draws
    if rule in IID and (draw is Draw.IID or count == 1):
        return float(IID[rule](p, q, count)[0])
    if rule in DISTINCT_TWO and draw is Draw.DISTINCT and count == 2:
        return float(DISTINCT_TWO[rule](p, q)[0])
    return None


def _distributions(root: Root) -> tuple[Float[Tensor, "V"], Float[Tensor, "V"]]:
    """p and q in float64. Given tokens are never drawn too, so their mass and that of the draw are separate."""
    if not root.draws:
        p = root.p.double()
        return p / p.sum(), torch.zeros_like(p)
    p, q = distributions(root.p[None], root.q[None], 1)
    return p[0], q[0]
