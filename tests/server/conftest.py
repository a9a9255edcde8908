"""A live server on a free port of loopback, with a tiny model, for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwood.models.loading.load import Loaded, load
from draftwood.testing.folder import write_folder
from live_server import LiveServer, started

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(Path(tmp_path_factory.mktemp("model")), max_positions=1024)), dtype="float64")


@pytest.fixture(scope="session")
def server(loaded: Loaded) -> Iterator[LiveServer]:
    """Shared by tests that leave it as it was."""
    with started(loaded, recipes=("prompt_lookup", "draft_and_verify:skip=a1")) as found:
        yield found
