"""Workers that need no model, and a model that fits on a page."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draftwood.bench.spec.answer import Answer
from draftwood.bench.spec.worker_process import WorkerProcess
from draftwood.testing.folder import write_folder

FAKE = Path(__file__).with_name("fake_worker.py")


@pytest.fixture
def fake() -> Iterator[Callable[..., WorkerProcess]]:
    """Starts fake workers by kind, and ends them with the test."""
    made: list[WorkerProcess] = []

    def make(kind: str, **options: float) -> WorkerProcess:
        made.append(WorkerProcess(kind, command=[sys.executable, str(FAKE), kind], **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for process in made:
        process.close(now=True)


@pytest.fixture
def answer() -> Callable[..., Answer]:
    """An answer of `emitted` tokens in `seconds`, a fifth of them before the first token."""

    def make(method: str, question: str, emitted: int, seconds: float, **fields: object) -> Answer:
        made = Answer(method, question, "qa", "qa", 5)
        made.emitted, made.seconds = emitted, seconds
        made.first_seconds, made.decode_seconds = seconds / 5, seconds * 4 / 5
        for key, value in fields.items():
            setattr(made, key, value)
        return made

    return make


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))
