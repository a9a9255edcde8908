"""Replaying a trace gives exactly the recorded tokens per pass; a trace that was changed contradicts itself."""

from dataclasses import replace
from typing import Any

import pytest

from draftwood.bench.trace.records import Asked, Header, Record, RoundRecord, SequenceRecord
from draftwood.bench.trace.summary import counted
from draftwood.bench.trace.trace import collect, walk
from draftwood.errors import TraceError
from recorded_runs import recorded, totals


@pytest.fixture(scope="module")
def run() -> tuple[Any, list[Header | Record]]:
    return recorded("prompt_lookup")


def test_replayed_rounds_accept_exactly_what_was_recorded(run):
    requests, made = run
    trace = collect(made, "test")
    for each in (each for rnd in trace.rounds for each in rnd.sequences):
        text = trace.requests[each.request].text
        assert walk(each.tokens, each.parents, each.emitted) == each.path
        assert text[each.length : each.length + each.kept] == each.emitted[: each.kept]
    passes, tokens, rounds, drafted = counted(trace.rounds)
    assert (passes, tokens, rounds, drafted) == totals(requests)
    assert tokens / passes == sum(len(r.output) for r in requests) / sum(r.stats.target_passes for r in requests)


def changed(made: list[Header | Record], change: Any) -> list[Header | Record]:
    """The records with one sequence changed: the first that accepted some of its draft."""
    found, done = list[Header | Record](), False
    for record in made:
        if isinstance(record, RoundRecord) and not done:
            for b, each in enumerate(record.sequences):
                if len(each.tokens) > len(each.path) > 0 and each.kept > 1:
                    several = list(record.sequences)
                    several[b], done = change(each), True
                    record = replace(record, sequences=tuple(several))
                    break
        found.append(record)
    assert done
    return found


def other(tokens: list[int], at: int) -> list[int]:
    return [token + (i == at) for i, token in enumerate(tokens)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: replace(s, tokens=other(s.tokens, s.path[0] - 1)), "the path carries"),
        (lambda s: replace(s, emitted=other(s.emitted, 0)), "the path carries"),
        (
            lambda s: replace(s, path=s.path[:-1], emitted=s.emitted[:-1], kept=len(s.path)),
            "the text follows the nodes",
        ),
        (lambda s: replace(s, kept=s.kept - 1), "begins after"),
        (lambda s: replace(s, kept=99), "were kept"),
        (lambda s: replace(s, length=s.length + 1), "begins after"),
        (lambda s: replace(s, path=[99]), "leaves the tree"),
        (lambda s: replace(s, parents=[len(s.tokens), *s.parents[1:]]), "before its parent"),
        (lambda s: replace(s, scores=[]), "nodes"),
        (lambda s: replace(s, request=77), "never asked"),
        (lambda s: replace(s, path="ab"), "contradicts"),
    ],
)
def test_a_changed_trace_is_refused(run, change, why):
    _, made = run
    with pytest.raises(TraceError, match=rf"(?s)line \d+: .*{why}"):
        collect(changed(made, change), "test")


def test_without_a_change_the_same_records_are_accepted(run):
    _, made = run
    collect(changed(made, lambda s: s), "test")


def test_a_request_that_comes_twice_is_refused(run):
    _, made = run
    (first, *_) = (each for each in made if isinstance(each, Asked))
    with pytest.raises(TraceError, match="request 0 after"):
        collect([*made, first], "test")


def test_under_other_rules_a_shorter_path_than_the_text_is_no_contradiction(run):
    """Rejection may refuse a token and draw the same text by other means; only `match` follows the text as far as it can."""
    _, made = run
    first, *rest = changed(made, _short)
    assert isinstance(first, Header)
    collect([replace(first, rule="Rejection"), *rest][: 1 + 4], "test")


def _short(s: SequenceRecord) -> SequenceRecord:
    return replace(s, path=s.path[:-1], emitted=s.emitted[:-1], kept=len(s.path))
