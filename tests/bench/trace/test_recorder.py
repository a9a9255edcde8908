"""A recorder keeps every round, changes nothing, and lets no host wait for a device."""

from dataclasses import replace

import pytest

from draftwood import recipes
from draftwood.bench.trace.recorder import Recorder
from draftwood.bench.trace.records import Asked, Ended, Header, Record, RoundRecord
from draftwood.bench.trace.summary import counted
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.runs import make_engine, serve
from recorded_runs import MODEL, params, prompts, recorded, totals, traced

SAMPLED = params(6, temperature=1.0)


@pytest.mark.parametrize("options", [None, SAMPLED], ids=["greedy", "sampled"])
def test_the_trace_of_a_batch_counts_what_its_requests_counted(options):
    requests, trace = traced("prompt_lookup", options=options)
    plain, _ = recorded("autoregressive", options=options)
    assert [r.output for r in requests] == [r.output for r in plain], "recording changes no text"
    assert [each.output for each in trace.requests] == [r.output for r in requests]
    assert [each.asked.prompt for each in trace.requests] == [r.prompt for r in requests]
    assert counted(trace.rounds) == totals(requests)
    assert min(totals(requests)[2]) > 0, "all three kinds of rounds occur"


def test_every_end_is_recorded_and_an_answer_cut_by_a_stop_keeps_its_tokens_only():
    requests, trace = traced("prompt_lookup", eos=(2,))
    assert {each.ended.detail for each in trace.requests if each.ended} == {r.finish_detail for r in requests}
    assert [each.output for each in trace.requests] == [r.output for r in requests]
    assert any(each.kept < len(each.emitted) for rnd in trace.rounds for each in rnd.sequences)


def test_request_that_leaves_has_no_end_and_the_others_go_on():
    requests, trace = traced("prompt_lookup", cancel={1: 3})
    assert [each.ended is None for each in trace.requests] == [i == 1 for i in range(6)]
    assert trace.unfinished == 1
    assert sum(len(each.output) for each in trace.requests) == sum(len(r.output) for r in requests)


def test_chunks_of_a_prompt_are_rounds_without_sequences():
    found: list[Header | Record] = []
    recipe = replace(recipes.build("prompt_lookup", MODEL), record=(Recorder(found.append),))
    serve(make_engine(MODEL, recipe, chunk=4), prompts(1), params(1))
    rounds = [each for each in found if isinstance(each, RoundRecord)]
    assert not rounds[0].sequences and rounds[-1].sequences
    assert all(each.times.prompt_tokens == each.times.tokens for each in rounds if not each.sequences)


def test_memory_does_not_grow_with_finished_requests():
    recorder = Recorder(lambda record: None)
    recipe = replace(recipes.build("autoregressive", MODEL), record=(recorder,))
    engine = make_engine(MODEL, recipe, slots=2)
    for _ in range(4):
        serve(engine, prompts(6), params(6, tokens=2))
    assert len(recorder._numbers) <= 2


def test_two_engines_may_share_a_recorder_although_their_requests_have_equal_ids():
    found: list[Header | Record] = []
    recipe = replace(recipes.build("prompt_lookup", MODEL), record=(Recorder(found.append),))
    for _ in range(2):
        serve(make_engine(MODEL, recipe), prompts(2), params(2))
    assert [each.number for each in found if isinstance(each, Asked)] == [0, 1, 2, 3]
    assert sorted(each.number for each in found if isinstance(each, Ended)) == [0, 1, 2, 3]


class Shown:
    """Keeps what a recorder was shown."""

    def __init__(self) -> None:
        self.rounds: list[tuple[Round, Outcome]] = []

    def record(self, rnd: Round, outcome: Outcome) -> None:
        self.rounds.append((rnd, outcome))


def drafted() -> list[tuple[Round, Outcome]]:
    shown = Shown()
    recipe = replace(recipes.build("prompt_lookup", MODEL), record=(shown,))
    serve(make_engine(MODEL, recipe), prompts(2), params(2))
    return [each for each in shown.rounds if each[1].proposal.tree.num_nodes > 1]


def test_on_a_device_no_number_is_read_in_the_round_itself_and_the_next_one_writes_it():
    found: list[Record] = []
    first, second, *_ = drafted()
    with as_if_on_a_device():
        recorder = Recorder(found.append)
        with HostReads() as reads:
            recorder.record(*first)
        assert reads.total == 0
        assert not any(isinstance(each, RoundRecord) for each in found)
        recorder.record(*second)
    assert sum(isinstance(each, RoundRecord) for each in found) == 1
    recorder.flush()
    late = [each for each in found if isinstance(each, RoundRecord)]
    at_once: list[Record] = []
    recorder = Recorder(at_once.append)
    recorder.record(*first)
    recorder.record(*second)
    assert late == [each for each in at_once if isinstance(each, RoundRecord)], "what is read later is the same"


def test_reading_at_once_would_be_counted():
    first, *_ = drafted()
    with HostReads() as reads:
        Recorder(lambda record: None).record(*first)
    assert reads.total > 0


def test_a_bare_root_costs_no_read_anywhere():
    rnd, outcome = drafted()[0]
    bare = replace(
        outcome,
        proposal=Proposal.roots(rnd.roots()),
        verdict=replace(outcome.verdict, on_host=outcome.verdict.to_host()),
    )
    with HostReads() as reads:
        Recorder(lambda record: None).record(rnd.take([]), bare.take([]))
    assert reads.total == 0


def test_recorder_that_fails_is_left_out_and_costs_no_request_anything():
    def full(record: Record) -> None:
        raise OSError("no space left")

    recorder = Recorder(full)
    engine = make_engine(MODEL, replace(recipes.build("prompt_lookup", MODEL), record=(recorder,)))
    requests = serve(engine, prompts(2), params(2))
    assert engine.failed_watchers == [recorder]
    assert [r.output for r in requests] == [r.output for r in recorded("autoregressive", 2)[0]]
