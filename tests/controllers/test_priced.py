"""Limits that carry costs."""

import pytest

from draftwood.controllers.cost import CostModel
from draftwood.controllers.priced import Priced
from draftwood.core.limit import Load
from draftwood.core.verdict import Times
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_controller, toy_round


def timed(tokens: int, seconds: float) -> Times:
    return Times({"score": seconds}, tokens=tokens)


def test_contract() -> None:
    check_controller(Priced(3, 5))


def test_costs_begin_with_timed_rounds_and_stay_with_every_cut_of_the_limit() -> None:
    controller = Priced(4, 6, (timed(1, 0.010), timed(4, 0.016)))
    rnd = toy_round([[1, 2], [3]], 10)
    limit = controller.plan(controller.init(2), rnd, Load(CostModel(), 2, 0, 3))
    for each in (limit, limit.take([1]), limit.at_most([1, 2], [3, 3])):
        assert each.cost_model is not None
        assert each.cost_model.pass_seconds(1) == pytest.approx(0.010)
        assert each.cost_model.pass_seconds(2) == pytest.approx(0.013)


def test_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError):
        Priced(-1, 4)
