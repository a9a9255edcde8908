"""A tiny random model with a byte tokenizer, on disk and in memory: it chats nonsense, and ends its turns now and then."""

from pathlib import Path

import pytest

from draftwood.models.loading.load import Loaded, load
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("models") / "tiny")))


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("models") / "other", seed=1)))


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    """Two files of sentences."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, thing in (("one.txt", "bridge"), ("two.md", "garden")):
        lines = [
            f"The {thing} number {i} was built by Maria Stone in {1900 + i}. It is still there." for i in range(12)
        ]
        (folder / name).write_text("\n\n".join(lines))
    return folder
