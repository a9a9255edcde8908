"""A worker without its process, and a model that fits on a page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwood.bench.spec.peers.ours import Ours
from draftwood.bench.spec.worker_process import WorkerProcess
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs our worker's peer in this process; `judge` replaces its comparison of texts."""

    def install(judge: Any = None) -> None:
        peer = Ours()

        def opened(self: WorkerProcess, settings: Any) -> dict[str, Any]:
            self.facts = peer.open(settings)
            return self.facts

        def call(self: WorkerProcess, op: str, **asked: Any) -> dict[str, Any]:
            return judge(**asked) if op == "judge" and judge else getattr(peer, op)(**asked)

        monkeypatch.setattr(WorkerProcess, "alive", property(lambda self: True))
        monkeypatch.setattr(WorkerProcess, "open", opened)
        monkeypatch.setattr(WorkerProcess, "call", call)

    return install
