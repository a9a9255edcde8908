"""What is selected without a host read is what the host selects, and faults are returned as numbers."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.core import host
from draftwood.core.competition import Correction, Price
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Inputs, Proposal, Started
from draftwood.core.proposal_checks import OVER_BUDGET, REASONS, faults
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import AHEAD, PROBE, TokenTree
from draftwood.engine.drafting import _selected
from draftwood.engine.selecting import check_inputs, select_on_device
from draftwood.errors import DrafterError
from draftwood.testing.contracts import toy_round
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import random_probs
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static

VOCAB = 7
RND = toy_round([[1], [2, 3], [4, 0], [5]], VOCAB)
POLICIES = [
    Chain(), Chain(draw=Draw.GIVEN), BestFirst(3), Static((2, 2)), Static((3, 2), Draw.IID), Static((3, 2), Draw.GIVEN),
    Paths(2),
]  # fmt: skip
COLUMNS = ("tokens", "parents", "live", "role", "copies", "score", "source")


class Sealed:
    """A runner's `captured`, strict: inside nothing is put on the device and nothing is read."""

    def __init__(self) -> None:
        self.keys: list[Any] = []

    def captured(self, key: Any, function: Any, *inputs: torch.Tensor) -> Any:
        self.keys.append(hash(key))
        with host.sealed(), HostReads() as reads:
            found = function(*inputs)
        assert reads.total == 0, reads.by_name
        return found


def engine(policy: Any) -> Any:
    recipe = SimpleNamespace(policy=policy)
    return SimpleNamespace(info=SimpleNamespace(vocab_size=VOCAB), recipe=recipe, runner=Sealed())


def drafted(policy: Any, limit: Limit) -> Proposal:
    return TableDrafter(random_probs(VOCAB, 3)).propose(None, RND, Proposal.roots(RND.roots()), limit, policy)


def unread(e: Any, proposal: Proposal, limit: Limit) -> tuple[Proposal, list[int]]:
    with as_if_on_a_device():
        found, codes = select_on_device(e, e.recipe.policy, proposal, RND.roots(), limit)
    return found, codes.tolist()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{type(policy).__name__}-{policy.draw.value}")
@pytest.mark.parametrize("total", [None, 6])
def test_a_selection_without_a_host_read_is_that_of_the_host(policy: Any, total: int | None) -> None:
    limit = Limit.of([2, 1, 2, 2], [6, 3, 2, 8], total=total)
    proposal, e = drafted(policy, limit), engine(policy)
    right = _selected(e.recipe.policy, proposal, limit)
    found, codes = unread(e, proposal, limit)
    assert codes == [0] * 4
    nodes = right.tree.num_nodes
    assert found.tree.num_nodes <= limit.tier.nodes and not found.tree.live[:, nodes:].any()
    live = right.tree.live
    assert torch.equal(found.tree.live[:, :nodes], live)
    for name in COLUMNS:
        ours, theirs = getattr(found.tree, name)[:, :nodes], getattr(right.tree, name)
        assert torch.equal(ours[live], theirs[live]), name
    assert torch.equal(found.q_indices()[:, :nodes][live], right.q_indices()[live])
    assert found.depths is not None and torch.equal(found.depths[:, :nodes][live], right.tree.depths()[live])
    if right.q is not None:
        assert found.q is not None and torch.equal(found.q.prob, right.q.prob)


@pytest.mark.parametrize("policy", [Chain(), BestFirst(3)], ids=lambda policy: type(policy).__name__)
def test_prices_and_corrections_are_inputs_of_the_same_function(policy: Any) -> None:
    e, limit, sizes = engine(policy), Limit.of([2, 1, 2, 2], [6, 3, 2, 8]), list[int]()
    for node, shift in ((0.01, 0.0), (0.1, 2.0), (0.4, -1.0)):
        correction = Correction(torch.ones(1), torch.full((4, 1, 2), shift))
        priced = replace(limit, price=Price(1 + node * torch.arange(20.0), 4), correction=correction)
        proposal = drafted(policy, priced)
        right = _selected(e.recipe.policy, proposal, priced).tree
        found, codes = unread(e, proposal, priced)
        assert codes == [0] * 4 and torch.equal(found.tree.live[:, : right.num_nodes], right.live)
        sizes.append(int(right.live.sum()))
    assert len(set(e.runner.keys)) == 1 and len(set(sizes)) > 1


def test_one_function_serves_every_round_of_a_size_and_no_other() -> None:
    """What is captured once must not depend on anything that its key and its inputs do not say."""
    policy = BestFirst(3)
    e = engine(policy)
    for limit in (Limit.of([2] * 4, [6] * 4), Limit.of([2] * 4, [6] * 4), Limit.of([2] * 4, [5] * 4)):
        unread(e, drafted(policy, limit), limit)
    first, second, third = e.runner.keys
    assert first == second != third


def test_a_faulty_draft_becomes_a_bare_root_and_the_others_stay() -> None:
    policy, limit = Chain(draw=Draw.GIVEN), Limit.of([2] * 4, [2] * 4)
    proposal = drafted(policy, limit)
    tokens, parents, score = (getattr(proposal.tree, name).clone() for name in ("tokens", "parents", "score"))
    tokens[1, 2], parents[2, 1], score[3, 1] = 5000, 2, torch.nan
    spoiled = replace(proposal, tree=replace(proposal.tree, tokens=tokens, parents=parents, score=score))
    found, codes = unread(engine(policy), spoiled, limit)
    assert {b: REASONS[code] for b, code in enumerate(codes) if code} == faults(spoiled, RND, VOCAB)
    assert found.tree.live.sum(1).tolist() == [3, 1, 1, 1]
    assert torch.equal(found.tree.tokens[0], proposal.tree.tokens[0])
    assert (found.tree.tokens < VOCAB).all() and (found.tree.parents < 3).all(), "dead nodes lead nowhere"


def test_a_bad_distribution_costs_what_was_drawn_from_it_alone() -> None:
    policy, limit = Chain(), Limit.of([2] * 4, [2] * 4)
    proposal = drafted(policy, limit)
    assert proposal.q is not None
    prob = proposal.q.prob.clone()
    prob[proposal.q_indices()[1, 1]] *= 2  # below the first node of the second sequence
    found, codes = unread(engine(policy), replace(proposal, q=DraftProbs(prob, proposal.q.ids)), limit)
    assert found.tree.live.sum(1).tolist() == [3, 2, 3, 3] and [bool(code) for code in codes] == [
        False,
        True,
        False,
        False,
    ]


@dataclass(frozen=True)
class Greedy(Chain):
    """A policy that cuts nothing."""

    def select(self, tree: TokenTree, limit: Limit) -> Any:
        return tree.live


def test_more_nodes_than_were_reserved_are_refused() -> None:
    policy, limit = Greedy(draw=Draw.GIVEN), Limit.of([3] * 4, [3] * 4)
    proposal, small = drafted(policy, limit), Limit.of([3] * 4, [3, 3, 2, 3])
    with pytest.raises(DrafterError, match="nodes were kept"):
        _selected(policy, proposal, small)
    found, codes = unread(engine(policy), proposal, small)
    assert codes == [0, 0, OVER_BUDGET, 0]
    assert found.tree.live.sum(1).tolist() == [4, 4, 1, 4]
    role = proposal.tree.role.clone()
    role[2, 3] = PROBE  # never accepted, but in the pass: it needs an entry like any other
    probing = replace(proposal, tree=replace(proposal.tree, role=role))
    with pytest.raises(DrafterError, match="nodes were kept"):
        _selected(policy, probing, small)
    assert unread(engine(policy), probing, small)[1] == [0, 0, OVER_BUDGET, 0]
    role[2, 3] = AHEAD  # of the next pass
    found, codes = unread(engine(policy), replace(proposal, tree=replace(proposal.tree, role=role)), small)
    assert codes == [0] * 4 and found.tree.live.sum(1).tolist() == [4] * 4


def probing(width: int = 3) -> Proposal:
    """A tree of which the last node of every sequence is a probe that enters by a vector of its own."""
    limit = Limit.of([2] * 4, [6] * 4)
    made = drafted(Static((2, 2), Draw.GIVEN), limit)
    live, last = made.tree.live, made.tree.live.long().cumsum(1).argmax(1)[:, None]
    probe = (torch.arange(made.tree.num_nodes) == last) & live
    tree = replace(made.tree, role=torch.where(probe, PROBE, made.tree.role))
    return replace(made, tree=tree, inputs=Inputs(torch.ones(1, width), probe.long() - 1))


def test_inputs_of_probes_are_moved_with_their_nodes() -> None:
    policy, limit = Static((2, 2), Draw.GIVEN), Limit.of([2] * 4, [3, 6, 3, 6])
    e, proposal = engine(policy), probing()
    right = _selected(e.recipe.policy, proposal, limit)
    found, codes = unread(e, proposal, limit)
    assert codes == [0] * 4 and found.inputs is not None and right.inputs is not None
    width = right.tree.num_nodes
    assert torch.equal(found.inputs.index[:, :width], right.inputs.index)
    assert right.inputs.index.amax(1).tolist() == [-1, 0, -1, 0], "the last node is cut where there is no room for it"
    assert torch.equal(right.inputs.index >= 0, right.tree.live & (right.tree.role == PROBE))


def test_inputs_that_do_not_fit_the_target_are_the_drafters_error() -> None:
    e = SimpleNamespace(info=SimpleNamespace(hidden_size=3))
    check_inputs(e, probing())  # type: ignore[arg-type]
    with pytest.raises(DrafterError, match=r"inputs of shape \(1, 4\), those of the target are 3 wide"):
        check_inputs(e, probing(4))  # type: ignore[arg-type]
    hidden = torch.zeros(4, probing().tree.num_nodes, 3)
    with pytest.raises(DrafterError, match="layers are started has inputs"):
        check_inputs(e, replace(probing(), started=Started(1, hidden)))  # type: ignore[arg-type]
