from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from draftwood.bench.spec import peers
from draftwood.errors import OptionError, UnknownNameError


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Only these packages are there."""

    def only(*names: str) -> None:
        monkeypatch.setattr(
            peers.importlib.util, "find_spec", lambda name: ModuleSpec(name, None) if name in names else None
        )

    return only


@pytest.mark.parametrize(("peer", "package"), [("transformers-lookup", "transformers"), ("llamacpp", "xllamacpp")])
def test_a_peer_that_is_not_installed_says_how_to_install_it(installed, peer: str, package: str):
    installed()
    with pytest.raises(OptionError, match=rf"{peer} needs {package}.*\nhint: pip install 'draftwood\[peers\]'"):
        peers.check([peer], "smollm2")


def test_an_unknown_peer_gets_the_nearest_name():
    with pytest.raises(UnknownNameError, match="did you mean 'llamacpp"):
        peers.check(["lamacpp"], "smollm2")


def test_llama_cpp_is_refused_for_models_it_cannot_read(installed, folder):
    installed("xllamacpp")
    with pytest.raises(OptionError, match="hint: a GGUF file"):
        peers.check(["llamacpp"], str(folder))


def test_a_draft_model_and_the_peer_that_uses_it_belong_together(installed, tmp_path: Path):
    installed("xllamacpp")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    with pytest.raises(OptionError, match=r"llamacpp-draft needs a draft model\nhint: --draft FILE"):
        peers.check(["llamacpp-draft"], "smollm2")
    with pytest.raises(OptionError, match=r"--draft small.gguf is the draft model of llamacpp-draft.*\nhint: --peers"):
        peers.check(["llamacpp"], "smollm2", "small.gguf")
    with pytest.raises(OptionError, match=r"llama\.cpp cannot read 'none\.gguf'"):
        peers.check(["llamacpp-draft"], str(file), "none.gguf")
    peers.check(["llamacpp-draft"], str(file), str(file))


def test_every_name_makes_a_peer_of_its_own():
    modes = {peers.make(name).mode for name in peers.NAMES if name.startswith("llamacpp")}  # type: ignore[attr-defined]
    assert modes == {"", "draft", *(f"ngram-{mode}" for mode in peers.NGRAM_MODES)}
    assert [peers.make(name).lookup for name in peers.NAMES[:2]] == [False, True]  # type: ignore[attr-defined]
