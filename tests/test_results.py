"""A result as plain values: everything in it, nothing that JSON cannot hold."""

import json
import math
from dataclasses import replace

from draftwood.core.request import Stats
from draftwood.results import Alternative, Alternatives, Logprob, Piece, Result

RESULT = Result(
    prompt=(1, 2),
    num_prompt_tokens=2,
    text="ab",
    token_ids=(5, 6),
    pieces=(Piece("a", 5, -1, "target"), Piece("b", 6, 0, "NGram")),
    finish_reason="length",
    finish_detail="context",
    error=None,
    logprobs=(Logprob(5, "a", -0.1, (Logprob(5, "a", -0.1), Logprob(7, "c", -math.inf))), Logprob(6, "b", -2.0)),
    seed=3,
    recipe="auto",
    lossless=True,
    stats=Stats(target_passes=1, disabled="propose: x"),
    seconds=0.5,
    backend="int8",
    source_names=("NGram", "Features"),
)


def test_record_is_json_and_whole() -> None:
    record = json.loads(json.dumps(RESULT.to_dict(), allow_nan=False))
    assert record["prompt"] == [1, 2] and record["token_ids"] == [5, 6] and record["sources"] == [-1, 0]
    assert (record["finish_reason"], record["finish_detail"], record["seed"]) == ("length", "context", 3)
    assert record["stats"]["tokens_per_pass"] == 2 and record["stats"]["disabled"] == "propose: x"
    assert record["source_names"] == ["NGram", "Features"] and RESULT.num_tokens_by_source == {"target": 1, "NGram": 1}
    assert {"error", "samples"}.isdisjoint(record)


def test_forbidden_token_has_no_logprob() -> None:
    first, second = RESULT.to_dict()["logprobs"]
    assert first["top"][1] == {"token_id": 7, "text": "c", "logprob": None}
    assert second == {"token_id": 6, "text": "b", "logprob": -2.0}


def test_all_samples_are_in_it() -> None:
    other = replace(RESULT, seed=4, error="failed")
    both = replace(RESULT, more_samples=(other,))
    assert both.samples == (both, other) and RESULT.samples == (RESULT,)
    assert [x["seed"] for x in both.to_dict()["samples"]] == [4] and both.to_dict()["samples"][0]["error"] == "failed"


def test_alternatives_are_json_too_and_labelled_as_lossy() -> None:
    one, two = Alternative("ab", (5, 6), -0.5, 0.7, "stop"), Alternative("ac", (5, 7), -1.3, 0.3, "length")
    both = Alternatives((1, 2), 2, (one, two), target_passes=2, seconds=0.1)
    record = json.loads(json.dumps(both.to_dict(), allow_nan=False))
    assert record["prompt"] == [1, 2] and record["lossless"] is False
    assert record["alternatives"][1] == {
        "text": "ac", "token_ids": [5, 7], "score": -1.3, "share": 0.3, "finish_reason": "length"
    }  # fmt: skip
    assert (both.texts, both.scores) == (("ab", "ac"), (-0.5, -1.3))
