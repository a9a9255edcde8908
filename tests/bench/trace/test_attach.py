"""What an LLM does inside `traced` is in the file, and a file that lacks rounds is reported."""

from pathlib import Path

import pytest

from draftwood.bench.trace.attach import traced
from draftwood.bench.trace.file import TraceWriter
from draftwood.bench.trace.summary import counted
from draftwood.bench.trace.trace import read
from draftwood.errors import TraceError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("m"))), dtype="float32")


def test_a_batch_of_threads_is_recorded_whole(loaded, tmp_path: Path):
    with LLM(loaded, "prompt_lookup", max_num_seqs=3, n_max=3) as llm:
        llm.generate("before", max_tokens=3)
        with traced(llm, tmp_path / "t", ["n_max=3"]):
            results = llm.generate(["ababab", "xyzxyz", "hello", "aaaa"], max_tokens=9, temperature=0.5)
    trace = read(tmp_path / "t")
    texts = {tuple(each.asked.prompt): each.output for each in trace.requests}
    assert sorted(map(tuple, texts.values())) == sorted(r.token_ids for r in results)
    assert counted(trace.rounds)[0] == sum(r.stats.target_passes for r in results)
    assert trace.header.spelt == "prompt_lookup:n_max=3" and trace.header.fingerprint == loaded.fingerprint
    assert trace.header.machine["cpu"] and trace.unfinished == 0
    assert sorted(each.asked.seed for each in trace.requests) == sorted(r.seed for r in results)


def test_a_full_disk_costs_no_answer_and_is_reported(loaded, tmp_path: Path, monkeypatch):
    def full(self: TraceWriter, record: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TraceWriter, "__call__", full)
    with LLM(loaded, "autoregressive") as llm:
        plain = llm.generate("abc", max_tokens=5)
        with pytest.raises(TraceError, match="is incomplete"), traced(llm, tmp_path / "t"):
            assert llm.generate("abc", max_tokens=5).token_ids == plain.token_ids


def test_an_error_inside_leaves_a_readable_file_and_passes(loaded, tmp_path: Path):
    with LLM(loaded, "autoregressive") as llm, pytest.raises(KeyboardInterrupt), traced(llm, tmp_path / "t"):
        llm.generate("abc", max_tokens=5)
        raise KeyboardInterrupt
    assert read(tmp_path / "t").num_tokens == 5


def test_without_a_file_nothing_is_recorded(loaded):
    with LLM(loaded, "autoregressive") as llm, traced(llm, None):
        assert llm.recipe.record == ()
