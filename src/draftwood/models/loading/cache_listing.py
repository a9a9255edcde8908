"""Lists and clears the user's cache: the finished folders of models, and what other parts keep beside them."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from draftwood.errors import UnknownNameError
from draftwood.models.loading.folder_cache import MANIFEST, PARTIAL, cache_dir

OTHERS = {
    "kernels": "compiled kernels",
    "costs": "measured costs of passes",
    "acceptance": "measured acceptance",
    "seen": "checksums of files",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in the cache. `of`: the file or folder it was made from."""

    name: str
    num_bytes: int
    what: str
    of: str
    path: Path


def entries() -> list[Entry]:
    """Everything in the cache, models first, the largest first."""
    root = cache_dir()
    models = [_model(path) for path in _folders(root / "models")]
    others = [
        Entry(path.name, _size(path), OTHERS.get(path.name, "what was measured or chosen for a model"), "", path)
        for path in _folders(root)
        if path.name != "models"
    ]
    return [*sorted(models, key=lambda each: -each.num_bytes), *sorted(others, key=lambda each: each.name)]


def clear(name: str | None = None) -> tuple[list[Entry], list[Entry]]:
    """Remove all entries, or those called `name` or made from it. Returns the removed ones, and those that another process
    is making now, which stay. A process that has an entry mapped keeps its pages."""
    found = entries()
    if name is not None:
        path = str(Path(name).expanduser().absolute())
        found = [each for each in found if name in (each.name, each.of, Path(each.of).name) or each.of == path]
        if not found:
            raise UnknownNameError("cache entry", name, [each.name for each in entries()], "see draftwood cache")
    removed: list[Entry] = []
    busy: list[Entry] = []
    for each in found:
        (removed if _remove(each) else busy).append(each)
    return removed, busy


def _model(path: Path) -> Entry:
    if path.name.endswith(PARTIAL):
        return Entry(path.name, _size(path), "unfinished", "", path)
    try:
        about = json.loads((path / MANIFEST).read_text("utf-8")).get("about") or {}
    except (OSError, ValueError, AttributeError):
        about = {}
    return Entry(path.name, _size(path), about.get("what", "made by an earlier version"), about.get("of", ""), path)


def _remove(entry: Entry) -> bool:
    if entry.path.parent.name != "models":
        shutil.rmtree(entry.path, ignore_errors=True)
        return True
    lock = entry.path.with_name(entry.name.removesuffix(PARTIAL).split(".damaged-")[0] + ".lock")
    try:
        with FileLock(lock, blocking=False):
            aside = entry.path.with_name(f"{entry.name.removesuffix(PARTIAL)}.damaged-clear{PARTIAL}")
            if entry.path != aside and entry.path.exists():  # else removed with the entry that it was left of
                shutil.rmtree(aside, ignore_errors=True)  # what an interrupted removal left
                entry.path.rename(aside)  # in one step, so that no process opens half of it
            shutil.rmtree(aside, ignore_errors=True)
    except Timeout:
        return False
    return True


def _folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
