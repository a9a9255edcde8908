"""A plan's stages share its steps, and rates warm up and fall."""

from typing import Any

import pytest

from draftwood.core.train_plan import Build, Learn, Made, Rate, TrainPlan
from draftwood.train.loop.stages import rate_at, stage_at

WHO: Any = None


def test_every_step_belongs_to_one_stage_and_the_last_takes_what_is_left() -> None:
    one, two = Learn(WHO, share=0.2), Learn(WHO, share=0.8)
    plan = TrainPlan((Build(lambda texts: Made({})), one, two))
    found = [stage_at(plan, step, 11) for step in range(11)]
    assert [f[0] is one for f in found if f] == [True] * 2 + [False] * 9
    assert stage_at(plan, 0, 11) == (one, 0, 2) and stage_at(plan, 10, 11) == (two, 2, 11)
    assert stage_at(plan, 11, 11) is None and stage_at(TrainPlan(()), 0, 5) is None


def test_very_few_steps_leave_a_stage_out() -> None:
    one, two = Learn(WHO, share=0.2), Learn(WHO, share=0.8)
    found = stage_at(TrainPlan((one, two)), 0, 1)
    assert found is not None and found[0] is two


def test_rate_warms_up_and_falls_to_its_floor() -> None:
    rate = Rate(peak=2.0, warmup=0.1, floor=0.25)
    rising = [rate_at(rate, x / 100) for x in range(11)]
    falling = [rate_at(rate, x / 100) for x in range(10, 101)]
    assert rising == sorted(rising) and 0 < rising[0] < 0.1 and falling == sorted(falling, reverse=True)
    assert rate_at(rate, 0.1) == pytest.approx(2.0) and rate_at(rate, 1.0) == pytest.approx(0.5)
