"""Every way in which a proposal can be wrong is found, in its own row; good ones pass."""

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given as with_any
from hypothesis import settings
from hypothesis import strategies as st

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Inputs, Proposal
from draftwood.core.proposal_checks import (
    BAD_PROBS,
    OVER_BUDGET,
    REASONS,
    fault_codes,
    faults,
    is_valid,
    not_ahead,
    without_faults,
)
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import AHEAD, PROBE, TokenTree
from draftwood.errors import DrafterError
from draftwood.testing.contracts import toy_round
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import random_probs
from draftwood.trees.static import Static

VOCAB = 7
RND = toy_round([[1], [2, 3]], VOCAB)


def drawn(draw: Draw = Draw.IID) -> Proposal:
    """Two rows of

    0 ┬ 1 ─ 3
      └ 2 ─ 4      drawn from three distributions each: of the root, of 1 and of 2; 5 is dead
    """
    tree = TokenTree.roots(RND.roots())
    for parents, tokens in (((0, 0), (4, 5)), ((1, 2), (4, 6)), ((3,), (2,))):
        live = torch.full((2, len(parents)), parents != (3,))
        tree = tree.add(torch.tensor([parents] * 2), torch.tensor([tokens] * 2), live=live)
    distributions = torch.full((6, VOCAB), 1 / VOCAB)
    rows = torch.tensor([[0, 1, 2, -1, -1, -1], [3, 4, 5, -1, -1, -1]])
    return Proposal(tree, draw, q=DraftProbs(distributions), q_index=rows)


def given() -> Proposal:
    tree = drawn().tree
    return Proposal(replace(tree, copies=torch.zeros_like(tree.copies)))


def probing() -> Proposal:
    """Given trees of which nodes 2 and 4 are probes that enter by vectors; node 2 has its sibling's token."""
    tree = given().tree
    kinds, ids = torch.tensor([[0, 0, PROBE, 0, PROBE, 0]] * 2), torch.tensor([[1, 4, 4, 4, 6, 2], [3, 4, 4, 4, 6, 2]])
    inputs = Inputs(torch.zeros(2, 3), torch.tensor([[-1, -1, 0, -1, 1, -1]] * 2))
    return Proposal(replace(tree, tokens=ids, role=kinds), inputs=inputs)


def entering(node: int, value: int, vector: float = 0.0) -> Proposal:
    """The same with another input of a node in the second row, and another number in a vector that it alone names."""
    made = probing()
    assert made.inputs is not None
    index, vectors = made.inputs.index.clone(), torch.cat([made.inputs.vectors, torch.full((1, 3), vector)])
    index[1, node] = value
    return replace(made, inputs=Inputs(vectors, index))


def broken(name: str, node: int, value: float, proposal: Proposal | None = None) -> Proposal:
    """The second row spoilt in one place."""
    proposal = drawn() if proposal is None else proposal
    column = getattr(proposal.tree, name).clone()
    column[1, node] = value
    return replace(proposal, tree=replace(proposal.tree, **{name: column}))


@pytest.mark.parametrize("draw", [Draw.IID, Draw.DISTINCT])
def test_good_tree_passes(draw):
    assert faults(drawn(draw), RND, VOCAB) == {}


@pytest.mark.parametrize("draw", list(Draw))
def test_what_a_drafter_grows_passes(draw):
    limit = Limit.of([3, 3], [9, 9])
    drafter = TableDrafter(random_probs(VOCAB, 1))
    grown = drafter.propose(None, RND, Proposal.roots(RND.roots()), limit, Static((2, 2), draw=draw))
    assert grown.tree.num_nodes > 3 and faults(grown, RND, VOCAB) == {}


def test_bare_roots_pass():
    assert faults(Proposal.roots(RND.roots()), RND, VOCAB) == {}


def no_probs() -> Proposal:
    rows = drawn().q_indices().clone()
    rows[1, 2] = -1
    return replace(drawn(), q_index=rows)


@pytest.mark.parametrize(
    ("proposal", "reason"),
    [
        (broken("tokens", 0, 5), "the root is not the newest token"),
        (broken("live", 0, False), "the root is not the newest token"),
        (broken("parents", 0, 0), "the root has a parent"),
        (broken("parents", 3, 3), "a parent does not stand before its child"),
        (broken("parents", 1, 4), "a parent does not stand before its child"),
        (broken("parents", 4, -1), "a parent does not stand before its child"),
        (broken("live", 1, False), "a live node hangs below a dead one"),
        (broken("tokens", 2, 4), "two siblings carry the same token"),
        (broken("tokens", 4, VOCAB), "a token id is out of range"),
        (broken("tokens", 4, -1), "a token id is out of range"),
        (broken("copies", 2, -1), "a count of copies is absurd"),
        (broken("copies", 2, 5000), "a count of copies is absurd"),
        (broken("copies", 2, 2, drawn(Draw.DISTINCT)), "a count of copies is absurd"),
        (broken("copies", 2, 1, given()), "a count of copies is absurd"),
        (broken("score", 3, torch.nan), "a score is not a number"),
        (no_probs(), "a drawn node has no distribution"),
    ],
)  # fmt: skip
def test_fault_is_found_in_its_row(proposal, reason):
    assert faults(proposal, RND, VOCAB) == {1: reason}


@pytest.mark.parametrize(("name", "value"), [("tokens", 99), ("parents", 77), ("score", torch.nan)])
def test_dead_node_may_hold_anything(name, value):
    assert faults(broken(name, 5, value), RND, VOCAB) == {}


@pytest.mark.parametrize(("off", "wrong"), [(5e-5, False), (2e-4, True)])
def test_rounding_of_a_long_softmax_is_no_fault_and_more_is(off: float, wrong: bool) -> None:
    """float32 softmaxes of 49,152 logits were up to 1.3e-5 off."""
    made = drawn(Draw.DISTINCT)
    assert made.q is not None
    told = faults(replace(made, q=replace(made.q, prob=made.q.prob * (1 + off))), RND, VOCAB)
    assert bool(told) == wrong


def test_given_nodes_need_no_distribution():
    assert faults(given(), RND, VOCAB) == {}


def test_a_probe_with_an_input_of_its_own_may_have_the_token_of_a_sibling():
    assert faults(probing(), RND, VOCAB) == {} == codes_of(probing())
    twin = replace(probing(), inputs=None)
    assert set(faults(twin, RND, VOCAB).values()) == {"two siblings carry the same token"}


@pytest.mark.parametrize(
    ("proposal", "reason"),
    [
        (entering(4, 2), ""),
        (entering(4, 2, torch.inf), "not stored, or not a number"),
        (entering(4, 3), "not stored, or not a number"),
        (entering(1, 1), "is no probe"),
        (entering(0, 1), "is no probe"),
        (entering(5, 9), ""),  # dead
    ],
)
def test_an_input_of_a_nodes_own_is_a_number_and_only_a_probe_has_one(proposal, reason):
    told = faults(proposal, RND, VOCAB)
    assert told == codes_of(proposal) and set(told) == ({1} if reason else set()) and reason in told.get(1, "")


def test_inputs_without_a_place_for_each_node_are_the_drafters_error():
    with pytest.raises(DrafterError, match=r"inputs.index is torch.int64 \(2, 5\), expected int64 \(2, 6\)"):
        faults(replace(probing(), inputs=Inputs(torch.zeros(2, 3), torch.zeros(2, 5).long())), RND, VOCAB)


@pytest.mark.parametrize(("column", "value"), [(3, torch.nan), (3, -0.1), (3, 0.9)])
def test_distribution_that_is_no_probability_is_found_where_something_was_drawn_from_it(column, value):
    proposal = drawn()
    assert proposal.q is not None
    prob = proposal.q.prob.clone()
    prob[5, column] = value  # of node 2 in the second row
    spoilt = replace(proposal, q=DraftProbs(prob))
    assert faults(spoilt, RND, VOCAB) == {1: BAD_PROBS}
    assert (~is_valid(spoilt)).nonzero().tolist() == [[1, 4]]
    assert faults(spoilt.keep(torch.tensor([[True] * 6, [True] * 4 + [False] * 2])), RND, VOCAB) == {}


@pytest.mark.skipif(bool(os.environ.get("DRAFTWOOD_SHAPES")), reason="a wrong shape cannot even be made")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda: replace(drawn(), tree=drawn().tree.take(torch.tensor([0]))), "tree.tokens has shape"),
        (lambda: replace(drawn(), tree=replace(drawn().tree, copies=drawn().tree.copies[:, :3])), "tree.copies has shape"),
        (lambda: replace(drawn(), tree=replace(drawn().tree, parents=drawn().tree.parents.int())), "parents is torch.int32"),
        (lambda: replace(drawn(), tree=replace(drawn().tree, live=drawn().tree.live.int())), "live is torch.int32"),
        (lambda: replace(drawn(), passes=None), "passes cannot be None"),
        (lambda: replace(drawn(), pass_seconds="x"), "pass_seconds cannot be 'x'"),
        (lambda: replace(drawn(), q_index=drawn().q_indices()[:, :2]), "q_index has shape"),
        (lambda: replace(drawn(), q=DraftProbs(torch.ones(6, 4) / 4)), "distribution has 4 columns, the target 7 tokens"),
        (lambda: replace(drawn(), q=DraftProbs(torch.ones(6, 2) / 2, torch.tensor([0, 1, 2]))), r"name tokens \(3,\)"),
    ],
)  # fmt: skip
def test_shape_that_fits_no_row_is_the_drafters_error(changed, message):
    with pytest.raises(DrafterError, match=message):
        faults(changed(), RND, VOCAB)


def test_node_of_this_pass_below_one_of_the_next_is_found():
    wrong = broken("role", 1, AHEAD, given())
    assert faults(wrong, RND, VOCAB) == {1: "a node of this pass hangs below one of the next"}
    assert faults(broken("role", 3, AHEAD, given()), RND, VOCAB) == {}


# --- the same without a host read

NUMBERS = st.sampled_from([-2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 50, 5000])


@st.composite
def proposals(draw: st.DrawFn) -> Proposal:
    """Good trees of two sequences with up to four numbers changed into any others."""
    proposal = draw(st.sampled_from([drawn(Draw.IID), drawn(Draw.DISTINCT), given(), probing()]))
    columns = {name: getattr(proposal.tree, name).clone() for name in ("tokens", "parents", "live", "role", "copies")}
    columns |= {"score": proposal.tree.score.clone(), "q_index": proposal.q_indices().clone()}
    prob = None if proposal.q is None else proposal.q.prob.clone()
    if proposal.inputs is not None:
        columns["inputs"] = proposal.inputs.index.clone()
    for _ in range(draw(st.integers(0, 4))):
        name, b, i = draw(st.sampled_from([*columns, "prob"])), draw(st.integers(0, 1)), draw(st.integers(0, 5))
        if name == "prob":
            if prob is not None:
                prob[draw(st.integers(0, 5)), i] = draw(st.sampled_from([torch.nan, -0.1, 0.9]))
        elif name == "live":
            columns[name][b, i] = draw(st.booleans())
        elif name == "score":
            columns[name][b, i] = draw(st.sampled_from([torch.nan, -1.0]))
        else:
            columns[name][b, i] = draw(NUMBERS)
    q_index, index = columns.pop("q_index"), columns.pop("inputs", None)
    tree = replace(proposal.tree, **columns)
    if proposal.inputs is not None and index is not None:
        proposal = replace(proposal, inputs=replace(proposal.inputs, index=index))
    return replace(proposal, tree=tree, q=None if prob is None else DraftProbs(prob), q_index=q_index)


def codes_of(proposal: Proposal, in_flight: TokenTree | None = None) -> dict[int, str]:
    found = fault_codes(proposal, RND.roots(), VOCAB, in_flight).tolist()
    return {b: REASONS[code] for b, code in enumerate(found) if code}


@with_any(proposals())
@settings(max_examples=400, deadline=None)
@pytest.mark.slow
def test_both_ways_name_the_same_first_reason(proposal: Proposal) -> None:
    for in_flight in (None, drawn().tree):
        assert codes_of(proposal, in_flight) == faults(proposal, RND, VOCAB, in_flight)


@pytest.mark.parametrize(
    "proposal", [drawn(), given(), probing(), Proposal.roots(RND.roots()), no_probs(), broken("parents", 1, 4)]
)
def test_codes_need_no_host_read(proposal: Proposal) -> None:
    roots = RND.roots()
    with as_if_on_a_device(), HostReads() as reads:
        codes = fault_codes(proposal, roots, VOCAB, TokenTree.roots(roots))
        without_faults(proposal, codes, roots, VOCAB)
    assert reads.total == 0, reads.by_name


def test_every_reason_has_a_case() -> None:
    """The twin of the comparison above: what both ways could overlook together."""
    q = drawn().q
    assert q is not None
    spoilt = replace(drawn(), q=DraftProbs(q.prob * 2))
    ahead = broken("role", 1, AHEAD, given())
    nowhere = replace(drawn(), q_index=torch.where(drawn().q_indices() == 5, 6, drawn().q_indices()))
    foreign = replace(drawn(), q=DraftProbs(torch.ones(6, 2) / 2, torch.tensor([0, 7])))
    cases = [
        foreign, nowhere, entering(4, 3), entering(1, 1),
        broken("tokens", 0, 5), broken("parents", 0, 0), broken("copies", 2, -1), broken("tokens", 4, -1),
        broken("parents", 1, 4), broken("live", 1, False), ahead, broken("tokens", 2, 4), no_probs(),
        broken("score", 3, torch.nan), spoilt, drawn(),
    ]  # fmt: skip
    flying = [None] * 15 + [TokenTree.roots(RND.roots())]
    for case, flies, reason in zip(cases, flying, REASONS[1:OVER_BUDGET], strict=True):
        assert codes_of(case, flies)[1] == faults(case, RND, VOCAB, flies)[1] == reason


def test_a_tree_in_flight_may_only_get_nodes_for_the_next_round() -> None:
    base = drawn().tree
    at, token = torch.tensor([[2], [3]]), torch.tensor([[1], [2]])
    grown = base.add(at, token, live=torch.tensor([[True], [True]]), role=AHEAD)
    assert not_ahead(grown, base).tolist() == not_ahead(base, base).tolist() == [False, False]
    assert not_ahead(base.add(at, token, live=torch.tensor([[False], [True]])), base).tolist() == [False, True]
    other = grown.tokens.clone()
    other[0, 1] = (other[0, 1] + 1) % VOCAB
    assert not_ahead(replace(grown, tokens=other), base).tolist() == [True, False]
    with pytest.raises(DrafterError, match="came back"):
        not_ahead(base.resize(2), base)
    with as_if_on_a_device(), HostReads() as reads:
        not_ahead(grown, base)
    assert reads.total == 0, reads.by_name


@with_any(proposals())
@settings(max_examples=200, deadline=None)
@pytest.mark.slow
def test_what_is_left_is_good_and_in_range_everywhere(proposal: Proposal) -> None:
    roots = RND.roots()
    codes = fault_codes(proposal, roots, VOCAB)
    clean = without_faults(proposal, codes, roots, VOCAB)
    assert faults(clean, RND, VOCAB) == {}
    tree = clean.tree
    assert bool(((tree.tokens >= 0) & (tree.tokens < VOCAB)).all()) and tree.parents[:, 0].tolist() == [-1, -1]
    assert bool(((tree.parents[:, 1:] >= 0) & (tree.parents[:, 1:] < tree.num_nodes)).all())
    if clean.inputs is not None:
        assert (
            bool((clean.inputs.index < len(clean.inputs.vectors)).all())
            and clean.inputs.index[:, 0].tolist() == [-1] * 2
        )
    for b, reason in enumerate(REASONS[code] for code in codes.tolist()):
        if reason and reason != BAD_PROBS:
            assert tree.live[b].tolist() == [True] + [False] * 5
        else:  # only what was drawn from a bad distribution goes, with all that hangs below it
            kept = proposal.tree.keep(is_valid(proposal)) if proposal.q is not None else proposal.tree
            assert tree.live[b].tolist() == kept.live[b].tolist()


def test_tokens_outside_the_vocabulary_are_kept_out_of_reach() -> None:
    wild = replace(drawn(), q=DraftProbs(torch.ones(6, 2) / 2, torch.tensor([0, 70])))
    codes = fault_codes(wild, RND.roots(), VOCAB)
    clean = without_faults(wild, codes, RND.roots(), VOCAB)
    assert clean.q is not None and clean.q.ids is not None and int(clean.q.ids.max()) < VOCAB
    assert clean.tree.num_drafted().tolist() == [0, 0] and bool((clean.q_indices() == -1).all())
