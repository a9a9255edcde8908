"""Levels grow in known shapes without host reads, and the trees are those of a CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.tree import TokenTree
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.trees import stochastic_beam, threshold
from draftwood.trees.best_and_one import BestAndOne
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.delayed import Delayed
from draftwood.trees.grow import grow
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.opt_tree import OptTree
from draftwood.trees.paths import Paths
from draftwood.trees.ranked_chain import RankedChain
from draftwood.trees.shaped import Shaped
from draftwood.trees.spread import joined
from draftwood.trees.static import Static
from draftwood.trees.stochastic_beam import StochasticBeam
from draftwood.trees.threshold import Threshold
from every_rule import label, policies_in_folder

VOCAB = 12
TABLE = torch.softmax(2.5 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(5)), dim=1)
TABLE[3] = torch.eye(VOCAB)[4]  # one token alone: a draw without replacement ends behind it
POLICIES = [
    Chain(),
    Chain(Draw.GIVEN),
    RankedChain(),
    RankedChain(Draw.GIVEN),
    *(Static((3, 2, 1), draw) for draw in Draw),
    BestAndOne((3, 1, 2)),
    BestFirst(),
    BestFirst(3),
    OptTree(0.1),
    Paths(3),
    Delayed(1, 3),
    Shaped((0, 0, 0, 1, 1, 2, 4)),
    StochasticBeam(3),
    MostValuableFirst(1),
    MostValuableFirst(3),
    Threshold(0.02),
]
LIMITS = [([4, 4, 4, 4], [9, 9, 9, 9]), ([4, 1, 2, 3], [9, 3, 2, 8]), ([2, 3, 0, 1], [4, 0, 7, 1])]
TEMPERATURES = [(1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.7, 0.0)]

each_policy = pytest.mark.parametrize("policy", POLICIES, ids=label)


@pytest.fixture(autouse=True)
def some_asks_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """`some` reads nothing on an accelerator; here it has to take the CPU for one."""
    from draftwood.core import host

    for module in (stochastic_beam, threshold):
        monkeypatch.setattr(module, "some", lambda mask: not host.on_host(mask.device) or bool(mask.any()))


def a_round(temperatures: tuple[float, ...]) -> Round:
    requests = tuple(
        Request(i, [1 + i], SamplingParams(temperature=t, seed=i), VOCAB) for i, t in enumerate(temperatures)
    )
    return Round(torch.arange(len(requests)), torch.ones(len(requests), dtype=torch.int64), requests)


def propose(policy: Any, limit: Limit, rnd: Round, ids: Tensor | None = None) -> Proposal:
    """A draft whose distributions depend on the newest token, over some columns or all."""

    def step(tree: TokenTree, frontier: Tensor) -> tuple[DraftProbs, None]:
        logits = TABLE[tree.tokens.gather(1, frontier.clamp_min(0))].log()
        logits = logits if ids is None else logits[..., ids]
        probs = rnd.probs(logits, tree, frontier.clamp_min(0), ids, ranked=policy.draw.ranked)
        return DraftProbs(probs.flatten(0, 1), ids), None

    return grow(Proposal.roots(rnd.roots()), limit, policy, rnd, step)


def kept_nodes(policy: Any, limit: Limit, made: Proposal) -> list[list[Any]]:
    """The nodes that are selected of each sequence: their paths in order, copies, scores and child distributions."""
    kept = policy.select(made.tree, limit)
    assert bool((kept <= made.tree.live).all())
    nodes = torch.arange(made.tree.num_nodes).expand(made.tree.batch, -1)
    paths = made.tree.path_tokens(nodes).tolist()
    found: list[list[Any]] = []
    for b, own in enumerate(paths):
        found.append([])
        for i in kept[b].nonzero()[:, 0].tolist():
            place = int(made.q_indices()[b, i])
            probs = None if place < 0 or made.q is None else made.q.prob[place].tolist()
            # A leaf that was not run has no distribution on either path; one that was run may have lost its children.
            has = bool((kept[b] & (made.tree.parents[b] == i)).any())
            path = tuple(t for t in own[i] if t >= 0)
            # Lists add scores in double precision.
            score = round(float(made.tree.score[b, i]), 5)
            found[b].append((path, int(made.tree.copies[b, i]), score, probs if has else None))
    return found


@pytest.mark.one_in(17)
@each_policy
@pytest.mark.parametrize(("depths", "nodes"), LIMITS)
@pytest.mark.parametrize("temperatures", TEMPERATURES)
def test_the_same_tree_grows_without_a_host_read(policy: Any, depths: Any, nodes: Any, temperatures: Any) -> None:
    limit, rnd = Limit.of(depths, nodes), a_round(temperatures)
    plain = kept_nodes(policy, limit, propose(policy, limit, rnd))
    assert sum(map(len, plain)) > 4
    with as_if_on_a_device():
        with HostReads() as reads:
            made = propose(policy, limit, rnd)
            policy.select(made.tree, limit)
        assert kept_nodes(policy, limit, made) == plain
    assert reads.total == 0, reads.by_name


@each_policy
def test_columns_are_mapped_to_their_tokens_on_both_paths(policy: Any) -> None:
    limit, rnd, ids = Limit.of([3] * 4, [6] * 4), a_round((1.0, 0.0, 1.0, 1.0)), torch.tensor([2, 3, 4, 7, 9, 11])
    plain = kept_nodes(policy, limit, propose(policy, limit, rnd, ids))
    with as_if_on_a_device():
        assert kept_nodes(policy, limit, propose(policy, limit, rnd, ids)) == plain
    assert {t for own in plain for path, *_ in own for t in path} <= set(ids.tolist())


@each_policy
def test_shapes_come_from_the_limit_alone(policy: Any) -> None:
    """So a graph of operations that was recorded once serves every text."""
    limit = Limit.of([3, 2, 3, 1], [7, 4, 7, 2])
    shapes: set[Any] = set()
    for text in range(4):
        rnd = a_round((1.0,) * 4)
        for i, request in enumerate(rnd.requests):
            request.output.append((3 * text + i) % VOCAB)
        frontiers: list[Any] = []

        def step(tree: TokenTree, frontier: Tensor, frontiers: list[Any] = frontiers) -> tuple[DraftProbs, None]:
            frontiers.append((tree.num_nodes, *frontier.shape))
            return DraftProbs(TABLE[tree.tokens.gather(1, frontier.clamp_min(0))].flatten(0, 1)), None

        with as_if_on_a_device():
            made = grow(Proposal.roots(rnd.roots()), limit, policy, rnd, step)
        shapes.add((*frontiers, made.tree.num_nodes, made.passes))
    assert len(shapes) == 1


@each_policy
@pytest.mark.parametrize("on_device", [False, True])
def test_bounds_of_a_proposal_hold(policy: Any, on_device: bool) -> None:
    limit, rnd = Limit.of([4, 1, 2, 3], [9, 3, 2, 8]), a_round((1.0, 1.0, 0.0, 1.0))
    if on_device:
        with as_if_on_a_device():
            made = propose(policy, limit, rnd)
    else:
        made = propose(policy, limit, rnd)
    tree = made.tree
    assert made.max_depth == 4 and int((tree.depths() * tree.live).max()) <= made.levels
    below = torch.zeros_like(tree.tokens).scatter_add(
        1, tree.parents.clamp_min(0), torch.where(tree.live & (tree.parents >= 0), tree.copies.clamp_min(1), 0)
    )
    assert made.max_children == policy.max_children(limit) == made.siblings
    assert int(below.max()) <= made.siblings


def test_bounds_of_a_base_are_added() -> None:
    """Growth may begin at a root that has children already."""
    rnd, limit = a_round((1.0,) * 4), Limit.of([2] * 4, [4] * 4)
    base = Proposal.roots(rnd.roots()).with_given([[7, 8]] * 4, [[0, 1]] * 4, [[0.0, 0.0]] * 4)

    def step(tree: TokenTree, frontier: Tensor) -> tuple[DraftProbs, None]:
        return DraftProbs(TABLE[tree.tokens.gather(1, frontier.clamp_min(0))].flatten(0, 1)), None

    made = grow(base, limit, Static((2, 1)), rnd, step)
    assert (made.max_depth, made.max_children) == (4, 4) and made.tree.num_nodes == 3 + 4


def test_no_policy_is_left_out() -> None:
    assert {type(policy).__name__ for policy in POLICIES} == policies_in_folder()


@pytest.mark.parametrize(
    ("policy", "passes"),
    [(Static((2, 2)), 2), (Static((2, 2), Draw.IID), 1), (BestAndOne((2,)), 1), (Shaped((0, 1)), 2), (Chain(), 4)],
    ids=str,
)
@pytest.mark.parametrize("on_device", [False, True])
def test_no_pass_is_run_over_nodes_that_can_have_no_children(policy: Any, passes: int, on_device: bool) -> None:
    rnd, limit = a_round((1.0,)), Limit.of([9], [4])
    if not on_device:
        assert propose(policy, limit, rnd).passes == passes
        return
    with as_if_on_a_device():
        assert propose(policy, limit, rnd).passes == passes


def test_a_greedy_chain_asks_for_no_random_number() -> None:
    """Of the operations of a level drawing takes most; a greedy batch draws nothing."""

    class Silent:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for a {name}")

    for policy in (Chain(), Chain(Draw.GIVEN), Paths(3), Static((2, 2)), Static((2, 2), Draw.IID)):
        rnd = a_round((0.0,) * 4)
        rnd.noise = Silent()  # type: ignore[assignment]
        with as_if_on_a_device():
            made = propose(policy, Limit.of([2] * 4, [6] * 4), rnd)
        assert made.q is None and bool(made.tree.live[:, 1].all())


def test_distributions_of_all_levels_are_joined_once() -> None:
    parts = tuple(DraftProbs(torch.full((n, 2), float(n))) for n in (1, 2, 3))
    whole = joined(parts)
    assert whole is not None and whole.prob[:, 0].tolist() == [1, 2, 2, 3, 3, 3] and whole.ids is None
    assert joined(()) is None and joined(parts[:1]) is parts[0]
    named = joined((parts[0], DraftProbs(torch.ones(1, 2), torch.tensor([[5, 7]]))))
    assert named is not None and named.ids is not None and named.ids.tolist() == [[0, 1], [5, 7]]
