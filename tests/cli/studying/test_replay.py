"""`generate --trace FILE`, then `replay FILE`: recorded figures come back, others are estimated or refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from draftwood.models.loading import load as loading

COPY = "The cat sat on the mat. The dog lay by the door. " * 2 + "The cat sat on"


@pytest.fixture
def recorded(draftwood, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A trace of two answers, and what the command said of them."""
    file = tmp_path / "run.trace"
    words = (
        "generate",
        COPY,
        "One, two, three, one, two,",
        "--raw",
        "--json",
        "--max-tokens",
        "24",
        "--trace",
        str(file),
    )
    done = draftwood(*words, "--recipe", "prompt_lookup", "--option", "nodes=8")
    assert done.exit_code == 0, done.output
    return file, [json.loads(line) for line in done.stdout.splitlines()]


def rows(done: Any) -> list[dict[str, Any]]:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["results"]


def test_replay_gives_the_tokens_per_pass_of_the_run(draftwood, recorded):
    file, answers = recorded
    measured, replayed, again, plain = rows(draftwood("replay", str(file), "-r", "prompt_lookup:nodes=8", "--json"))
    tokens = sum(len(each["token_ids"]) for each in answers)
    passes = sum(each["stats"]["target_passes"] for each in answers)
    for each in (measured, replayed, again):
        assert (each["tokens"], each["passes"]) == (tokens, passes)
        assert each["rounds"] == measured["rounds"] and each["drafted"] == measured["drafted"]
    assert measured["name"] == "prompt_lookup:nodes=8" and measured["tokens_per_pass"] == tokens / passes > 1
    assert plain["tokens_per_pass"] == 1 and plain["ratio_to_plain"] == 1


def test_the_table_names_what_was_recorded_and_what_it_cost(draftwood, recorded):
    file, _ = recorded
    done = draftwood("replay", str(file), "--cut", "nodes=2", "--cost", "pass=1:5,2:6,4:7,16:11 rest=0.3")
    assert done.exit_code == 0, done.output
    assert "2 requests, 48 tokens, recorded with prompt_lookup:nodes=8 on smollm2 (int8" in done.stdout
    assert "prompt_lookup:nodes=8, trees cut to nodes=2" in done.stdout
    assert "costs: the numbers given" in done.stdout


def test_no_model_is_loaded_for_drafters_without_one(draftwood, recorded, monkeypatch):
    def never(*given: Any, **more: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(loading, "load", never)
    file, _ = recorded
    assert draftwood("replay", str(file), "-r", "prompt_lookup", "-r", "suffix_decoding").exit_code == 0
    with pytest.raises(AssertionError, match="a model was loaded"):
        raise draftwood("replay", str(file), "-r", "eagle3").exception


def test_a_drafter_with_a_model_is_run_and_says_so(draftwood, recorded):
    file, _ = recorded
    *_, found, _ = rows(draftwood("replay", str(file), "-r", "eagle3:depth=3:nodes=3", "--json"))
    assert found["how"] == "run with the model" and found["tokens"] == 48
    assert "2 of 2 texts equal the recorded ones" in found["notes"][0]


def test_so_is_a_target_that_drafts_with_its_own_layers(draftwood, recorded):
    file, _ = recorded
    *_, found, _ = rows(draftwood("replay", str(file), "-r", "draft_and_verify:size=paper:depth=2", "--json"))
    assert found["name"] == "draft_and_verify:size=paper:depth=2" and found["tokens_per_pass"] > 1


def test_a_second_run_does_not_overwrite_a_trace(draftwood, recorded):
    file, _ = recorded
    before = file.read_bytes()
    done = draftwood("generate", "Hello", "--max-tokens", "2", "--trace", str(file))
    assert done.exit_code == 2 and "exists already" in done.stderr
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-r", "nonsense"), "unknown recipe"),
        (("-r", "prompt_lookup:deep=3"), "no option 'deep'"),
        (("--cut", "beam=3"), "--cut cannot be"),
        (("--cost", "pass=x"), "--cost cannot be"),
        (("--cost", "no-such-file"), "cannot be read"),
        (("-r", "rest"), "datastore is needed"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_message(draftwood, recorded, words, why):
    file, _ = recorded
    done = draftwood("replay", str(file), *words)
    assert done.exit_code == 2 and why in done.stderr and "hint:" in done.stderr


def test_a_tampered_trace_is_refused(draftwood, recorded):
    file, _ = recorded
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith('{"t"') and json.loads(line)["s"][0][6])
    record = json.loads(lines[at])
    record["s"][0][2][0] += 1
    lines[at] = json.dumps(record)
    file.write_text("\n".join(lines) + "\n")
    done = draftwood("replay", str(file))
    assert done.exit_code == 2 and f"line {at + 1}: the record contradicts the others" in done.stderr


def test_chat_records_every_turn(draftwood, tmp_path: Path):
    file = tmp_path / "chat.trace"
    done = draftwood("chat", "--quiet", "--max-tokens", "6", "--trace", str(file), stdin="Hello\nAnd again\n/quit\n")
    assert done.exit_code == 0, done.output
    assert "2 requests" in draftwood("replay", str(file)).stdout
