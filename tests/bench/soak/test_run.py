"""A soak finds nothing on a whole server, and finds what is broken."""

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
