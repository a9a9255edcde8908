"""The run as a whole, with workers that need no model: order, failures, deaths, and going on."""

from pathlib import Path

import pytest

from draftwood.bench.spec import worker_pool
from draftwood.bench.spec.peers import OURS, Settings
from draftwood.bench.spec.questions import Item
from draftwood.bench.spec.results_log import ResultsLog
from draftwood.bench.spec.run import PLAIN, Plan, broken, measure, recipes_with_plain, results, rivals
from draftwood.bench.spec.summary import ALL
from draftwood.bench.spec.worker_pool import WorkerPool
from draftwood.errors import OptionError
from draftwood.kernels.cpu.levels import SWITCH

PEER = "llamacpp"


@pytest.fixture
def run(fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run over questions given as texts, with a fake of ours and a peer of the kind asked for. Their times are made up,
    so nobody waits for a quiet machine."""
    monkeypatch.setattr(worker_pool, "settle", lambda pids: None)

    def make(*texts: str, kind: str = "good", recipes=("fast",), seen=None, stop_after: int | None = None):
        items = tuple(Item(str(i), "", text, "qa" if i % 2 else "dialogue") for i, text in enumerate(texts))
        plan = Plan(items, Settings("m", 1, 4, methods=recipes_with_plain(recipes)), (PEER,), warmup=1)
        results_log = ResultsLog(tmp_path / "run.jsonl", plan.identity({}))
        results_log.open()
        pool = WorkerPool(plan.settings, plan.peers, {OURS: fake("ours"), PEER: fake(kind)})

        def say(done: int, total: int) -> None:
            if seen is not None:
                seen.append(done)
            if done == stop_after:
                raise KeyboardInterrupt

        measure(plan, results_log, say=say, pool=pool)
        return plan, results_log

    return make


def test_every_method_answers_every_question(run):
    plan, results_log = run("1", "2", "3")
    assert {(a.method, a.question) for a in results_log.answers()} == {
        (m, q) for m in (PLAIN, "fast", PEER) for q in "012"
    }
    assert [results_log.machine[q]["order"][0] for q in "012"] == list(
        dict.fromkeys(results_log.machine[q]["order"][0] for q in "012")
    )
    found = results(plan, results_log)
    assert found["figures"][ALL]["fast"]["identical"] == 3 and not broken(found, plan.settings.methods)
    assert found["figures"][ALL][PEER]["same_text_share"] == 1.0
    assert found["against_peers"]["fast"][PEER]["value"] == pytest.approx(1) and found["rivals"] == [PEER]
    assert set(found["prompts_against_peers"]) == {PEER}
    assert list(found["figures"]) == [ALL, "dialogue", "qa"]
    assert found["precision"] == {PLAIN: "of ours", "fast": "of ours", PEER: "of good"}
    assert found["device"] == {PLAIN: "beside ours", "fast": "beside ours", PEER: "beside good"}


def test_a_failed_answer_is_written_down_and_the_run_goes_on(run):
    plan, results_log = run("1", "ask 901", "3", kind="bad")
    found = results(plan, results_log)
    assert found["failures"] == [{"method": PEER, "question": "1", "error": "ValueError: out of words"}]
    assert found["figures"][ALL][PEER]["failures"] == 1
    assert found["against_peers"]["fast"][PEER]["left_out"] == 1
    assert not broken(found, plan.settings.methods)  # a peer's failure is the peer's


def test_a_dead_worker_is_written_down_and_started_again(run):
    plan, results_log = run("1", "ask 902", "3", kind="bad")
    found = results(plan, results_log)
    assert [f["question"] for f in found["failures"]] == ["1"] and "status 3: last words" in found["failures"][0][
        "error"
    ]
    assert found["figures"][ALL][PEER]["questions"] == 3


def test_a_peer_that_cannot_be_opened_fails_on_every_question(run):
    plan, results_log = run("1", "2", kind="unopened")
    found = results(plan, results_log)
    assert found["figures"][ALL][PEER]["failures"] == 2 and "no such model" in found["failures"][0]["error"]


def test_a_recipe_that_writes_another_text_breaks_its_promise(run):
    plan, results_log = run("1", "2", recipes=("fast", "wrong"))
    assert broken(results(plan, results_log), plan.settings.methods) == [
        "wrong: 2 answers differ from plain decoding's"
    ]


def test_too_many_near_ties_are_an_error():
    f = {"failures": 0, "questions": 9, "different": 0, "near_ties": 2, "compared": 1999}
    found = {"figures": {ALL: {"m": f}}, "precision": {"m": "float32"}}
    assert "more than 1 in 1000" in broken(found, ["m"])[0]
    assert not broken({**found, "figures": {ALL: {"m": f | {"compared": 2000}}}}, ["m"])
    assert not broken({**found, "precision": {"m": "bfloat16"}}, ["m"])


def test_a_stopped_run_goes_on_and_asks_nothing_twice(run):
    with pytest.raises(KeyboardInterrupt):
        run("1", "2", "3", "4", stop_after=2)
    seen: list[int] = []
    _, results_log = run("1", "2", "3", "4", seen=seen)
    assert seen == [2, 3, 4] and list(results_log.done) == ["0", "1", "2", "3"]
    run("1", "2", "3", "4", seen=seen)
    assert seen == [2, 3, 4]  # all is known: nobody is even started


def test_answers_at_two_levels_of_instructions_never_share_a_table(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SWITCH, raising=False)
    run("1", "2")
    monkeypatch.setenv(SWITCH, "auto")
    run("1", "2")  # what it was
    monkeypatch.setenv(SWITCH, "avx2")
    with pytest.raises(OptionError, match=SWITCH):
        run("1", "2")


def test_plain_decoding_is_always_there_once():
    assert recipes_with_plain(["auto", PLAIN, "auto"]) == (PLAIN, "auto")


def test_rivals_are_the_fastest_of_each_engine():
    speeds = {
        "llamacpp": 9,
        "llamacpp-ngram-mod": 5,
        "llamacpp-ngram-cache": 7,
        "transformers": 3,
        "transformers-lookup": 4,
    }
    found = {ALL: {name: {"tokens_per_second": speed} for name, speed in speeds.items()}}
    assert rivals(found, list(speeds)) == ["llamacpp", "llamacpp-ngram-cache", "transformers-lookup"]


def test_the_plan_of_a_log_gives_the_same_results(run, tmp_path: Path):
    plan, results_log = run("1", "2", "3")
    read = ResultsLog.load(tmp_path / "run.jsonl")
    assert results(Plan.of_log(read), read) == results(plan, results_log)
    assert [a.prompt for a in read.answers()] == [text for text in "123" for _ in range(3)]
    read.settings.pop("recipes")
    with pytest.raises(OptionError, match="lack 'recipes'"):
        Plan.of_log(read)
