"""`draftwood explain` prints the numbers behind the choices of `auto`, and they agree with the run."""

import json

COPY = "Repeat this sentence three times: The lighthouse keeper lit the lamp at dusk."


def test_it_says_what_there_is_what_was_done_and_what_would_change_it(draftwood):
    done = draftwood("explain", COPY, "--max-tokens", "24")
    assert done.exit_code == 0, done.output
    for line in ("copies   NGram", "head     Features", "costs    ", "what was done", "what is expected", "head: "):
        assert line in done.stdout, done.stdout
    assert "accepted tokens a draft; expected are" in done.stdout


def test_json_holds_the_same(draftwood):
    done = draftwood("explain", COPY, "--max-tokens", "24", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    used = {word for each in found["choices"] for word in each["name"].split(" and ")}
    assert used <= {"NGram", "Features", "plain"}
    assert found["tokens_per_second"]["plain"] > 0 < found["tokens_per_second"]["head"] and found["turning_points"]
    assert found["tokens_per_pass"] > 1


def test_above_the_heads_temperature_it_says_why_the_head_is_not_asked(draftwood):
    done = draftwood("explain", "Name a fruit.", "--max-tokens", "6", "--temperature", "0.9")
    assert "head: not asked above temperature 0.5," in done.stdout


def test_an_answer_of_one_token_has_no_choice_to_explain(draftwood):
    done = draftwood("explain", "Name a fruit.", "--max-tokens", "1")
    assert done.exit_code == 0, done.output


def test_bad_options_are_refused(draftwood):
    done = draftwood("explain", "x", "--max-tokens", "0")
    assert done.exit_code == 2 and "max_tokens cannot be 0" in done.stderr
