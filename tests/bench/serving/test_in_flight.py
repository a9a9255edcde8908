"""Blocks of requests: so many in flight, the same ones for every case."""

from typing import Any

from draftwood.bench.serving.in_flight import PLAIN, Server, cases, measure
from draftwood.core.config import EngineConfig
from draftwood.core.sampling.params import SamplingParams
from draftwood.llm import LLM
from draftwood.models.loading.load import load
from draftwood.testing.folder import write_folder

PARAMS = SamplingParams(max_tokens=5, ignore_eos=True)


def model(tmp_path: Any) -> Any:
    return load(str(write_folder(tmp_path / "model", num_layers=3)), dtype="float32")


def test_never_more_than_so_many_are_in_flight_and_all_are_served(tmp_path: Any) -> None:
    llm = LLM(model(tmp_path), "autoregressive", config=EngineConfig(max_num_seqs=4, max_model_len=32))
    server, most = Server(PLAIN, llm, PARAMS), 0
    step = llm.engine.step

    def watched() -> Any:
        nonlocal most
        most = max(most, len(llm.engine.scheduler.running) + llm.engine.scheduler.waiting)
        return step()

    llm.engine.step = watched  # type: ignore[method-assign]
    *_, block = server.run([[1, 2], [3], [4], [5, 6], [7]], 2)
    assert most == 2 and len(block.texts) == len(block.latencies) == 5
    lengths = list(map(len, block.texts))
    assert lengths == [2, 6, 4, 7, 5] and block.tokens < sum(lengths), "what runs out at the end is not counted"
    assert all(latency > 0 for latency in block.latencies)


def test_cases_are_compared_with_plain_decoding_in_pairs(tmp_path: Any) -> None:
    loaded = model(tmp_path)
    ways = cases(loaded, [2], "speculative_sampling:draft=first:1", ["prompt_lookup"])
    found = measure(loaded, ways, [[1, 2, 1, 2], [3, 3]], PARAMS, 2, 3, 2)
    assert [row.case for row in found] == [PLAIN, "depth 2", "prompt_lookup"]
    assert all(row.identical == row.requests == 6 for row in found)
    assert found[0].speed is None and all(row.speed is not None and row.speed.pairs == 3 for row in found[1:])


def test_a_text_that_differs_is_seen(tmp_path: Any, monkeypatch: Any) -> None:
    """The twin: one case answers other questions."""
    loaded = model(tmp_path)
    run = Server.run

    def wrong(self: Any, prompts: Any, count: int) -> Any:
        return run(self, [[9, 9, 9]] * len(prompts) if self.name != PLAIN else prompts, count)

    monkeypatch.setattr(Server, "run", wrong)
    found = measure(loaded, cases(loaded, [], "auto", ["prompt_lookup"]), [[1, 2], [3]], PARAMS, 2, 1, 2)
    assert found[1].identical < found[1].requests
