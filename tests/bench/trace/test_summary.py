"""Figures of rounds: what is counted, what is timed, and what is said about sizes that were never measured."""

from dataclasses import replace

from draftwood.bench.trace.costs import fitted, spelt
from draftwood.bench.trace.summary import measured, priced
from recorded_runs import traced


def test_passes_outside_the_measured_sizes_are_named():
    _, trace = traced("prompt_lookup")
    inside = priced("x", "", trace.rounds, fitted(trace.rounds))
    outside = priced("x", "", trace.rounds, spelt("pass=32:9,33:9"))
    above = priced("x", "", trace.rounds, spelt("pass=1:9"))
    assert inside.notes == ()
    assert "priced as the smallest measured ones, of 32" in " ".join(outside.notes)
    assert "the largest measured one has 1" in " ".join(above.notes)


def test_draft_passes_without_a_cost_are_named():
    _, trace = traced("prompt_lookup")
    rounds = [replace(each, times=replace(each.times, draft_passes=1)) for each in trace.rounds]
    assert "priced at nothing" in " ".join(priced("x", "", rounds, spelt("pass=1:9,64:9")).notes)


def test_prompts_are_not_timed_and_no_decoding_has_no_time():
    _, trace = traced("prompt_lookup")
    first = [each for each in trace.rounds if not each.decodes]
    found = measured("x", first)
    assert found.tokens > 0 and found.seconds_per_token is None
    assert found.ratio(found) is None
    assert found.record(found)["ratio_to_plain"] is None
