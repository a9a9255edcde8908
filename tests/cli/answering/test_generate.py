"""`draftwood generate`: the right text, for people and for programs, and an honest exit status."""

import json
import os
import pty
import re
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from draftwood.cli import open_llm
from draftwood.cli.answering import comparison
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.llm import LLM

CATS = "The cat sat on the mat. The dog lay by the door. "
COPY = CATS * 2 + "The cat sat on"


def lines(done: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_answer_is_followed_by_one_line_of_statistics(draftwood, plain):
    done = draftwood("generate", "Name a fruit.", "--max-tokens", "4", "--recipe", "autoregressive")
    text = plain.chat("Name a fruit.", max_tokens=4).text
    assert (done.exit_code, done.stdout) == (0, f"{text}\n"), "a file gets the answer and nothing else"
    assert re.fullmatch(
        r"\[4 tokens, [\d.]+ tokens/s, 1.00 tokens per pass, recipe \w+, .*int8 [a-z0-9-]+ activations, cut off .*\]\n",
        done.stderr,
    )


def test_raw_prompt_is_continued_without_a_template(draftwood, plain):
    done = draftwood("generate", COPY, "--raw", "--max-tokens", "4", "--json")
    (line,) = lines(done)
    assert line["text"] == plain.generate(COPY, max_tokens=4).text == " the mat. The"
    assert line["stats"]["tokens_per_pass"] > 1


def test_stdin_is_a_prompt_and_system_changes_the_answer(draftwood):
    plain = lines(draftwood("generate", "--json", "--max-tokens", "4", stdin="Who are you?\n"))[0]
    system = lines(
        draftwood("generate", "--json", "--max-tokens", "4", "--system", "You are a cat.", stdin="Who are you?\n")
    )[0]
    assert plain["prompt"] == system["prompt"] == "Who are you?"
    assert plain["num_prompt_tokens"] != system["num_prompt_tokens"]


def test_bad_lines_of_a_file_cost_only_themselves(draftwood, tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text('{"question_id": 1, "turns": ["Hi", "Bye"]}\nnonsense\n{"prompt": "Hi"}\n')
    done = draftwood("generate", "--json", "--file", str(file), "--max-tokens", "2", "--batch", "2")
    found = lines(done)
    assert done.exit_code == 1 and [("error" in x, x["turn"]) for x in found] == [
        (False, 0),
        (False, 1),
        (True, 0),
        (False, 0),
    ]
    assert found[0]["token_ids"] == found[3]["token_ids"]
    for_people = draftwood("generate", "--file", str(file), "--max-tokens", "2")
    assert for_people.exit_code == 1 and "line 2: it is not JSON" in for_people.stderr
    assert [x for x in for_people.stdout.splitlines() if x.startswith("> ")] == ["> Hi", "> Bye", "> Hi"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hi", "--temperature", "-1"], "temperature cannot be -1.0"),
        (["hi", "--top-p", "0"], "top_p cannot be 0.0"),
        (["hi", "--max-tokens", "0"], "max_tokens cannot be 0"),
        (["hi", "--batch", "0"], "batch cannot be 0"),
        (["hi", "--batch", "2"], "--batch 2 needs --json: text shows one answer after the other\nhint: add --json"),
        ([""], "the prompt is empty"),
        (["", "--json"], "the prompt is empty"),
        (["hi", "--raw", "--system", "s"], "--system"),
        (["hi", "--option", "deep=3"], "auto has no option 'deep'\nhint: it has depth=12"),
        (["hi", "--logit-bias", "99999999=1"], "vocabulary ends at"),
        (["word " * 9000], "this engine's context"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_status_2(draftwood, words, said):
    done = draftwood("generate", *words)
    assert (done.exit_code, done.stdout) == (2, "") and said in done.stderr


def test_options_of_sampling_reach_the_model(draftwood):
    words = ["generate", "--json", "--raw", COPY, "--max-tokens", "4"]
    plain = lines(draftwood(*words))[0]
    banned = lines(draftwood(*words, "--logit-bias", f"{plain['token_ids'][0]}=-inf"))[0]
    assert banned["token_ids"][0] != plain["token_ids"][0]
    assert lines(draftwood(*words, "--stop", "."))[0]["text"] == " the mat"
    assert lines(draftwood(*words, "--stop", ".", "--include-stop"))[0]["text"] == " the mat."
    stopped = lines(draftwood(*words, "--stop-token-id", str(plain["token_ids"][1])))[0]
    assert (stopped["token_ids"], stopped["finish_detail"]) == (plain["token_ids"][:2], "stop_token")
    best = lines(draftwood(*words, "--logprobs", "2"))[0]["logprobs"]
    assert len(best) == 4 and best[0]["top"][0]["token_id"] == plain["token_ids"][0]


def noted(opened, monkeypatch) -> None:
    """Models of commands have a note in their recipe."""
    real = open_llm.open_llm

    def with_note(*words: Any, **options: Any) -> Any:
        llm = real(*words, **options)
        llm.recipe = replace(llm.recipe, notes=("its drafter was chosen for you.",))
        return llm

    monkeypatch.setattr(open_llm, "open_llm", with_note)


def test_notes_of_the_recipe_are_said_to_people_only(draftwood, opened, monkeypatch):
    noted(opened, monkeypatch)
    words, note = ["generate", "Hi", "--max-tokens", "1"], "[auto: its drafter was chosen for you.]\n"
    loud, quiet = draftwood(*words), draftwood(*words, "--quiet")
    assert loud.stderr.startswith(note) and loud.stdout == quiet.stdout and quiet.stderr == ""
    assert draftwood(*words, "--json").stderr == ""
    assert draftwood("chat", "--max-tokens", "1", stdin="Hi\n").stderr.startswith(note)
    assert draftwood("chat", "--max-tokens", "1", "--quiet", stdin="Hi\n").stderr == ""
    assert draftwood("demo", "--max-tokens", "1", "--times", "1").stderr.startswith(note)


def test_a_drafter_that_failed_is_named_in_the_closing_line(draftwood, monkeypatch):
    def broken(*_: Any) -> None:
        raise RuntimeError("lost its index")

    monkeypatch.setattr(NGram, "propose", broken)
    done = draftwood("generate", COPY, "--raw", "--max-tokens", "4", "--recipe", "prompt_lookup")
    assert done.exit_code == 0 and "the drafter was disabled (propose: lost its index)" in done.stderr
    (line,) = lines(draftwood("generate", COPY, "--raw", "--max-tokens", "4", "--json", "--recipe", "prompt_lookup"))
    assert line["stats"]["disabled"] == "propose: lost its index"


def test_draws_differ_unless_a_seed_is_given(draftwood):
    words = ["generate", "--json", "--raw", "Once upon a time", "--max-tokens", "8", "--temperature", "1"]
    first, second = (lines(draftwood(*words))[0] for _ in range(2))
    assert first["text"] != second["text"]
    assert lines(draftwood(*words, "--seed", str(first["seed"])))[0]["text"] == first["text"]
    compared = lines(draftwood(*words, "--compare"))[0]["compare"]
    assert compared["identical"], "plain decoding gets the same seed"


def test_comparison_finds_the_same_text(draftwood):
    done = draftwood("generate", COPY, "--raw", "--max-tokens", "6", "--compare")
    assert done.exit_code == 0
    assert re.search(r"^autoregressive +[\d.]+ +1\.00 ", done.stdout, re.M)
    assert re.search(r"^auto +[\d.]+ +[\d.]+ +[\d.]+x.* yes$", done.stdout, re.M)
    record = lines(draftwood("generate", COPY, "--raw", "--max-tokens", "6", "--compare", "--json"))[0]
    assert record["compare"]["identical"] is True and record["compare"]["text"] == record["text"]


def test_broken_promise_is_status_1(draftwood, monkeypatch):
    monkeypatch.setattr(comparison.Comparison, "identical", False)
    done = draftwood("generate", COPY, "--raw", "--max-tokens", "2", "--compare")
    assert done.exit_code == 1 and "should not" in done.stdout


def test_logprobs_are_a_table_for_people(draftwood):
    done = draftwood("generate", COPY, "--raw", "--max-tokens", "2", "--logprobs", "1")
    assert re.search(r"^ *\d+ +' the' +-\d\.\d+", done.stdout, re.M)


# --- in processes of their own


@pytest.mark.slow
def test_pipe_gets_no_control_codes(start):
    out, err = start("generate", COPY, "--raw", "--max-tokens", "4", "--compare").communicate(timeout=120)
    assert out.startswith(b" the mat. The\n") and err.startswith(b"[4 tokens")
    assert b"\x1b" not in out + err and b"\r" not in out


@pytest.mark.slow
def test_terminal_gets_drafted_tokens_in_green(start):
    ours, theirs = pty.openpty()
    process = start("generate", COPY, "--raw", "--max-tokens", "4", stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while process.poll() is None or b"tokens per pass" not in seen:
        try:
            seen += os.read(ours, 4096)
        except OSError:  # the other end is closed: how a terminal says that all is read
            break
    os.close(ours)
    assert process.wait(60) == 0 and b"\x1b[32m mat\x1b[0m" in seen


@pytest.mark.slow
def test_interrupt_keeps_the_text_and_ends_with_status_130(start):
    process = start("generate", "Count from one to a thousand.", "--ignore-eos", "--max-tokens", "2000")
    first = process.stdout.read(1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == signal.SIGINT + 128
    assert first and out.endswith(b"\n") and re.fullmatch(rb"\[\d+ tokens, .*interrupted\]\n", err)


@pytest.mark.slow
def test_reader_who_leaves_ends_it_quietly(start):
    process = start("generate", "Count from one to a thousand.", "--ignore-eos", "--max-tokens", "2000")
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60) == 141 and process.stderr.read() == b""


def test_a_prediction_from_a_file_or_a_text_drafts_and_is_counted(draftwood, plain, tmp_path):
    file, asked = tmp_path / "expected.txt", ("generate", "Name a fruit.", "--max-tokens", "12", "--json")
    file.write_text(text := plain.chat("Name a fruit.", max_tokens=12).text)
    for given in (("--prediction", str(file)), ("--prediction-text", text)):
        (line,) = lines(draftwood(*asked, "--recipe", "prediction:nodes=8", *given))
        stats = line["stats"]
        assert line["text"] == text and stats["tokens_per_pass"] > 2 and "notes" not in line
        assert stats["accepted_prediction_tokens"] > 6 and stats["rejected_prediction_tokens"] == 0
    (line,) = lines(draftwood(*asked, "--recipe", "autoregressive", "--prediction-text", text))
    assert line["text"] == text and "drafts from no prediction" in line["notes"][0]
    assert line["stats"]["accepted_prediction_tokens"] == line["stats"]["rejected_prediction_tokens"] == 0


def test_a_prediction_that_cannot_be_read_is_refused(draftwood, tmp_path):
    file = tmp_path / "no.txt"
    assert "no.txt cannot be read" in draftwood("generate", "Hi", "--prediction", str(file)).stderr
    file.write_bytes(b"\xff")
    assert "no.txt is not UTF-8" in draftwood("generate", "Hi", "--prediction", str(file)).stderr
    done = draftwood("generate", "Hi", "--prediction", str(file), "--prediction-text", "x")
    assert "as a text and in" in done.stderr


def test_a_question_of_a_file_may_have_a_prediction_and_a_tenant(draftwood, plain, opened, tmp_path, monkeypatch):
    seen: list[tuple[str, bool]] = []
    stream = LLM.stream

    def noted(self: LLM, prompt: Any, params: Any, **given: Any) -> Any:
        seen.append((params.tenant, params.prediction is not None))
        return stream(self, prompt, params, **given)

    monkeypatch.setattr(LLM, "stream", noted)
    text, file = plain.chat("Name a fruit.", max_tokens=12).text, tmp_path / "q.jsonl"
    entries = [
        {"prompt": "Name a fruit.", "prediction": text, "tenant": "a"},
        {"turns": ["Name a fruit.", "Another."], "prediction": [None, "An apple"]},
        {"prompt": "Name a fruit."},
        {"prompt": "Name a fruit.", "tenant": 3},
        {"prompt": "Name a fruit.", "prediction": ["a", "b"]},
    ]
    file.write_text("\n".join(map(json.dumps, entries)))
    words = ("--max-tokens", "12", "--json", "--recipe", "prediction:nodes=8", "--prediction-text", "for the others")
    done = draftwood("generate", "--file", str(file), *words)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert seen == [("a", True), ("", False), ("", True), ("", True)]
    assert found[0]["text"] == text and found[0]["stats"]["accepted_prediction_tokens"] > 6
    assert found[1]["text"] == text and found[1]["stats"]["accepted_prediction_tokens"] == 0
    assert [line.get("error") for line in found[4:]] == [
        'line 4: "tenant" must be a text',
        'line 5: "prediction" must be a text, or a list with a text or null for each turn',
    ]
