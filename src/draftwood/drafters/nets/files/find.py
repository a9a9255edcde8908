"""A trained drafter for a target: the one that ships, or the file a user names; checked against the target either way."""

from pathlib import Path
from typing import Any

from draftwood import weights as shipped
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.store import Head, read, read_note
from draftwood.errors import CompositionError, OptionError, WeightsError

AUTO = "auto"


def load_head(weights: str, target: Runner, kind: str, recipe: str) -> Head:
    """`weights`: "auto", or a file. Errors name the file, or end with the command that trains one."""
    path = shipped_file(kind, target, recipe) if weights == AUTO else Path(weights)
    if not path.is_file():
        what, inside = "is a folder" if path.is_dir() else "no such file", path / f"{recipe}.safetensors"
        if inside.is_file():
            raise WeightsError(f"{path}: {what}\nhint: weights={inside}")
        if (path / "config.json").is_file():
            raise WeightsError(
                f"{path}: {what}, of another format by its looks\nhint: `draftwood convert {path} --to draftwood --out FILE`"
            )
        raise WeightsError(f"{path}: {what}\nhint: weights=auto, or train one: {trains(recipe, target)}")
    head = read(path)
    check(head, target, kind, str(path), recipe)
    return head


def fingerprint(target: Runner) -> str:
    """Tells targets apart; empty for a model that was not loaded from files."""
    return target.info.fingerprint


def command(recipe: str, target: Runner) -> str:
    """What trains a recipe for this target."""
    return f"draftwood train {recipe} --target {target.info.name or 'TARGET'} --out FOLDER"


def trains(recipe: str, target: Runner) -> str:
    return f"{command(recipe, target)}, then --option weights=FOLDER/{recipe}.safetensors"


def ships(kind: str, target: Runner) -> Path | None:
    """The file of this kind that ships for this target."""
    return ships_for(kind, fingerprint(target))


def ships_for(kind: str, mark: str) -> Path | None:
    """The same, for the target of this fingerprint."""
    for path in sorted(Path(shipped.__file__).parent.glob("*.safetensors")):
        note: dict[str, Any] = read_note(path)
        if mark and note["target"] == mark and note["config"].get("kind") == kind:
            return path
    return None


def shipped_file(kind: str, target: Runner, recipe: str) -> Path:
    """The same; OptionError ends with the command that trains one."""
    found = ships(kind, target)
    if found is not None:
        return found
    raise OptionError(f"{recipe}: no weights of kind {kind!r} ship for this target\nhint: {trains(recipe, target)}")


def check(head: Head, target: Runner, kind: str, where: str, recipe: str = "RECIPE") -> None:
    """CompositionError if the head was made for something else."""
    c = head.config
    if c.kind != kind:
        raise CompositionError(
            f"{where} holds weights of kind {c.kind!r}, {kind!r} was asked for\nhint: {_instead(head, recipe, target)}"
        )
    theirs = ""
    if c.target_hidden != target.info.hidden_size:
        theirs = f"reads features {c.target_hidden} wide, the target's are {target.info.hidden_size}"
    elif c.layer.vocab_size != target.info.vocab_size:
        theirs = f"has a vocabulary of {c.layer.vocab_size} tokens, the target of {target.info.vocab_size}"
    elif far := [tap for tap in c.taps if not -1 <= tap <= target.info.num_layers]:
        theirs = f"taps layers {far}, the target has taps 0 to {target.info.num_layers}"
    if theirs:
        raise CompositionError(f"{where} {theirs}\nhint: it is for another model; {command(recipe, target)}")
    mark = fingerprint(target)
    if mark and head.target and head.target != mark:
        theirs, ours = head.record.get("target", "another target"), target.info.name or "this target"
        raise CompositionError(
            f"{where} was trained for {theirs} ({head.target}), not for {ours} ({mark})\n"
            f"hint: a head guesses well only for the model it was trained on; {command(recipe, target)}"
        )


def _instead(head: Head, recipe: str, target: Runner) -> str:
    """What to do with weights of another kind: the recipe that they were trained for, or weights for this one."""
    name = head.record.get("recipe")
    return f"recipe {name} takes them; {trains(recipe, target)}" if isinstance(name, str) else trains(recipe, target)
