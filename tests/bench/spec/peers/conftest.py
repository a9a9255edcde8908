from pathlib import Path

import pytest

from draftwood.bench.spec.peers import Settings
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A tiny model with ten tokens to write, and recipes that write them."""
    folder: Path = write_folder(tmp_path_factory.mktemp("model"))
    return Settings(str(folder), 1, 10, methods=("autoregressive", "prompt_lookup"), eos=(257,))
