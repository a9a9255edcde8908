"""The tree of the most probable paths, found without looking at those that cannot win."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_policy, toy_round
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, context_free, random_probs
from draftwood.trees import best_first
from draftwood.trees.best_first import BestFirst
from draftwood.trees.by_level import ByLevel
from draftwood.trees.grow import by_score, grow


@dataclass(frozen=True)
class FullSearch(ByLevel):
    """The same tree as the paper writes it: everything is stored, the beam is always full."""

    beam: int
    draw = Draw.GIVEN

    def max_children(self, limit: Limit) -> int:
        return self.beam

    def start(self, base: Proposal, limit: Limit, rnd: Any) -> Growth:
        return Growth.at_roots(base)

    def expand(self, growth: Growth, q: DraftProbs, allowed: torch.Tensor, limit: Limit, rnd: Any) -> Growth:
        at, first = growth.frontier.clamp_min(0), growth.tree.num_nodes
        probs = q.prob.view(*at.shape, -1)
        tokens = rnd.draw(at, probs, self.beam, Draw.GIVEN, allowed)
        score = probs.gather(2, tokens.clamp_min(0)).log().float() + growth.tree.score.gather(1, at)[..., None]
        parents = growth.frontier[..., None].expand_as(tokens)
        tree = growth.tree.add(
            parents.flatten(1), tokens.flatten(1), live=(tokens >= 0).flatten(1), copies=0, score=score.flatten(1)
        )
        new = tree.score[:, first:].masked_fill(~tree.live[:, first:], -torch.inf)
        best = new.argsort(dim=1, descending=True, stable=True)[:, : self.beam]
        return growth.deeper(tree, torch.where(new.gather(1, best) > -torch.inf, best + first, -1), None)

    def select(self, tree: TokenTree, limit: Limit) -> torch.Tensor:
        return by_score(tree, limit)


@pytest.fixture(autouse=True, params=["lists", "tensors"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few candidates go one way and many another; everything here holds for both."""
    monkeypatch.setattr(best_first, "_FEW", 10**6 if request.param == "lists" else 0)


def propose(
    policy: Any, probs: Conditional, vocab_size: int, limit: Limit, texts: list[list[int]] | None = None
) -> Proposal:
    texts = [[1]] * len(limit.depth) if texts is None else texts
    rnd = toy_round(texts, vocab_size)
    return TableDrafter(probs).propose(None, rnd, Proposal.roots(rnd.roots()), limit, policy)


def paths(tree: TokenTree, mask: torch.Tensor, row: int = 0) -> list[tuple[int, ...]]:
    whole = tree.path_tokens(torch.arange(tree.num_nodes).expand(tree.batch, -1))[row].tolist()
    return [tuple(t for t in path if t >= 0) for path, on in zip(whole, mask[row].tolist(), strict=True) if on][1:]


def selected(
    policy: Any, probs: Conditional, vocab_size: int, limit: Limit, texts: list[list[int]] | None = None
) -> list[Any]:
    tree = propose(policy, probs, vocab_size, limit, texts).tree
    kept = policy.select(tree, limit)
    return [sorted(paths(tree, kept, b)) for b in range(tree.batch)]


def test_the_contract_of_policies_holds() -> None:
    for beam in (1, 2, 10):
        check_policy(BestFirst(beam))


def test_fixture_d_is_reproduced() -> None:
    a, b = 0, 1
    tree = propose(BestFirst(2), context_free((0.6, 0.3, 0.1)), 3, Limit.of([3], [100])).tree
    first, second = [(a,), (b,)], [(a, a), (a, b), (b, a), (b, b)]
    assert paths(tree, tree.live) == [*first, *second, (a, a, a), (a, a, b), (a, b, a), (a, b, b)]
    assert tree.score.exp()[0, 1:7].tolist() == pytest.approx([0.6, 0.3, 0.36, 0.18, 0.18, 0.09])
    best = BestFirst(2).select(tree, Limit.of([3], [4]))
    assert paths(tree, best) == [(a,), (b,), (a, a), (a, a, a)]
    assert tree.score.exp()[best][1:].sum().item() == pytest.approx(1.476)
    short = propose(BestFirst(2), context_free((0.6, 0.3, 0.1)), 3, Limit.of([3], [4]))
    assert paths(short.tree, BestFirst(2).select(short.tree, Limit.of([3], [4]))) == paths(tree, best)
    assert short.tree.num_nodes < tree.num_nodes


@pytest.mark.one_in(3)
@pytest.mark.parametrize("nodes", [1, 5, 9, *(pytest.param(nodes, marks=pytest.mark.slow) for nodes in (2, 30))])
def test_what_is_never_looked_at_would_never_have_been_selected(nodes: int) -> None:
    stored = [0, 0]
    for seed in range(20):
        probs, limit = random_probs(12, seed, sharpness=0.2 + 0.2 * seed), Limit.of([5], [nodes])
        assert selected(BestFirst(4), probs, 12, limit) == selected(FullSearch(4), probs, 12, limit)
        for i, policy in enumerate((BestFirst(4), FullSearch(4))):
            stored[i] += propose(policy, probs, 12, limit).tree.num_nodes
    assert stored[0] < stored[1]


@pytest.mark.one_in(2)
def test_ties_go_to_the_older_node_as_in_the_full_search() -> None:
    for coarse in (1, 2, 3):

        def probs(text: tuple[int, ...], coarse: int = coarse) -> list[float]:
            weight = [1 + (sum(text) + i) % coarse for i in range(4)]
            return [w / sum(weight) for w in weight]

        for nodes in range(4, 40):
            limit = Limit.of([4], [nodes])
            assert selected(BestFirst(3), probs, 4, limit) == selected(FullSearch(3), probs, 4, limit), (coarse, nodes)


def test_rows_are_the_same_alone_and_beside_rows_of_other_sizes() -> None:
    probs, texts = random_probs(9, 3), [[1], [2, 3], [4], [5, 6], [7]]
    depth, nodes = [4, 1, 2, 0, 3], [3, 20, 8, 9, 0]
    together = selected(BestFirst(3), probs, 9, Limit.of(depth, nodes), texts)
    assert [max(map(len, row), default=0) <= d for row, d in zip(together, depth, strict=True)] == [True] * 5
    assert [len(row) for row in together] == [3, 3, 8, 0, 0]
    for row, text, d, n in zip(together, texts, depth, nodes, strict=True):
        assert [row] == selected(BestFirst(3), probs, 9, Limit.of([d], [n]), [text])


def test_growth_ends_when_no_path_can_win() -> None:
    even = context_free((0.25,) * 4)
    assert propose(BestFirst(4), even, 4, Limit.of([9], [4])).passes == 1
    assert propose(BestFirst(4), even, 4, Limit.of([9], [5])).passes == 2
    assert propose(BestFirst(4), context_free((0.97, 0.01, 0.01, 0.01)), 4, Limit.of([9], [4])).passes == 4


def test_tokens_without_probability_are_no_nodes() -> None:
    tree = propose(BestFirst(4), context_free((0.7, 0.0, 0.3, 0.0)), 4, Limit.of([3], [50])).tree
    assert set(tree.tokens[tree.live].tolist()[1:]) == {0, 2}
    sure = propose(BestFirst(4), context_free((0.0, 1.0, 0.0, 0.0)), 4, Limit.of([3], [50])).tree
    assert paths(sure, sure.live) == [(1,), (1, 1), (1, 1, 1)]


@pytest.mark.parametrize("each", [False, True], ids=["one list", "a list per row"])
def test_columns_are_mapped_to_their_tokens(each: bool) -> None:
    rnd, ids = toy_round([[1]], 9), torch.tensor([8, 3, 5])

    def step(tree: TokenTree, frontier: torch.Tensor) -> tuple[DraftProbs, None]:
        probs = torch.tensor([[0.2, 0.5, 0.3]]).expand(frontier.numel(), -1)
        return DraftProbs(probs, ids.expand_as(probs) if each else ids), None

    tree = grow(Proposal.roots(rnd.roots()), Limit.of([2], [9]), BestFirst(2), rnd, step).tree
    assert paths(tree, tree.live) == [(3,), (5,), (3, 3), (3, 5), (5, 3), (5, 5)]


def test_a_beam_of_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match="beam"):
        BestFirst(0)


def test_greedy_requests_get_a_tree_too() -> None:
    rnd, limit = toy_round([[1]], 3, temperature=0.0), Limit.of([3], [4])
    drafter = TableDrafter(context_free((0.6, 0.3, 0.1)))
    tree = drafter.propose(None, rnd, Proposal.roots(rnd.roots()), limit, BestFirst(2)).tree
    assert paths(tree, BestFirst(2).select(tree, limit)) == [(0,), (1,), (0, 0), (0, 0, 0)]
