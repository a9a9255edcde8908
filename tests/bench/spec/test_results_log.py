import json
from pathlib import Path

import pytest

from draftwood.bench.spec.results_log import ResultsLog
from draftwood.errors import OptionError

SETTINGS = {"model": "m", "recipes": ("a", "b"), "max_tokens": 8}


@pytest.fixture
def path(tmp_path: Path, answer) -> Path:
    """A results log with two questions done."""
    results_log = ResultsLog(tmp_path / "run.jsonl", SETTINGS)
    assert results_log.open() == 0
    results_log.note({"a": {"version": 1}})
    for question in ("1", "2"):
        results_log.add(question, [answer("a", question, 4, 1.0), answer("b", question, 4, 2.0)], {"load": [0.1]})
    return tmp_path / "run.jsonl"


def reopened(path: Path, **changes: object) -> ResultsLog:
    results_log = ResultsLog(path, SETTINGS | changes)
    results_log.open()
    return results_log


def test_a_run_goes_on_where_it_stopped(path: Path, answer):
    results_log = reopened(path)
    assert list(results_log.done) == ["1", "2"] and results_log.facts == {"a": {"version": 1}}
    results_log.add("3", [answer("a", "3", 4, 1.0)], {})
    again = reopened(path)
    assert [(a.method, a.question) for a in again.answers()] == [(m, q) for q in "12" for m in "ab"] + [("a", "3")]
    assert again.machine["1"] == {"load": [0.1]}


@pytest.mark.parametrize("cut", [1, 30, 400])
def test_a_half_written_end_costs_one_question(path: Path, cut: int, answer):
    path.write_bytes(path.read_bytes()[:-cut])
    results_log = reopened(path)
    assert list(results_log.done) == ["1"]
    results_log.add("2", [answer("a", "2", 4, 1.0)], {})
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert list(reopened(path).done) == ["1", "2"]


def test_answers_without_their_closing_line_are_asked_again(path: Path, answer):
    with path.open("a") as file:
        file.write(json.dumps({"answer": answer("a", "3", 4, 9.0).record()}) + "\n")
    assert list(reopened(path).done) == ["1", "2"]
    assert '"3"' not in path.read_text()


def test_other_settings_are_refused_by_name(path: Path):
    with pytest.raises(OptionError, match="max_tokens: 8 then, 9 now") as refused:
        reopened(path, max_tokens=9)
    assert "model" not in str(refused.value) and "--fresh" in str(refused.value)
    with pytest.raises(OptionError, match="threads: None then, 2 now"):
        reopened(path, threads=2)


def test_fresh_begins_anew(path: Path):
    results_log = ResultsLog(path, SETTINGS | {"max_tokens": 9}, fresh=True)
    assert results_log.open() == 0 and not results_log.done
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("text", ['{"question_id": 1}\n', "[]\nx\n", "words\nand more\n"])
def test_a_file_that_is_no_results_log_is_left_alone(tmp_path: Path, text: str):
    other = tmp_path / "other.jsonl"
    other.write_text(text)
    with pytest.raises(OptionError, match="not a results log"):
        reopened(other)
    assert other.read_text() == text


def test_an_empty_file_is_begun(tmp_path: Path):
    (tmp_path / "new.jsonl").touch()
    assert reopened(tmp_path / "new.jsonl").done == {}
    assert "settings" in (tmp_path / "new.jsonl").read_text()


def test_without_a_path_nothing_is_written(answer):
    results_log = ResultsLog(None, SETTINGS)
    assert results_log.open() == 0
    results_log.note({})
    results_log.add("1", [answer("a", "1", 4, 1.0)], {})
    assert len(results_log.answers()) == 1


def test_second_run_on_the_same_results_log_is_refused(tmp_path):
    first, second = (ResultsLog(tmp_path / "r.jsonl", {"model": "m"}) for _ in range(2))
    with first.alone(), pytest.raises(OptionError, match="another run is writing"), second.alone():
        pass
    with second.alone():
        assert second.open() == 0


def test_a_log_is_read_for_a_report_without_being_changed(path: Path, answer):
    with path.open("a") as file:
        file.write(json.dumps({"answer": answer("a", "3", 4, 9.0).record()}) + '\n{"answer": {"half')
    before = path.read_bytes()
    log = ResultsLog.load(path)
    assert list(log.done) == ["1", "2"] and log.settings["recipes"] == ["a", "b"] and log.facts == {"a": {"version": 1}}
    assert path.read_bytes() == before


def test_the_log_says_where_its_latest_answers_were_measured(path: Path):
    for commit in ("one", "two"):
        reopened(path).begin({"commit": commit})
    assert reopened(path).provenance == ResultsLog.load(path).provenance == {"commit": "two"}


def test_a_log_of_before_has_no_provenance_and_no_prompt_and_is_read(path: Path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.get("answer", {}).pop("prompt", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"of a later version": 1}]))
    log = ResultsLog.load(path)
    assert log.provenance == {} and [a.prompt for a in log.answers()] == [""] * 4


@pytest.mark.parametrize("text", [None, "", '{"settings": {}}\n', '{"question_id": 1}\n'])
def test_a_file_without_finished_questions_makes_no_report(tmp_path: Path, text: str | None):
    other = tmp_path / "other.jsonl"
    if text is not None:
        other.write_text(text)
    with pytest.raises(OptionError, match=r"cannot be read|no finished question|not a results log"):
        ResultsLog.load(other)
