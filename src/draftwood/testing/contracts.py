"""Checks for any part: what the engine relies on, stated once. A part that passes them can be trusted in a recipe. Those
for caches are in `cache_checks`.

Each raises AssertionError with the sentence that does not hold. They run on small tables, in a second or two.
"""

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.host_tree import HostTree
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.proposal_checks import faults
from draftwood.core.protocols import Drafter, LengthController, TreePolicy, Verifier
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome, Times, Verdict
from draftwood.testing.exact import Free, joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel, context_free, near, random_probs
from draftwood.trees.static import Static


def toy_round(
    texts: Sequence[Sequence[int]], vocab_size: int, *, seed: int = 0, temperature: float = 1.0, **options: Any
) -> Round:
    """A round over given texts, as the engine would make it. `options`: more sampling params of the requests."""
    requests = tuple(
        Request(i, list(text), SamplingParams(temperature=temperature, seed=seed + i, **options), vocab_size)
        for i, text in enumerate(texts)
    )
    return Round(torch.arange(len(texts)), torch.tensor([len(t) for t in texts]), requests)


def check_drafter(
    drafter: Drafter, policy: TreePolicy, vocab_size: int, *, depth: int = 3, nodes: int = 8, **options: Any
) -> None:
    """Valid trees within the limit, the same alone as in a batch, and no state left after `free`. `options`: sampling params
    of the requests."""
    rng = random.Random(1)
    texts = [[rng.randrange(vocab_size) for _ in range(rng.randrange(4, 30))] for _ in range(5)]
    limit = Limit.of([depth, 1, depth, 2, depth], [nodes] * 5)
    state = drafter.init(5)
    rnd = toy_round(texts, vocab_size, **options)
    together = drafter.propose(state, rnd, Proposal.roots(rnd.roots()), limit, policy)
    wrong = faults(together, rnd, vocab_size)
    assert not wrong, f"the proposal breaks a rule: {wrong}"
    kept = together.keep(policy.select(together.tree, limit)).tree
    assert (kept.num_drafted() <= limit.nodes).all(), "select keeps more nodes than the limit allows"
    deepest = (kept.depths() * kept.live).amax(1)
    assert (deepest <= limit.depth).all(), "a sequence is drafted deeper than its own limit"
    drafter.free(state, list(range(5)))
    for b in range(5):
        one = rnd.take([b])
        own = limit.take([b])
        alone = drafter.propose(state, one, Proposal.roots(one.roots()), own, policy)
        assert _paths(alone, 0) == _paths(together, b), f"sequence {b} is drafted differently alone and in a batch"
        drafter.free(state, [b])


def _paths(proposal: Proposal, sequence: int) -> set[tuple[int, ...]]:
    tree = proposal.tree
    nodes = torch.arange(tree.num_nodes).expand(tree.batch, -1)
    paths = tree.path_tokens(nodes)[sequence].tolist()
    return {
        tuple(t for t in path if t >= 0) for path, live in zip(paths, tree.live[sequence].tolist(), strict=True) if live
    }


def check_policy(policy: TreePolicy, vocab_size: int = 6, *, depth: int = 3) -> None:
    """Scores never grow along a path, no node has more children than the policy says, and every cut is closed under parents
    and earlier drawn siblings; siblings that are independent draws are never cut at all, because merged ones cannot be cut
    between their draws."""
    drafter = TableDrafter(random_probs(vocab_size, 3))
    rnd = toy_round([[1, 2], [3], [0, 4, 5]], vocab_size)
    for budget in (*range(1, 8), 10_000):
        limit = Limit.of([depth] * 3, [budget] * 3)
        tree = drafter.propose(None, rnd, Proposal.roots(rnd.roots()), limit, policy).tree
        parent = tree.parents.clamp_min(0)
        below = tree.live & (tree.parents >= 0)
        assert (~below | (tree.score <= tree.score.gather(1, parent))).all(), "a score grows along a path"
        draws = torch.where(below, tree.copies.clamp_min(1), 0)
        children = torch.zeros_like(draws).scatter_add(1, parent, draws)
        assert int(children.max()) <= policy.max_children(limit), "a node has more children than max_children"
        kept = policy.select(tree, limit)
        assert (kept <= tree.live).all(), "select keeps dead nodes"
        assert (~(kept & below) | kept.gather(1, parent)).all(), "a kept node has a cut parent"
        for b in range(3):
            _check_siblings(tree, kept[b], b, policy.draw is Draw.IID)


def _check_siblings(tree: TokenTree, kept: Tensor, sequence: int, whole: bool) -> None:
    live, copies, parents = (x[sequence].tolist() for x in (tree.live, tree.copies, tree.parents))
    for i, j in product(range(1, tree.num_nodes), repeat=2):
        siblings = live[j] and copies[j] and parents[i] == parents[j]
        if kept[i] and siblings and (j < i or whole):
            assert kept[j], "a drawn sibling is kept without an earlier one"


def check_verifier(verifier: Verifier, *, models: int = 4, vocab_size: int = 3) -> None:
    """Exact on every draw it claims, in chains and trees if it claims those: random distributions, equal ones, disjoint and
    one-hot ones, a bare root. By enumeration."""
    distributions: list[tuple[Conditional, Conditional]] = []
    for seed in range(models):
        p = random_probs(vocab_size, seed)
        distributions.append((p, near(p, vocab_size, seed + 100, 0.6)))
    even = context_free([1 / vocab_size] * vocab_size)
    hot = context_free([1.0, *[0.0] * (vocab_size - 1)])
    cold = context_free([0.0, *[1 / (vocab_size - 1)] * (vocab_size - 1)])
    distributions += [(even, even), (hot, cold), (hot, even), (even, hot)]
    for draw in sorted(verifier.draws, key=lambda d: d.value):
        for p, q in distributions:
            for widths in ((1, 1), (2, 1)):
                if Static(widths, draw).shape not in verifier.shapes:
                    continue
                error = exact_error(verifier, draw, p, q, vocab_size, widths)
                assert error < 1e-12, f"{type(verifier).__name__} on {draw.value} draws {widths}: error {error:.1e}"


def exact_error(
    verifier: Verifier, draw: Draw, p: Conditional, q: Conditional, vocab_size: int, widths: tuple[int, ...]
) -> float:
    """Largest error of the joint distribution of the depth + 1 tokens of one tree, by enumeration of the engine itself."""

    def recipe() -> Recipe:
        shape = Static(widths, draw)
        return Recipe(
            drafter=TableDrafter(q), policy=shape, verifier=verifier, controller=Always(len(widths), shape.num_nodes)
        )

    found = leaves(TableModel(vocab_size, p), recipe)
    return joint_error(found, p, vocab_size, len(widths) + 1)


class Always:
    """A controller with one fixed size."""

    def __init__(self, depth: int, nodes: int) -> None:
        self.depth, self.nodes = depth, nodes

    needs = Needs()

    def init(self, slots: int) -> None:
        return None

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        return Limit.of([self.depth] * rnd.batch, [self.nodes] * rnd.batch)

    def update(self, state: None, rnd: Round, outcome: Outcome) -> None:
        return None

    def free(self, state: None, slots: Sequence[int]) -> None:
        return None


def check_controller(controller: LengthController, vocab_size: int = 5) -> None:
    """Plans a valid limit per sequence for any history, and drops the state of a slot when it is freed."""
    state = controller.init(4)
    load = Load(cost_model=Free(), batch_size=4, waiting=0, context=100)
    rnd = toy_round([[1], [2, 3], [4], [0, 1]], vocab_size)
    first = controller.plan(state, rnd, load).depth.tolist()
    rng = random.Random(2)
    for _ in range(60):
        limit = controller.plan(state, rnd, load)
        assert len(limit.depths) == len(limit.budgets) == 4, "a limit needs one depth and one budget per sequence"
        assert min(*limit.depths, *limit.budgets) >= 0, "a limit is negative"
        assert int(limit.depth.max()) <= limit.tier.depth and int(limit.nodes.max()) < limit.tier.nodes, (
            "tier too small"
        )
        controller.update(state, rnd, _outcome(rnd, limit, rng))
    controller.free(state, [0, 1, 2, 3])
    assert controller.plan(state, rnd, load).depth.tolist() == first, "a freed slot is remembered"


def _outcome(rnd: Round, limit: Limit, rng: random.Random) -> Outcome:
    tree = Proposal.roots(rnd.roots()).tree
    for level in range(limit.tier.depth):
        at = torch.full((rnd.batch, 1), tree.num_nodes - 1)
        tree = tree.add(at, torch.ones_like(at), live=(limit.depth > level)[:, None], copies=0)
    count = torch.tensor([rng.randint(0, d) for d in limit.depths])
    path = torch.arange(tree.num_nodes).expand(rnd.batch, -1)
    path = torch.where(path <= count[:, None], path, -1)
    tokens = torch.ones_like(path)
    times = Times({"score": 0.01, "propose": 0.001}, tokens=4)
    verdict, sizes = Verdict(path, count, torch.zeros_like(count)), HostTree.of(tree)
    emitted = [[1] * own + [0] for own in count.tolist()]
    return Outcome(Proposal(tree), verdict, tokens, times, tuple(sizes.drafted), tuple(sizes.deepest), emitted)
