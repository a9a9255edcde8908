"""llama.cpp on the embedded model's own file. In a process of its own, as in a run: it brings threads and a server."""

from pathlib import Path

import numpy as np
import pytest

from draftwood.bench.spec.peers import Settings
from draftwood.bench.spec.peers.llamacpp import LlamaCpp, gguf_file, weight_type
from draftwood.bench.spec.worker_process import WorkerProcess
from draftwood.errors import DraftwoodError, OptionError

PROMPT = [1, 4093, 198, 504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 4649, 314]


class Canned:
    """A server that says what a test wants it to have said."""

    def __init__(self, **changes) -> None:
        self.said = {
            "choices": [{"finish_reason": "length"}],
            "usage": {"prompt_tokens": 15, "completion_tokens": 4},
            "timings": {"prompt_ms": 10.0, "predicted_ms": 20.0, "draft_n": 6, "draft_n_accepted": 1},
            "__verbose": {"tokens": [5, 6, 7, 8]},
        } | changes

    def handle_completions(self, asked):
        self.asked = asked
        return self.said


def canned(temperature: float = 0.0, **changes) -> LlamaCpp:
    peer = LlamaCpp("")
    peer.settings = Settings("m", 1, 4, temperature=temperature, seed=5)
    peer.server = Canned(**changes)
    return peer


def test_its_own_counts_and_clocks_are_read():
    said = canned().answer("llamacpp", PROMPT, 0)
    assert (said["tokens"], said["emitted"], said["passes"], said["drafted"]) == ([5, 6, 7, 8], 4, 3, 6)
    assert (said["first_seconds"], said["decode_seconds"]) == (0.01, 0.02)


def test_ids_that_do_not_match_the_count_are_not_used():
    said = canned(__verbose={"tokens": [5]}).answer("llamacpp", PROMPT, 0)
    assert said["tokens"] == [] and said["emitted"] == 4 and "its own count" in said["counted"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"usage": {"prompt_tokens": 16, "completion_tokens": 4}}, "16 prompt tokens instead of 15"),
        ({"timings": {"prompt_ms": 1.0, "predicted_ms": 1.0, "cache_n": 7}}, "7 prompt tokens came from its cache"),
        ({"error": {"message": "too long"}}, "too long"),
    ],
)
def test_an_answer_to_another_prompt_or_from_a_cache_is_a_failure(changes, why: str):
    with pytest.raises(RuntimeError, match=why):
        canned(**changes).answer("llamacpp", PROMPT, 0)


def test_it_is_asked_for_nothing_but_temperature():
    greedy, sampled = canned(), canned(temperature=0.7)
    greedy.answer("llamacpp", PROMPT, 1)
    sampled.answer("llamacpp", PROMPT, 1)
    assert greedy.server.asked["cache_prompt"] is False and greedy.server.asked["temperature"] == 0
    assert sampled.server.asked["samplers"] == ["temperature"] and sampled.server.asked["seed"] == 6


def test_a_gguf_file_is_found_and_anything_else_refused(tmp_path: Path):
    file = tmp_path / "model.gguf"
    file.touch()
    assert gguf_file(str(file)) == file
    with pytest.raises(OptionError, match="cannot read"):
        gguf_file(str(tmp_path))


def test_the_type_of_most_weights_is_what_it_computes_in(tmp_path: Path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("norm", np.zeros(32, dtype=np.float32))
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("weight", gguf.quants.quantize(np.zeros((16, 32), dtype=np.float32), kind), raw_dtype=kind)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    assert weight_type(tmp_path / "model.gguf") == "Q8_0"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llamacpp", "llamacpp-ngram-cache"])
def test_it_answers_the_very_prompt_and_forgets_it(name: str):
    pytest.importorskip("xllamacpp")
    try:
        gguf_file("smollm2")
    except DraftwoodError:
        pytest.skip("the embedded model is not installed")
    process = WorkerProcess(name)
    try:
        process.open(Settings("smollm2", 1, 12, eos=(2,)))
        first, second = (process.call("answer", method=name, prompt=PROMPT * 2, index=0) for _ in range(2))
    finally:
        process.close()
    assert first["emitted"] == len(first["tokens"]) and first["tokens"] == second["tokens"]
    assert first["drafted"] == second["drafted"]  # a mode that remembered would copy its first answer
