"""The search for skipped sub-layers: seeds, children, predictions by hand, and a log that it goes on from."""

import json
from pathlib import Path

import pytest

from draftwood.drafters.layers.skip_set import SkipSet
from draftwood.errors import OptionError
from draftwood.search.skip_objective import Measured, Predicted, measure, predict
from draftwood.search.skip_search import Log, Tried, evaluations, first_sets, middle, next_set
from draftwood.search.sub_layer_costs import RoundCosts, SubLayerCosts, round_costs, sub_layer_costs
from draftwood.testing.parts.tiny import tiny_runner

COSTS = RoundCosts(SubLayerCosts(1.0, 2.0, 4.0, 10), (40.0, 41.0, 42.0), 1.0)


def judged(skip: SkipSet) -> Tried:
    """Attentions of even layers are worth leaving out, everything else is not."""
    good = sum(1 if i % 2 == 0 else -1 for i in skip.attention) - len(skip.mlp)
    return Tried(skip, Measured((0.5,), 3, 9), Predicted(1, 100.0 + good, 1 + good / 100))


def test_costs_add_up() -> None:
    assert COSTS.draft.seconds(SkipSet()) == 34 and COSTS.draft.seconds(SkipSet.of([1, 2], [3])) == 30
    assert RoundCosts.of(json.loads(json.dumps(COSTS.record()))) == COSTS


def test_predictions_follow_the_hand_calculation() -> None:
    """Plain: 1 / 41. Depth 1: 1.5 / (41 + 30 + 1); depth 2: 1.75 / (42 + 60 + 1)."""
    found = predict(Measured((0.5, 0.25), 10, 30), SkipSet.of([1, 2], [3]), COSTS)
    assert found.depth == 1 and found.tokens_per_second == pytest.approx(1.5 / 72)
    assert found.speed_up == pytest.approx(1.5 / 72 * 41)


def test_seeds_keep_both_ends() -> None:
    for layers in (1, 2, 4, 12, 30):
        for each in first_sets(layers):
            assert (each.attention | each.mlp) <= set(middle(layers)) and each.check(layers)
    assert middle(30) == range(3, 27) and middle(4) == range(1, 3) and middle(2) == range(2)


def test_it_climbs_and_tries_nothing_twice(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl", {"seed": 1}, 12, lambda: COSTS)
    tried = list(evaluations(log, 12, 200, 1, judged))
    assert len({each.skip for each in tried}) == len(tried) == 200
    best = max(tried, key=lambda t: t.predicted.tokens_per_second)
    assert best.skip == SkipSet.of(i for i in middle(12) if i % 2 == 0)


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = [each.skip for each in evaluations(Log(tmp_path / "a", {"seed": 3}, 12, lambda: COSTS), 12, 30, 3, judged)]
    path = tmp_path / "b"
    for _ in zip(range(13), evaluations(Log(path, {"seed": 3}, 12, lambda: COSTS), 12, 30, 3, judged), strict=False):
        pass
    with path.open("a") as file:
        file.write('{"skip": "a3", "meas')  # killed while it wrote
    other = RoundCosts(COSTS.draft, (1.0, 1.0, 1.0), 0.0)
    log = Log(path, {"seed": 3}, 12, lambda: other)
    assert len(log.tried) == 13 and log.costs == COSTS, "costs are those of the first run"
    list(evaluations(log, 12, 30, 3, judged))
    assert [each.skip for each in Log(path, {"seed": 3}, 12, lambda: other).tried] == whole


def test_a_log_of_another_search_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    Log(path, {"seed": 3, "target": "x"}, 12, lambda: COSTS)
    with pytest.raises(OptionError, match="another search: seed 3 then, 4 now"):
        Log(path, {"seed": 4, "target": "x"}, 12, lambda: COSTS)
    for content in ("hello\n", "{}\n", '{"seed": 3}\n'):
        path.write_text(content)
        with pytest.raises(OptionError, match="is no log of a search"):
            Log(path, {"seed": 3}, 12, lambda: COSTS)
    kept = Log(tmp_path / "c", {"seed": 1}, 12, lambda: COSTS)
    kept.add(judged(SkipSet.of([1])))
    kept.add(judged(SkipSet.of([2])))
    lines = kept.path.read_text().splitlines()
    kept.path.write_text("\n".join([lines[0], "not json", lines[2]]) + "\n")
    with pytest.raises(OptionError, match="is no log of a search"):
        Log(kept.path, {"seed": 1}, 12, lambda: COSTS)


def test_a_log_whose_last_line_is_not_ended_or_comes_twice_is_mended(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", {"seed": 1}, 12, lambda: COSTS)
    for i in (4, 5):
        log.add(judged(SkipSet.of([i])))
    text = log.path.read_text()
    log.path.write_text(text + text.splitlines()[-1])
    again = Log(log.path, {"seed": 1}, 12, lambda: COSTS)
    assert [each.skip for each in again.tried] == [SkipSet.of([4]), SkipSet.of([5])] and log.path.read_text() == text
    log.path.write_text(text[:-1])
    Log(log.path, {"seed": 1}, 12, lambda: COSTS).add(judged(SkipSet.of([6])))
    assert len(Log(log.path, {"seed": 1}, 12, lambda: COSTS).tried) == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"skip": "a4"', '"skip": 3'),
        ('"skip": "a4"', '"skip": "a99"'),
        ('"tokens_per_second": 101.0', '"tokens_per_second": null'),
        ('"tokens_per_second": 101.0', '"tokens_per_second": Infinity'),
        ('"survival": [0.5]', '"survival": []'),
        ('"depth": 1', '"depth": -3'),
        ('"passes": [40.0', '"passes": ["x"'),
        ('"passes": [40.0, 41.0, 42.0]', '"passes": []'),
        ('"rest": 1.0}', '"rest": "x"}'),
        ('"skip": "a4"', '"skip": "\udcff"'),
    ],
)
def test_what_is_wrong_in_a_log_is_said_with_its_line(tmp_path: Path, old: str, new: str) -> None:
    log = Log(tmp_path / "log", {"seed": 1}, 12, lambda: COSTS)
    for i in (4, 5):
        log.add(judged(SkipSet.of([i])))
    text = log.path.read_text()
    assert old in text
    log.path.write_bytes(text.replace(old, new, 1).encode(errors="surrogateescape"))
    with pytest.raises(OptionError, match=r"is no log of a search: line [12]: "):
        Log(log.path, {"seed": 1}, 12, lambda: COSTS)


def test_one_search_at_a_time_writes_a_log(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", {"seed": 1}, 12, lambda: COSTS)
    other = Log(tmp_path / "log", {"seed": 1}, 12, lambda: COSTS)
    with log.alone(), pytest.raises(OptionError, match="another search is writing"), other.alone():
        pass
    with other.alone():
        pass


def test_a_small_model_runs_out_of_sets() -> None:
    tried: list[Tried] = []
    while (skip := next_set(tried, 3, 0)) is not None:
        tried.append(judged(skip))
    assert len({each.skip for each in tried}) == len(tried) == 4, "one middle layer with two sub-layers"


def test_acceptance_is_measured_on_the_target() -> None:
    target, prompts = tiny_runner(), [[1, 2, 3], [4, 5]]
    none = measure(target, SkipSet(), prompts, 3, 10)
    assert none.survival == (1.0, 1.0, 1.0) and none.tokens == 20
    some = measure(target, SkipSet.of([1, 2], [2]), prompts, 3, 10)
    assert 0 <= some.survival[2] <= some.survival[1] <= some.survival[0] < 1 and some == measure(
        target, SkipSet.of([1, 2], [2]), prompts, 3, 10
    )


def test_costs_are_timed_on_the_target() -> None:
    target = tiny_runner()
    costs, draft = round_costs(target, 3), sub_layer_costs(target)
    assert len(costs.passes) == 4 and min(costs.passes) > 0 and draft.seconds(SkipSet()) > 0
    assert draft.seconds(SkipSet.of(range(4), range(4))) <= draft.seconds(SkipSet())
