"""Rounds are grouped by the drafters whose nodes they had, and every decoding round is in one group."""

import pytest

from draftwood.bench.trace.choices import choices, named
from draftwood.bench.trace.records import SequenceRecord
from recorded_runs import traced


def test_every_decoding_round_is_counted_once_and_tokens_add_up():
    _, trace = traced("prompt_lookup", slots=1)
    found = choices(trace.rounds, ["NGram"])
    decoding = [each for each in trace.rounds if each.decodes]
    assert {each.name for each in found} == {"NGram", "plain"}
    assert sum(each.rounds for each in found) == len(decoding)
    assert sum(each.rounds * each.tokens for each in found) == pytest.approx(sum(each.emitted for each in decoding))
    assert sum(each.rounds * each.seconds for each in found) == pytest.approx(sum(e.times.total for e in decoding))
    plain = next(each for each in found if each.name == "plain")
    assert (plain.drafted, plain.tokens) == (0, 1)


def test_a_tree_of_several_drafters_names_them_all():
    def of(sources: list[int]) -> SequenceRecord:
        return SequenceRecord(0, 1, [5] * len(sources), [0] * len(sources), sources, [0.0] * len(sources), [], [7], 1)

    assert named(of([1, 0, 1]), ["copies", "head"]) == "copies and head"
    assert named(of([3]), ["copies"]) == "source 3"
    assert named(of([]), ["copies"]) == "plain"
