"""A soak finds nothing on a whole server, and finds what is broken."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from draftwood.bench.soak.run import Found, soak
from draftwood.models.loading.load import Loaded, load
from draftwood.server.ask import Ask
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(Path(tmp_path_factory.mktemp("model")), max_positions=2048)), dtype="float64")


def check(found: Found, least: int) -> None:
    assert found.faults == []
    assert sum(found.requests.values()) >= least and found.compared and found.tokens
    assert not {500, 502} & set(found.statuses)


@pytest.mark.slow
def test_a_short_soak_leaves_nothing_behind(loaded: Loaded) -> None:
    check(soak(loaded, "prompt_lookup", seconds=1.5, clients=12, max_tokens=24, compare=8), 20)


@pytest.mark.long
def test_a_soak_leaves_nothing_behind(loaded: Loaded) -> None:
    found = soak(loaded, "prompt_lookup", seconds=20, clients=32, max_tokens=48)
    check(found, 200)
    assert set(found.injected) == {"raises", "nan", "slow"}


@pytest.mark.slow
def test_a_second_run_of_the_same_load_leaves_memory_and_files_as_they_were(loaded: Loaded) -> None:
    found = soak(loaded, "prompt_lookup", seconds=1.5, clients=12, max_tokens=24, compare=2, runs=2)
    assert found.faults == [] and len(found.memory) == 2
    assert found.record()["memory_growth"] == pytest.approx(found.memory[1] / found.memory[0] - 1)


@pytest.mark.slow
def test_files_that_stay_open_are_found(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a part opens one and forgets it."""
    kept: list[int] = []
    advance = Ask.advance

    def leaking(self: Any, *given: Any) -> bool:
        if not kept:
            kept.append(os.open(os.devnull, os.O_RDONLY))
        return advance(self, *given)

    monkeypatch.setattr(Ask, "advance", leaking)
    monkeypatch.setattr("draftwood.bench.soak.run.SETTLE", 0.3)
    found = soak(loaded, "prompt_lookup", seconds=0.3, clients=2, max_tokens=24, compare=0)
    os.close(kept[0])
    assert any("files are open" in fault for fault in found.faults), found.faults


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "grows"), [((1000, 1029), False), ((1000, 1031), True), ((2000, 1000), False)])
def test_memory_that_grows_from_run_to_run_is_found(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], grows: bool
) -> None:
    left = list(sizes)
    monkeypatch.setattr("draftwood.bench.soak.run.resident_bytes", lambda: left.pop(0))
    found = soak(loaded, "prompt_lookup", seconds=0.2, clients=2, max_tokens=24, compare=0, runs=2)
    assert any("memory grew" in fault for fault in found.faults) == grows


@pytest.mark.slow
def test_an_answer_that_is_lost_is_found(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a server that changes one text in some answers does not pass."""
    advance = Ask.advance

    def wrong(self: Any, *given: Any) -> bool:
        found = advance(self, *given)
        if self.request.finished and len(self.request.settled) > 3 and self.request.id % 2:
            self.request.settled = "!" + self.request.settled[1:]
        return found

    monkeypatch.setattr(Ask, "advance", wrong)
    found = soak(loaded, "prompt_lookup", seconds=1, clients=6, max_tokens=24, compare=30)
    assert any("another text" in fault or "schema" in fault or "Decode" in fault for fault in found.faults)
