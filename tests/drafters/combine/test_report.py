"""The report of a route says what the route itself compares: at the turning point of the report the choice turns."""

from typing import Any

import pytest

from draftwood.controllers.costs.cost import CostModel
from draftwood.core.host import put
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Times
from draftwood.drafters.combine.report import names, outlook
from draftwood.drafters.combine.route import Route
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.trees.best_first import BestFirst


def _cost() -> CostModel:
    """Passes of 4 ms and 1 ms a token, drafts of 0.5 ms a level."""
    cost = CostModel(forget=1.0)
    for _ in range(50):
        for tokens in (1, 2, 4, 8, 16):
            cost.observe(Times({"score": 4e-3 + 1e-3 * tokens}, tokens=tokens))
        for levels in (1, 2, 4, 8):
            cost.draft.observe(levels, levels, 5e-4 * levels)
    return cost


COST = _cost()


def priced(**params: Any) -> tuple[Route, Any, Round]:
    """A route after its costs were looked up once."""
    route = Route((NGram(),), Nothing(), copies=(4, 8))
    state = route.init(1)
    request = Request(0, [1, 2], SamplingParams(**params), 61)
    rnd = Round(put([0], "cpu"), put([2], "cpu"), (request,))
    assert outlook(route, state, rnd) is None, "before the first round nothing is known"
    chosen(route, state, rnd)
    return route, state, rnd


def chosen(route: Route, state: Any, rnd: Round) -> bool:
    """Whether the route asks its model in the next round: nothing is retrieved from a text of two different tokens."""
    state.followed.add(0)
    base = Proposal.roots(rnd.roots())
    route.propose(state, rnd, base, Limit.of([8], [8], cost_model=COST), BestFirst())
    return state.choices[0].model


def test_expectations_are_those_that_the_route_compares():
    route, state, rnd = priced()
    found = outlook(route, state, rnd)
    assert found is not None and found.model is not None
    ((accepted, nodes, draft),) = route.arm.expected(state.arm, rnd)
    assert (found.model.accepted, found.model.nodes, found.model.draft_seconds) == (accepted, nodes, draft)
    assert found.plain_rate == 1 / state.seconds[0]
    assert names(route) == ("NGram", "Nothing")


@pytest.mark.parametrize("side", [-0.05, 0.05])
def test_the_choice_turns_at_the_reported_number_of_accepted_tokens(side):
    route, state, rnd = priced()
    found = outlook(route, state, rnd)
    assert found is not None and found.model is not None
    yields = state.arm.kinds[0].yields
    yields.prior = yields.prior._replace(accepted=found.least_accepted(found.model.seconds) + side)
    assert chosen(route, state, rnd) == (side > 0)


@pytest.mark.parametrize("side", [-1e-4, 1e-4])
def test_and_at_the_reported_time_of_drafting(side):
    route, state, rnd = priced()
    found = outlook(route, state, rnd)
    assert found is not None and found.model is not None
    most = found.most_draft_seconds()
    assert most is not None
    state.arm.start += most + side - found.model.draft_seconds
    assert chosen(route, state, rnd) == (side < 0)


def test_where_the_head_does_not_follow_the_text_nothing_is_said_of_it():
    found = outlook(*priced(temperature=1.1))
    assert found is not None and found.model is None and found.most_draft_seconds() is None
