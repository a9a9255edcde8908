"""The texts of a run: dialogues to learn from, dialogues to look at, and what is odd about them.

Sets that several processes wrote are read as one: a prompt that an earlier folder holds, or that some folder holds out, is
not learned from again.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.train.data import dialogues as data
from draftwood.train.data.dialogues import Dialogue, Dialogues

_TOTALS = (
    "lines",
    "kinds",
    "heldout_dialogues",
    "dropped",
    "loops_shortened",
    "answer_tokens",
    "tokens_written",
    "seconds",
)
LEAST = 8  # dialogues to look at
_FACTS = ("seed", "settings", "texts", "backend", "draftwood")


def read(paths: Sequence[Path], loaded: Loaded) -> tuple[Dialogues, Dialogues, list[str]]:
    """(to learn from, held out, complaints). Where few are held out, the last of the others are, too; where there are few
    of those, they are looked at and learned from."""
    _check(paths, loaded)
    vocab_size, tokenizer = loaded.model.vocab_size, loaded.tokenizer
    train = [data.read(path, tokenizer, vocab_size) for path in paths]
    files = [file for path in paths if (file := path / data.HELDOUT).is_file() and file.stat().st_size]
    held, complaints = _readable(files, loaded)
    complaints += [found.complaint() or "" for found in (*train, *held)]
    if len(paths) > 1:
        train, known = _once(train, {_prompt(d) for found in held for d in found})
        complaints += known
    learned, looked = _apart(_together(train), _together(held) if held else None)
    return learned, looked, [complaint for complaint in complaints if complaint]


def record(path: Path) -> dict[str, Any]:
    """What `draftwood train data` wrote beside the dialogues; empty where nobody did."""
    try:
        raw = json.loads((path / data.RECORD).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def summed(paths: Sequence[Path]) -> dict[str, Any]:
    """The records of all folders as one: counts added up, and a question file as excluded only if every folder did."""
    records = [(path.resolve().name, found) for path in paths if (found := record(path))]
    try:
        return _summed(records, len(paths)) if records else {}
    except (KeyError, TypeError, AttributeError) as error:
        said = ", ".join(str(path / data.RECORD) for path in paths)
        raise OptionError(
            f"{said}: no record of training data: {error!r}\nhint: remove it, or name the .jsonl"
        ) from None


def _summed(records: list[tuple[str, dict[str, Any]]], num_paths: int) -> dict[str, Any]:
    every = [found for _, found in records]
    excluded: dict[str, tuple[dict[str, Any], int]] = {}
    for file in (file for found in every for file in found.get("excluded", [])):
        about, times = excluded.get(file["sha256"], (file, 0))
        excluded[file["sha256"]] = about, times + 1
    totals = {key: _sum([found[key] for found in every if key in found]) for key in _TOTALS}
    return {
        "target": every[0].get("target"),
        "folders": [{"name": name, **{key: found.get(key) for key in _FACTS}} for name, found in records],
        "without_record": num_paths - len(records),
        "excluded": [about for about, times in excluded.values() if times == num_paths],
        "excluded_in_part": [{**about, "folders": n} for about, n in excluded.values() if n < num_paths],
        **{key: total for key, total in totals.items() if total},
    }


def _sum(values: list[Any]) -> Any:
    """Numbers added; tables added field by field."""
    if not any(isinstance(value, dict) for value in values):
        return round(sum(values), 1)
    return {key: _sum([v[key] for v in values if key in v]) for key in dict.fromkeys(k for v in values for k in v)}


def _check(paths: Sequence[Path], loaded: Loaded) -> None:
    """OptionError names a folder that another target wrote, and one that is named twice."""
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise OptionError(f"--data {path} is named twice\nhint: every folder once")
        writer = record(path).get("target")
        if isinstance(writer, dict) and writer.get("fingerprint") not in (None, loaded.fingerprint):
            raise OptionError(
                f"{path} was written by {writer.get('name')} ({writer['fingerprint']}), not by {loaded.name} "
                f"({loaded.fingerprint})\nhint: a drafter learns from what its own target writes: `draftwood train data "
                f"--target {loaded.name}`; to learn from this all the same, name the file`{path / data.TRAIN}"
            )


def _readable(files: Sequence[Path], loaded: Loaded) -> tuple[list[Dialogues], list[str]]:
    """What is held out and can be read, and why the rest cannot. A run that looks at less is better than none."""
    found: list[Dialogues] = []
    complaints: list[str] = []
    for file in files:
        try:
            found.append(data.read(file, loaded.tokenizer, loaded.model.vocab_size))
        except OptionError as error:
            complaints.append(str(error).partition("\nhint")[0])
    return found, complaints


def _prompt(dialogue: Dialogue) -> bytes:
    return dialogue.tokens[: dialogue.answers[0][0]].tobytes()


def _once(sources: list[Dialogues], held: set[bytes]) -> tuple[list[Dialogues], list[str]]:
    """Every source without the prompts of those before it, and without what is held out anywhere."""
    kept: list[Dialogues] = []
    complaints: list[str] = []
    seen = held
    for source in sources:
        items = tuple(d for d in source if _prompt(d) not in seen)
        seen = seen | {_prompt(d) for d in source}
        if len(items) < len(source):
            what = f"{len(source) - len(items)} of {len(source)} dialogues are known"
            complaints.append(f"{source.path}: {what} from another folder and are left out")
        kept.append(replace(source, items=items))
    return kept, complaints


def _apart(learned: Dialogues, looked: Dialogues | None) -> tuple[Dialogues, Dialogues]:
    """A figure of two or three dialogues would say nothing."""
    items = () if looked is None else looked.items
    missing = LEAST - len(items)
    if missing <= 0 or len(learned) < 5 * LEAST:
        return learned, looked or learned
    kept, more = learned.items[:-missing], learned.items[-missing:]
    return replace(learned, items=kept), replace(looked or learned, items=(*items, *more))


def _together(sources: list[Dialogues]) -> Dialogues:
    first, *others = sources
    if not others:
        return first
    return replace(first, items=tuple(d for source in sources for d in source), num_broken=0, broken=())
