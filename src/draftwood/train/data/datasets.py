"""The data of a training run: reads dialogues from several folders, splits off held-out ones, merges the records.

Folders that several processes wrote are read as one. A prompt that occurs in an earlier folder, or that any folder holds
out, is not trained on again.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.train.data import dialogues
from draftwood.train.data.dialogues import HELDOUT, RECORD, TRAIN, Dialogue, Dialogues

_TOTALS = "lines kinds heldout_dialogues dropped loops_shortened answer_tokens tokens_written seconds".split()
LEAST = 8  # held-out dialogues
_FACTS = ("seed", "settings", "texts", "backend", "draftwood")


def read(paths: Sequence[Path], loaded: Loaded) -> tuple[Dialogues, Dialogues, list[str]]:
    """(training set, held-out set, complaints). If few dialogues are held out, the last of the training set are
    added; if the training set is too small for that, it is also the held-out set."""
    _check(paths, loaded)
    vocab_size, tokenizer = loaded.info.vocab_size, loaded.tokenizer
    train = [dialogues.read(path, tokenizer, vocab_size) for path in paths]
    files = [file for path in paths if (file := path / HELDOUT).is_file() and file.stat().st_size]
    held, complaints = _readable(files, loaded)
    complaints += [found.complaint() or "" for found in (*train, *held)]
    if len(paths) > 1:
        train, known = _once(train, {_prompt(d) for found in held for d in found})
        complaints += known
    train_set, held_set = _split(_together(train), _together(held) if held else None)
    return train_set, held_set, [complaint for complaint in complaints if complaint]


def record(path: Path) -> dict[str, Any]:
    """The record that `draftwood train data` wrote into the folder; empty if there is none."""
    try:
        raw = json.loads((path / RECORD).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def summed(paths: Sequence[Path]) -> dict[str, Any]:
    """The records of all folders as one. Counts are added; a file counts as excluded only if every folder excluded it."""
    records = [(path.resolve().name, found) for path in paths if (found := record(path))]
    try:
        return _summed(records, len(paths)) if records else {}
    except (KeyError, TypeError, AttributeError) as error:
        said = ", ".join(str(path / RECORD) for path in paths)
        raise OptionError(
            f"{said}: not a record of training data: {error!r}\nhint: remove it, or name the .jsonl file"
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
    """The sum of numbers, or of dicts key by key."""
    if not any(isinstance(value, dict) for value in values):
        return round(sum(values), 1)
    return {key: _sum([v[key] for v in values if key in v]) for key in dict.fromkeys(k for v in values for k in v)}


def _check(paths: Sequence[Path], loaded: Loaded) -> None:
    """OptionError for a folder that another target wrote and for one that is named twice."""
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise OptionError(f"--data {path} is given twice\nhint: name every folder once")
        writer = record(path).get("target")
        if isinstance(writer, dict) and writer.get("fingerprint") not in (None, loaded.fingerprint):
            raise OptionError(
                f"{path} was written by {writer.get('name')} ({writer['fingerprint']}), not by {loaded.name} "
                f"({loaded.fingerprint})\nhint: a drafter is trained on text of its own target: `draftwood train data "
                f"--target {loaded.name}`; to use this data anyway, name the file {path / TRAIN}"
            )


def _readable(files: Sequence[Path], loaded: Loaded) -> tuple[list[Dialogues], list[str]]:
    """The readable held-out files, and complaints about the others."""
    found, complaints = list[Dialogues](), list[str]()
    for file in files:
        try:
            found.append(dialogues.read(file, loaded.tokenizer, loaded.info.vocab_size))
        except OptionError as error:
            complaints.append(str(error).partition("\nhint")[0])
    return found, complaints


def _prompt(dialogue: Dialogue) -> bytes:
    return dialogue.tokens[: dialogue.answers[0][0]].tobytes()


def _once(sources: list[Dialogues], held: set[bytes]) -> tuple[list[Dialogues], list[str]]:
    """Every source without prompts of earlier sources and without held-out prompts."""
    kept, complaints, seen = list[Dialogues](), list[str](), held
    for source in sources:
        items = tuple(d for d in source if _prompt(d) not in seen)
        seen = seen | {_prompt(d) for d in source}
        if len(items) < len(source):
            what = f"{len(source) - len(items)} of {len(source)} dialogues"
            complaints.append(f"{source.path}: {what} occur in another folder and are left out")
        kept.append(replace(source, items=items))
    return kept, complaints


def _split(train: Dialogues, held: Dialogues | None) -> tuple[Dialogues, Dialogues]:
    """Adds to the held-out set if it has fewer than `LEAST` dialogues."""
    items = () if held is None else held.items
    missing = LEAST - len(items)
    if missing <= 0 or len(train) < 5 * LEAST:
        return train, held or train
    kept, more = train.items[:-missing], train.items[-missing:]
    return replace(train, items=kept), replace(held or train, items=(*items, *more))


def _together(sources: list[Dialogues]) -> Dialogues:
    first, *others = sources
    if not others:
        return first
    return replace(first, items=tuple(d for source in sources for d in source), num_broken=0, broken=())
