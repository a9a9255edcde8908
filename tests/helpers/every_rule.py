"""Every exact rule, every policy, and distributions of every kind: what a proof about all of them runs over.

Both lists are compared with the folders and with the table of legal pairings, so that none can be forgotten.
"""

import inspect
import pkgutil
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from draftwood import trees, verifiers
from draftwood.core.legal_draws import RULES, Draw
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.testing.contracts import Always
from draftwood.testing.exact import Leaf, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel, near, random_probs
from draftwood.trees.best_and_one import BestAndOne
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.delayed import Delayed
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.opt_tree import OptTree
from draftwood.trees.paths import Paths
from draftwood.trees.ranked_chain import RankedChain
from draftwood.trees.shaped import Shaped
from draftwood.trees.static import Static
from draftwood.trees.stochastic_beam import StochasticBeam
from draftwood.trees.threshold import Threshold
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match
from draftwood.verifiers.path_block import PathBlock
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.selection import Selection
from draftwood.verifiers.transport import Transport
from draftwood.verifiers.traversal import Traversal

VARIANTS: dict[str, list[Any]] = {  # by name as in the table; options that change the rule stand beside the plain one
    "Traversal": [Traversal()],
    "PathBlock": [PathBlock(), PathBlock(counted=True)],
    "Block": [Block()],
    "Rejection": [Rejection()],
    "Transport": [Transport(), Transport(rho=2)],
    "Selection": [Selection(), Selection("lp")],
    "Match": [Match()],
}


@dataclass(frozen=True)
class Case:
    """A policy and a size that can be enumerated: `vocab_size` tokens, `depth` levels, `nodes` drafted nodes."""

    policy: Any
    vocab_size: int
    depth: int
    nodes: int = 100

    def __str__(self) -> str:
        options = ",".join(str(getattr(x, "value", x)) for n, x in vars_of(self.policy).items() if n != "shape")
        return f"{type(self.policy).__name__}({options})x{self.vocab_size}^{self.depth}".replace(" ", "")


def vars_of(policy: Any) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in policy.__dataclass_fields__}


SMALL = (
    Case(Chain(), 3, 2),
    Case(Chain(Draw.GIVEN), 3, 2),
    Case(RankedChain(), 3, 2),
    Case(Static((1, 1)), 3, 2),
    Case(Static((2,), Draw.IID), 4, 1),
    Case(Static((2, 1)), 3, 2),
    Case(Static((2, 1), Draw.GIVEN), 3, 2),
    Case(Paths(2), 2, 2),
    Case(BestAndOne((2, 1)), 3, 2),
    Case(StochasticBeam(2), 3, 2, 3),
    Case(MostValuableFirst(2), 3, 3, 3),
    Case(Threshold(0.2), 3, 2, 3),
    Case(Delayed(1, 2), 3, 2, 3),
    Case(OptTree(0.1), 3, 2, 4),
    Case(BestFirst(2), 3, 2, 4),
    Case(Shaped((0, 1, 1)), 3, 2),
)
LARGE = (
    Case(Chain(), 5, 2),
    Case(Chain(), 4, 3),
    Case(Chain(Draw.GIVEN), 5, 3),
    Case(Static((1, 1, 1)), 3, 3),
    Case(Static((2,), Draw.IID), 5, 1),
    Case(Static((3,), Draw.IID), 3, 1),
    Case(Static((2, 1), Draw.IID), 3, 2),
    Case(Static((2,)), 5, 1),
    Case(Static((1, 2)), 3, 2),
    Case(Static((2, 1)), 3, 2, 3),
    Case(Paths(2), 5, 1),
    Case(Paths(2), 3, 2),
    Case(Paths(2), 2, 3),
    Case(Paths(3), 2, 2),
    Case(BestAndOne((2, 2)), 3, 2),
    Case(StochasticBeam(2), 3, 2, 4),
    Case(MostValuableFirst(), 3, 3, 5),
    Case(Threshold(0.05), 3, 2, 5),
    Case(Delayed(1, 2), 2, 3, 5),
    Case(OptTree(0.0), 5, 2, 6),
    Case(BestFirst(3), 4, 3, 9),
    Case(Shaped((0, 0, 1, 3)), 3, 3),
    Case(Shaped((0, 0, 1, 3), Draw.GIVEN), 3, 3),
)
LARGEST = (  # chains of three among five tokens, five drawn nodes
    Case(Chain(), 5, 3),
    Case(Shaped((0, 0, 1, 1, 2)), 3, 2),
)


def legal(cases: tuple[Case, ...], plain: bool = False) -> list[tuple[Any, Case]]:
    """Every rule with every case that the table allows it; `plain`: with its own options alone."""
    return [
        (rule, case)
        for name, allowed in RULES.items()
        for rule in VARIANTS[name][: 1 if plain else None]
        for case in cases
        if (case.policy.draw, case.policy.shape) in allowed
    ]


def pairings() -> list[tuple[Any, Case]]:
    """Every rule with the first small case of every draw and shape that the table allows it."""
    first: dict[Any, tuple[Any, Case]] = {}
    for rule, case in legal(SMALL):
        first.setdefault((label(rule), case.policy.draw, case.policy.shape), (rule, case))
    return list(first.values())


def label(x: Any) -> str:
    """A short name for a test's id."""
    if hasattr(x, "expand"):
        return str(Case(x, 0, 0)).partition("x0^")[0]
    if not hasattr(x, "verify"):
        return str(x).replace(" ", "")
    plain = type(x)()
    return type(x).__name__ + "".join(f"-{n}={v}" for n, v in vars_of(x).items() if v != getattr(plain, n))


def parts_of(folder: ModuleType, *methods: str) -> Iterator[type]:
    """Classes defined in a folder that answer to all these names."""
    for found in pkgutil.walk_packages(folder.__path__, folder.__name__ + "."):
        module = import_module(found.name)
        for each in vars(module).values():
            ours = inspect.isclass(each) and each.__module__ == found.name and not each.__name__.startswith("_")
            if ours and not getattr(each, "_is_protocol", False) and all(hasattr(each, name) for name in methods):
                yield each


def rules_in_folder() -> set[str]:
    """All but those that say themselves that they are lossy."""
    return {each.__name__ for each in parts_of(verifiers, "verify", "shapes") if each().lossless}


def policies_in_folder() -> set[str]:
    return {each.__name__ for each in parts_of(trees, "draw", "shape", "start", "expand", "select")}


# --- distributions


def holed(probs: Conditional, vocab_size: int, seed: int) -> Conditional:
    """The same distribution without some of its tokens, others after every text."""

    def left(text: tuple[int, ...]) -> list[float]:
        rng = random.Random(hash((seed, text[-2:])))
        kept = set(rng.sample(range(vocab_size), rng.randint(1, vocab_size)))
        return normal([x if i in kept else 0.0 for i, x in enumerate(probs(text))])

    return left


def half(probs: Conditional, which: int) -> Conditional:
    """Only tokens of one parity, which changes from text to text."""
    return lambda text: normal([x if (i + sum(text)) % 2 == which else 0.0 for i, x in enumerate(probs(text))])


def certain(probs: Conditional) -> Conditional:
    """All on the most probable token."""

    def hot(text: tuple[int, ...]) -> list[float]:
        x = probs(text)
        return [float(i == x.index(max(x))) for i in range(len(x))]  # type: ignore[attr-defined]

    return hot


def nucleus(probs: Conditional, top_p: float) -> Conditional:
    """The fewest most probable tokens that hold `top_p`, written here a second time so that one check is not the other."""

    def cut(text: tuple[int, ...]) -> list[float]:
        x = probs(text)
        before = [sum(y for y in x if y > each) for each in x]
        return normal([y if mass < top_p else 0.0 for y, mass in zip(x, before, strict=True)])

    return cut


def normal(x: list[float]) -> list[float]:
    return [y / sum(x) for y in x]


KINDS: dict[str, Callable[[int, int], tuple[Conditional, Conditional]]] = {
    "near": lambda v, s: (random_probs(v, s), near(random_probs(v, s), v, s + 1, 0.3)),
    "far": lambda v, s: (random_probs(v, s, sharpness=2.0), random_probs(v, s + 1, sharpness=2.0)),
    "zeros": lambda v, s: (holed(random_probs(v, s), v, s), holed(random_probs(v, s + 1), v, s + 1)),
    "zeros in the draft": lambda v, s: (random_probs(v, s), holed(random_probs(v, s + 1), v, s)),
    "equal": lambda v, s: (random_probs(v, s), random_probs(v, s)),
    "disjoint": lambda v, s: (half(random_probs(v, s), 0), half(random_probs(v, s + 1), 1)),
    "certain target": lambda v, s: (certain(random_probs(v, s)), random_probs(v, s + 1)),
    "certain draft": lambda v, s: (random_probs(v, s), certain(random_probs(v, s + 1))),
}


@dataclass(frozen=True)
class Table:
    """One target and one draft, by what they have in common and a seed."""

    kind: str
    seed: int
    top_p: float = 1.0

    def distributions(self, vocab_size: int) -> tuple[Conditional, Conditional]:
        return KINDS[self.kind](vocab_size, self.seed)


def tables() -> st.SearchStrategy[Table]:
    """Any of them, one in three cut to a nucleus."""
    return st.builds(Table, st.sampled_from(sorted(KINDS)), st.integers(0, 2**31), st.sampled_from([1.0, 1.0, 0.8]))


# --- outcomes


def rounds(rule: Any, case: Case, p: Conditional, q: Conditional | Any, **more: Any) -> list[Leaf]:
    """All outcomes of one round, or of whole requests if `tokens` is given. `q`: a distribution, or a drafter."""
    drafter: Any = q if hasattr(q, "propose") else TableDrafter(q)
    return leaves(
        TableModel(case.vocab_size, p),
        lambda: Recipe(drafter=drafter, policy=case.policy, verifier=rule, controller=Always(case.depth, case.nodes)),
        **more,
    )


def of_table(rule: Any, case: Case, table: Table) -> tuple[list[Leaf], Conditional]:
    """All outcomes of one round on a table, and the distribution they ought to have."""
    p, q = table.distributions(case.vocab_size)
    params = SamplingParams(temperature=1.0, top_p=table.top_p)
    found = rounds(rule, case, p, q, params=params)
    return found, p if table.top_p == 1.0 else nucleus(p, table.top_p)
