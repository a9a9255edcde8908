"""Costs: a trace's own rounds give back their time, and other machines can be spelt out, read or remembered."""

import json
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from draftwood.bench.trace import costs
from draftwood.bench.trace.costs import chosen, fitted, spelt
from draftwood.bench.trace.records import RoundRecord
from draftwood.bench.trace.summary import measured, priced
from draftwood.core.verdict import Times
from draftwood.errors import OptionError
from draftwood.kernels.cpu.processor import processor_name
from recorded_runs import traced


def with_times(rounds: list[RoundRecord], seed: int = 0, noise: float = 0.3) -> list[RoundRecord]:
    """The same rounds on a machine whose passes cost 5 ms and 0.4 ms a token, with slow moments."""
    rng = random.Random(seed)

    def slow() -> float:
        return 1 + noise * rng.random() + (5 if noise and rng.random() < 0.04 else 0)

    found: list[RoundRecord] = []
    for each in rounds:
        t = each.times
        seconds = {
            "score": (5e-3 + 4e-4 * t.tokens + 1e-6 * t.context) * slow(),
            "propose": 2e-4 * slow(),
            "emit": 5e-4 * slow(),
        }
        found.append(replace(each, times=replace(t, seconds=seconds)))
    return found


@pytest.mark.parametrize("recipe", ["prompt_lookup", "suffix_decoding:nodes=8", "autoregressive"])
@pytest.mark.parametrize("seed", range(4))
def test_a_trace_through_its_own_costs_takes_its_recorded_time(recipe, seed):
    _, trace = traced(recipe)
    rounds = with_times(trace.rounds, seed)
    recorded, replayed = measured("x", rounds), priced("x", "replayed", rounds, fitted(rounds))
    assert recorded.seconds_per_token and replayed.seconds_per_token
    assert replayed.seconds_per_token == pytest.approx(recorded.seconds_per_token, rel=0.1)
    assert replayed.tokens_per_pass == recorded.tokens_per_pass


def test_costs_of_another_machine_do_not():
    _, trace = traced("prompt_lookup")
    rounds = with_times(trace.rounds)
    recorded, other = measured("x", rounds), priced("x", "replayed", rounds, spelt("pass=1:10,64:80"))
    assert recorded.seconds_per_token and other.seconds_per_token
    assert other.seconds_per_token > 1.3 * recorded.seconds_per_token


def test_draft_passes_are_fitted_too():
    _, trace = traced("prompt_lookup")
    rounds = [
        replace(each, times=replace(each.times, draft_passes=3, seconds={**each.times.seconds, "propose": 2e-3}))
        for each in with_times(trace.rounds, noise=0)
        if each.times.draft_nodes
    ]
    found = fitted(rounds)
    assert found.host_draft is None
    assert found.model.draft_seconds(3, 8) == pytest.approx(2e-3, rel=0.05)


def test_numbers_are_milliseconds():
    found = spelt("pass=1:4.9,2:5.7,4:6.9,8:9.2 draft=0.6 rest=0.4")
    assert [1000 * found.model.pass_seconds(n) for n in (1, 2, 4, 8)] == pytest.approx([4.9, 5.7, 6.9, 9.2])
    assert 1000 * found.model.draft_seconds(5) == pytest.approx(3.0, rel=0.02)
    assert 1000 * found.model.rest_seconds() == pytest.approx(0.4)
    assert found.passes == (1, 8)


@pytest.mark.parametrize(
    "text", ["pass=", "pass=0:3", "pass=1:-1", "pass=1:2 rest=x", "rest=1", "pass=1:2 more=3", "pass=1:nan", "pass=1"]
)
def test_numbers_that_are_none_are_refused(text):
    with pytest.raises(OptionError, match=r"--cost cannot be .*\nhint: milliseconds"):
        chosen(text, "", "")


def timed(seconds: float) -> dict[str, object]:
    return asdict(Times({"score": seconds, "emit": 1e-3}, tokens=1, context=40))


def test_timed_rounds_are_read_from_a_file_as_the_cache_keeps_them(tmp_path: Path):
    (tmp_path / "a").write_text(json.dumps([timed(0.004)]))
    (tmp_path / "b").write_text(json.dumps({"of": "int8 here", "found": [timed(0.004)]}))
    for name in "ab":
        found = chosen(str(tmp_path / name), "", "")
        assert found.model.pass_seconds(1, 40) == pytest.approx(0.004)
        assert found.model.rest_seconds() == pytest.approx(1e-3)


@pytest.mark.parametrize("text", ["", "{}", "[]", "[1]", '[{"tokens": 1}]', '[{"tokens": 0, "seconds": {"score": 1}}]'])
def test_a_file_without_timed_rounds_is_refused(tmp_path: Path, text):
    (tmp_path / "a").write_text(text)
    with pytest.raises(OptionError, match="holds no timed rounds"):
        chosen(str(tmp_path / "a"), "", "")
    with pytest.raises(OptionError, match="cannot be read"):
        chosen(str(tmp_path / "missing"), "", "")


def test_this_machine_is_what_was_remembered_for_the_model_and_its_backend(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    with pytest.raises(OptionError, match="nothing is remembered"):
        chosen("machine", "f00d", "int8")
    folder = tmp_path / "costs"
    folder.mkdir()
    here = f"float32 {processor_name()} {torch.get_num_threads()} none"
    for name, of, seconds in (
        ("f00d-1", f"int8 {here}", 0.004),
        ("f00d-2", f"other {here}", 1.0),
        ("f00d-4", "int8 float32 another processor 99 none", 1.0),
        ("beef-1", f"int8 {here}", 2.0),
    ):
        (folder / f"{name}.json").write_text(json.dumps({"of": of, "found": [timed(seconds)]}))
    (folder / "f00d-3.json").write_text("{")
    assert chosen("machine", "f00d", "int8").model.pass_seconds(1, 40) == pytest.approx(0.004)


def test_drafting_that_other_costs_do_not_know_is_taken_from_the_trace():
    known, unknown = spelt("pass=1:4 draft=0.5"), spelt("pass=1:9")
    joined = unknown.with_draft_of(known)
    assert joined.model.draft_seconds(2) == known.model.draft_seconds(2) > 0
    assert joined.model.pass_seconds(1) == unknown.model.pass_seconds(1)
    assert known.with_draft_of(unknown) is known


def test_one_slow_moment_in_a_small_pass_does_not_raise_the_larger_ones(monkeypatch):
    """Costs never fall with the size of a pass, so the fit must share the slow moment instead of keeping it as a floor."""
    _, trace = traced("prompt_lookup")
    rounds = with_times(trace.rounds, noise=0)
    small = min(each.times.tokens for each in rounds if each.decodes)
    slow = [
        replace(each, times=replace(each.times, seconds={**each.times.seconds, "score": 0.03}))
        if each.decodes and each.times.tokens == small
        else each
        for each in rounds
    ]

    def gap() -> float:
        recorded, replayed = measured("x", slow), priced("x", "replayed", slow, fitted(slow))
        assert recorded.seconds_per_token and replayed.seconds_per_token
        return replayed.seconds_per_token / recorded.seconds_per_token

    assert gap() == pytest.approx(1, abs=0.1)
    monkeypatch.setattr(costs, "_rising", lambda seconds: dict.fromkeys(seconds, 1.0))
    assert gap() > 1.3, "without sharing it is a floor"
