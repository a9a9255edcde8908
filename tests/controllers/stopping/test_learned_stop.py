"""Whatever the judge says, the output has the target's distribution; a judge that takes back what it has seen is caught."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.controllers.stopping.learned_stop import LearnedStop
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import DrafterError, OptionError
from draftwood.testing.contracts import toy_round
from draftwood.testing.exact import Leaf, distance, first_token, joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free, near, random_probs
from draftwood.trees.grow import grow
from draftwood.trees.static import Static
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.traversal import Traversal

WIDTHS = (2, 1, 1)
VOCAB = 3


def seen_of(tree: TokenTree, frontier: Tensor) -> Tensor:
    """What a draft could know of its nodes: their tokens, their parents' and their depths, one-hot. [B F 3 V]"""
    node = frontier.clamp_min(0)
    parent = tree.parents.gather(1, node).clamp_min(0)
    columns = (tree.tokens.gather(1, node), tree.tokens.gather(1, parent), tree.depths().gather(1, node))
    return torch.cat([torch.nn.functional.one_hot(x, 4).double() for x in columns], dim=-1)


@dataclass(frozen=True)
class Telling(TableDrafter):
    """A table that shows hidden states."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        def proceed(tree: TokenTree, frontier: Tensor, above: Any, own: Tensor) -> Tensor:
            return limit.proceed(tree, frontier, seen_of(tree, frontier), own)

        return TableDrafter.propose(self, state, rnd, base, replace(limit, proceed=proceed), policy)


def random_judge(seed: int) -> Callable[[Tensor], Tensor]:
    """A net of random weights, as steep as a step."""
    noise = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape, generator=noise, dtype=torch.float64) for shape in ((12, 8), (8,)))
    return lambda hidden: (9 * ((hidden @ a).relu() @ b)).sigmoid()


JUDGES: dict[str, Callable[[Tensor], Tensor]] = {
    "always on": lambda hidden: torch.ones_like(hidden[..., 0]),
    "always off": lambda hidden: torch.zeros_like(hidden[..., 0]),
    "likes one token": lambda hidden: hidden[..., 1],
    "fears one token": lambda hidden: 1 - hidden[..., 2],
    "not a number": lambda hidden: torch.full_like(hidden[..., 0], torch.nan),
    **{f"random {seed}": random_judge(seed) for seed in range(3)},
}


def outcomes(
    judge: Any, verifier: Any, p: Any, q: Any, vocab_size: int = VOCAB, widths: Any = WIDTHS, **more: Any
) -> list[Leaf]:
    policy = Static(widths)
    recipe = Recipe(
        drafter=q if hasattr(q, "propose") else Telling(q),
        policy=policy,
        verifier=verifier,
        controller=LearnedStop(len(widths), policy.num_nodes, judge),
    )
    return leaves(TableModel(vocab_size, p), lambda: recipe, **more)


# Enumerations of whole trees: the judges that stop early have the smallest ones.
DEAR = ("always on", "fears one token", "random 1")


@pytest.mark.parametrize("judge", [pytest.param(j, marks=pytest.mark.slow if j in DEAR else ()) for j in JUDGES])
@pytest.mark.slow
def test_the_distribution_is_the_targets_whatever_the_judge_says(judge: str) -> None:
    p = random_probs(VOCAB, 3)
    found = outcomes(JUDGES[judge], Rejection(), p, near(p, VOCAB, 5, 0.6))
    assert joint_error(found, p, VOCAB, 4) < 1e-12


@pytest.mark.parametrize("judge", ["likes one token", "random 0"])
def test_look_ahead_rules_stay_exact_too(judge: str) -> None:
    p = random_probs(VOCAB, 4)
    found = outcomes(JUDGES[judge], Traversal(), p, near(p, VOCAB, 6, 0.6), widths=(2, 1))
    assert joint_error(found, p, VOCAB, 3) < 1e-12


def test_whole_requests_have_the_targets_joint_distribution() -> None:
    p = random_probs(VOCAB, 7)
    found = outcomes(JUDGES["likes one token"], Rejection(), p, near(p, VOCAB, 8, 0.5), widths=(2, 1), tokens=3)
    assert joint_error(found, p, VOCAB, 3) < 1e-12


@pytest.mark.slow
def test_the_judge_decides_how_deep_a_row_is_drafted() -> None:
    """A twin of the exactness tests: the judges above do stop and do go on."""
    p = context_free((0.5, 0.3, 0.2))
    names = ("always on", "always off", "not a number", "likes one token", "fears one token")
    kept = {n: sum(x.prob * x.accepted for x in outcomes(JUDGES[n], Rejection(), p, p)) for n in names}
    assert kept["always on"] == pytest.approx(3) and kept["always off"] == kept["not a number"] == pytest.approx(1)
    assert 1.1 < kept["likes one token"] < 2.9 and 1.1 < kept["fears one token"] < 2.99


# Planted mistakes.

P, Q = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)


@dataclass(frozen=True)
class Taking(TableDrafter):
    """Asks the judge about a level that is drawn, and takes the level back where it says no."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        made = TableDrafter.propose(self, state, rnd, base, replace(limit, proceed=lambda t, f, a, o: f >= 0), policy)
        tree = made.tree
        nodes = torch.arange(tree.num_nodes).expand(tree.batch, -1)
        liked = limit.proceed(tree, nodes[:, 1:], seen_of(tree, nodes[:, 1:]), torch.ones(1))
        return made.keep(torch.cat([tree.live[:, :1], liked], dim=1))


def test_control_a_level_taken_back_for_what_it_holds_fails() -> None:
    whole = outcomes(JUDGES["likes one token"], Rejection(), context_free(P), context_free(Q), widths=(1,))
    assert distance(first_token(whole, 3), P) < 1e-12
    taken = outcomes(JUDGES["likes one token"], Rejection(), context_free(P), Taking(context_free(Q)), widths=(1,))
    assert first_token(taken, 3) == pytest.approx([0.45, 0.45, 0.10], abs=1e-9)


@dataclass(frozen=True)
class Foreseeing(TableDrafter):
    """Lets the judge see the very tokens that are about to be drawn."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        def proceed(tree: TokenTree, frontier: Tensor, above: Any, own: Tensor) -> Tensor:
            probs = torch.tensor(self.probs(())).expand(*frontier.shape, -1).double()  # the same after every text
            coming = rnd.draw(frontier.clamp_min(0), probs, 1, Draw.DISTINCT, frontier >= 0)[..., 0]
            return (tree.num_nodes == 1) | (coming == 1)

        return TableDrafter.propose(self, state, rnd, base, replace(limit, proceed=proceed), policy)


def test_control_a_judge_that_sees_what_is_about_to_be_drawn_fails() -> None:
    found = outcomes(JUDGES["always on"], Rejection(), context_free(P), Foreseeing(context_free(Q)), widths=(1, 1))
    assert joint_error(found, context_free(P), 3, 1) < 1e-12, "the first level is drawn unseen"
    assert joint_error(found, context_free(P), 3, 2) > 0.01


# The tree of a sequence that stopped.


def grown(judge: Any, depth: int = 4, texts: Any = ((0,),)) -> Proposal:
    rnd = toy_round(texts, VOCAB, seed=2)
    policy = Static((2, *(1,) * (depth - 1)))
    p = random_probs(VOCAB, 1)
    limit = LearnedStop(depth, policy.num_nodes, judge).plan(None, rnd, None)  # type: ignore[arg-type]
    return Telling(p).propose(None, rnd, Proposal.roots(rnd.roots()), limit, policy)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_every_draft_pass_is_used(levels: int) -> None:
    """The judge is asked before a pass: a tree of so many levels takes as many passes, wherever it stopped."""
    stopped = grown(lambda hidden: (hidden[..., 8:] @ torch.arange(4.0, dtype=hidden.dtype) < levels).double())
    assert int(stopped.tree.depths().max()) == stopped.passes == levels
    assert grown(JUDGES["always on"]).passes == 4


def test_the_judge_reads_the_hidden_states_of_the_parents() -> None:
    """Of nodes that have not been run there are none."""
    rnd, policy = toy_round(((0,),), VOCAB, seed=2), Static((2, 1, 1))
    shown: list[Tensor] = []

    def judge(hidden: Tensor) -> Tensor:
        shown.append(hidden)
        return torch.ones_like(hidden[..., 0])

    def step(tree: TokenTree, frontier: Tensor) -> tuple[DraftProbs, Tensor]:
        probs = torch.full((frontier.numel(), VOCAB), 1 / VOCAB, dtype=torch.float64)
        return DraftProbs(probs), (frontier[..., None] + 100).double()  # a state that names its node

    limit = LearnedStop(3, policy.num_nodes, judge).plan(None, rnd, None)  # type: ignore[arg-type]
    made = grow(Proposal.roots(rnd.roots()), limit, policy, rnd, step)
    assert [x[0, :, 0].tolist() for x in shown] == [[100, 100], [101, 102]]
    assert made.tree.parents[0].tolist() == [-1, 0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_stopped_tree_is_the_beginning_of_the_full_one(levels: int) -> None:
    """So its mask is the full one's first rows and columns: it need not be made for each size."""

    def until(hidden: Tensor) -> Tensor:
        return (hidden[..., 8:] @ torch.arange(4.0, dtype=hidden.dtype) < levels).double()

    full, stopped = grown(JUDGES["always on"]).tree, grown(until).compact(1 + 2 * levels).tree
    size = 1 + 2 * levels
    assert bool(stopped.live.all()) and full.num_nodes == 9 > size
    for name in ("tokens", "parents", "copies"):
        assert torch.equal(getattr(stopped, name), getattr(full, name)[:, :size])
    assert torch.equal(stopped.ancestors(), full.ancestors()[:, :size, :size])
    assert torch.equal(stopped.depths(), full.depths()[:, :size])


def test_a_row_that_stops_leaves_its_neighbours_alone() -> None:
    texts = ((0,), (1,), (2, 1), (0, 2), (1, 1), (2, 2), (1, 0), (2,))
    full, mixed = grown(JUDGES["always on"], texts=texts).tree, grown(JUDGES["likes one token"], texts=texts).tree
    sizes = mixed.num_drafted().tolist()
    assert len(set(sizes)) > 1 and 8 in sizes, "some stop, some go on"
    for b, text in enumerate(texts):
        size = 1 + sizes[b]
        row, _ = mixed.take(torch.tensor([b])).compact(size)
        assert row.tokens[0].tolist() == full.tokens[b, :size].tolist()
        if b == 0:  # noise is keyed by the row's place here, so only the first is the same alone
            alone, _ = grown(JUDGES["likes one token"], texts=(text,)).tree.compact(size)
            assert torch.equal(row.tokens, alone.tokens) and torch.equal(row.parents, alone.parents)


def test_wishes_that_make_no_sense_are_refused() -> None:
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(OptionError, match="threshold cannot be"):
            LearnedStop(2, 2, random_judge(0), wrong)
    with pytest.raises(OptionError, match="depth cannot be"):
        LearnedStop(-1, 2, random_judge(0))


def test_a_drafter_without_hidden_states_is_named() -> None:
    rnd = toy_round(((0,),), VOCAB)
    limit = LearnedStop(2, 4, random_judge(0)).plan(None, rnd, None)  # type: ignore[arg-type]
    with pytest.raises(DrafterError, match="the drafter shows none"):
        TableDrafter(random_probs(VOCAB, 1)).propose(None, rnd, Proposal.roots(rnd.roots()), limit, Static((2, 1)))
