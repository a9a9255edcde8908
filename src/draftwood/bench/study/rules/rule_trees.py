"""The trees on which `bench rules` compares rules, by name. All have about as many draws, so that trees can be compared.

At temperature 0 only the shape matters: draws without replacement become the best tokens. Independent draws are all the
same token, so trees of those are left out.
"""

from dataclasses import dataclass

from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.protocols import TreePolicy
from draftwood.errors import UnknownNameError, need_at_least
from draftwood.trees.best_and_one import BestAndOne
from draftwood.trees.best_first import BestFirst
from draftwood.trees.best_shape import positional
from draftwood.trees.chain import Chain
from draftwood.trees.delayed import Delayed
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.opt_tree import OptTree
from draftwood.trees.paths import Paths
from draftwood.trees.shaped import Shaped
from draftwood.trees.static import Static
from draftwood.trees.stochastic_beam import StochasticBeam
from draftwood.trees.threshold import Threshold

LEAST = 8  # draws below which these shapes coincide
DEEP = 8  # levels at most of the trees that choose their depth
ACCEPTANCE = (0.6, 0.2, 0.1)  # of the first, second and third sibling, as the recipe of measured trees assumes


@dataclass(frozen=True, slots=True)
class Tree:
    """A policy and its size. `adaptive`: how many children the root gets depends on what was drawn before."""

    policy: TreePolicy
    depth: int
    nodes: int
    adaptive: bool = False

    def at(self, temperature: float) -> TreePolicy | None:
        """None where there is nothing to compare at this temperature."""
        alike = self.policy.draw is Draw.IID and self.policy.shape is not Shape.CHAIN
        return None if temperature == 0 and alike else self.policy


def trees(nodes: int = 16) -> dict[str, Tree]:
    """By name, each with `nodes` draws or a few less."""
    need_at_least("bench rules", nodes=(nodes, LEAST))
    quarter = nodes // 4
    split = (2, 2, *[1] * ((nodes - 6) // 4))  # levels of 2, 4, 4, ..
    wide = (quarter, *[1] * (nodes // quarter - 1))
    chosen = Shaped(positional(ACCEPTANCE, nodes, DEEP))
    return {
        "chain-4": Tree(Chain(), 4, 4),
        "chain-8": Tree(Chain(), 8, 8),
        "static": _static(Static(split)),
        "static-iid": _static(Static(split, Draw.IID)),
        "wide": _static(Static(wide)),
        "paths": Tree(Paths(4), quarter, 4 * quarter),
        "delayed": Tree(Delayed(1, 3), 1 + (nodes - 1) // 3, nodes),
        "beam": Tree(StochasticBeam(4), quarter, 4 * quarter),
        "heap": Tree(MostValuableFirst(ahead=4), DEEP, nodes, adaptive=True),
        "threshold": Tree(Threshold(1 / nodes), DEEP, nodes, adaptive=True),
        "shaped": Tree(chosen, chosen.depth, chosen.num_nodes),
        "best-and-one": _static(BestAndOne(split)),
        "best-first": Tree(BestFirst(beam=4), DEEP, nodes),
        "opt-tree": Tree(OptTree(), DEEP, nodes),
    }


def chosen_trees(names: list[str], nodes: int = 16) -> dict[str, Tree]:
    """Some of them; all if none is named."""
    known = trees(nodes)
    for name in names:
        if name not in known:
            raise UnknownNameError("tree", name, list(known))
    return {name: known[name] for name in names or known}


def _static(policy: Static | BestAndOne) -> Tree:
    return Tree(policy, len(policy.widths), policy.num_nodes)
