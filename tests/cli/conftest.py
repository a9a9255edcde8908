"""One copy of the embedded model for all tests of commands; a command gets an engine of its own on it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from typer.testing import CliRunner

from draftwood.cli import open_llm
from draftwood.cli.main import app
from draftwood.core.config import EngineConfig
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load

ROWS = 512  # a short context, because fresh memory is the largest cost of a fresh engine
SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny passes gain nothing from a second thread and lose much beside a busy neighbour."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def weights() -> Loaded:
    return load("smollm2")


@pytest.fixture
def opened(weights: Loaded, monkeypatch: pytest.MonkeyPatch) -> list[LLM]:
    """Commands open the shared weights; the list tells what they opened."""
    made: list[LLM] = []

    def opened_llm(
        model: str,
        recipe: str,
        *,
        dtype: str = "auto",
        device: str = "auto",
        slots: int = 1,
        options: Sequence[str] = (),
        batch_invariant: bool = False,
    ) -> LLM:
        chosen = open_llm.recipe_options(recipe, options)
        assert (model, dtype, device) == ("smollm2", "auto", "auto")
        config = EngineConfig(max_num_seqs=slots, max_model_len=ROWS, batch_invariant=batch_invariant)
        made.append(LLM(weights, recipe, config=config, **chosen))
        return made[-1]

    monkeypatch.setattr(open_llm, "open_llm", opened_llm)
    return made


@pytest.fixture
def llm(weights: Loaded) -> LLM:
    return LLM(weights, "auto", config=EngineConfig(max_num_seqs=2, max_model_len=ROWS))


@pytest.fixture
def plain(weights: Loaded) -> LLM:
    return LLM(weights, "autoregressive", config=EngineConfig(max_num_seqs=1, max_model_len=ROWS))


@pytest.fixture
def draftwood(opened: list[LLM]) -> Callable[..., Any]:
    """A command in this process, as typer's runner sees it."""

    def invoke(*words: str, stdin: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, list(words), input=stdin)

    return invoke


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A command in a process of its own, ended with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def launch(*words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")}
        settings = {**kept, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "TERM": "xterm", **(env or {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen([sys.executable, "-m", "draftwood", *words], env=settings, **pipes)
        running.append(cast("subprocess.Popen[bytes]", process))
        return running[-1]

    yield launch
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
