"""What drafting saved is counted against measured rounds without it."""

import pytest

from draftwood import recipes
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Times
from draftwood.engine.saved import PlainRounds
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve


def requests(count: int) -> list[Request]:
    return [Request(i, [1], SamplingParams(), 9) for i in range(count)]


def plain(seconds: float, looked: float = 0.0) -> Times:
    return Times({"score": seconds, "propose": looked})


def drafted(seconds: float) -> Times:
    return Times({"score": seconds}, draft_passes=1, draft_nodes=3)


def test_a_draft_saves_the_plain_rounds_its_tokens_would_have_taken() -> None:
    rounds, both = PlainRounds(), requests(2)
    rounds.count(both, [3, 1], drafted(0.02))
    assert [r.stats.saved_ms for r in both] == [None, None], "nothing is known before a plain round"
    rounds.count(both, [1, 1], plain(0.01))
    assert [r.stats.saved_ms for r in both] == [0.0, 0.0]
    rounds.count(both, [3, 1], drafted(0.02))
    assert [r.stats.saved_ms for r in both] == pytest.approx([10.0, -10.0])


def test_looking_in_vain_costs_what_it_took() -> None:
    rounds, one = PlainRounds(), requests(1)
    rounds.count(one, [1], plain(0.01, looked=0.002))
    assert one[0].stats.saved_ms == pytest.approx(-2.0) and rounds.seconds(1) == pytest.approx(0.01)


def test_rounds_that_read_prompts_are_not_counted() -> None:
    rounds, one = PlainRounds(), requests(1)
    rounds.count(one, [1], plain(0.01))
    rounds.count(one, [4], Times({"score": 9.0}, draft_nodes=3, prompt_tokens=7))
    assert one[0].stats.saved_ms == 0.0


def test_batches_between_measured_ones_are_interpolated_and_far_ones_unknown() -> None:
    rounds = PlainRounds()
    rounds.observe(4, 0.01)
    rounds.observe(8, 0.02)
    assert rounds.seconds(6) == pytest.approx(0.015) and rounds.seconds(16) == pytest.approx(0.02)
    assert rounds.seconds(17) is None and rounds.seconds(1) is None and PlainRounds().seconds(1) is None


def test_a_busy_moment_counts_three_times_the_mean_at_most() -> None:
    rounds = PlainRounds()
    for _ in range(10):
        rounds.observe(1, 0.01)
    rounds.observe(1, 5.0)
    assert rounds.seconds(1) == pytest.approx(0.012)


def test_every_request_of_a_recipe_that_decodes_plainly_now_and_then_has_the_figure() -> None:
    target = tiny_runner(2)
    done = serve(
        make_engine(target, recipes.build("prompt_lookup", target)), [[1, 2, 3], [4]], SamplingParams(max_tokens=20)
    )
    assert all(r.stats.saved_ms is not None for r in done)
    done = serve(make_engine(target, recipes.build("autoregressive", target)), [[1, 2]], SamplingParams(max_tokens=9))
    assert done[0].stats.saved_ms is not None and done[0].stats.saved_ms <= 0
