"""SkipSet: which sub-layers a draft leaves out, as text and as a file.

    a3+a5+m7        attention of layers 3 and 5, the MLP of layer 7; layers count from 0

A file holds the same with the target that it was searched for, as `draftwood search layers` writes it.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood import weights as shipped
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.find import AUTO, fingerprint
from draftwood.errors import OptionError

WEIGHTS = Path(shipped.__file__).parent
NONE = "none"
_WORD = re.compile(r"([am])(\d{1,4})")


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Layers whose attention, and layers whose MLP is left out."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    @staticmethod
    def of(attention: Iterable[int] = (), mlp: Iterable[int] = ()) -> "SkipSet":
        return SkipSet(frozenset(attention), frozenset(mlp))

    @staticmethod
    def parse(text: str) -> "SkipSet":
        """The text form; OptionError names the word that is none of it."""
        words = [] if text == NONE else text.split("+")
        found: dict[str, set[int]] = {"a": set(), "m": set()}
        for word in words:
            match = _WORD.fullmatch(word.strip())
            if match is None:
                raise OptionError(
                    f"skip: {word!r} is no sub-layer\nhint: aN for the attention of layer N, mN for its MLP, joined by +, "
                    "as in a3+a5+m7; or a file that `draftwood search layers` wrote"
                )
            found[match[1]].add(int(match[2]))
        return SkipSet.of(found["a"], found["m"])

    def __str__(self) -> str:
        return "+".join([*(f"a{i}" for i in sorted(self.attention)), *(f"m{i}" for i in sorted(self.mlp))]) or NONE

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)

    def check(self, num_layers: int) -> "SkipSet":
        """This set; OptionError if it names a layer that the target does not have, or leaves nothing to run."""
        outside = sorted(i for i in self.attention | self.mlp if not 0 <= i < num_layers)
        if outside:
            raise OptionError(
                f"skip: layers {outside} are not among the target's {num_layers}\nhint: from 0 to {num_layers - 1}"
            )
        if len(self) == 2 * num_layers:
            raise OptionError(
                f"skip leaves nothing of the target's {num_layers} layers\nhint: skip fewer sub-layers; about half is usual"
            )
        return self


def shipped_file(target: Runner) -> Path:
    """Where the set of this target is, or would be, in the package."""
    return WEIGHTS / f"skip-{fingerprint(target) or 'unnamed'}.json"


def read_skip_set(source: str, target: Runner) -> SkipSet:
    """ "auto": the set that ships for the target; else a file, or the text form. OptionError says what is wrong."""
    layers = target.info.num_layers
    if source == AUTO:
        path = shipped_file(target)
        if not path.is_file():
            name = target.info.name or "MODEL"
            raise OptionError(
                "no set of skipped layers ships for this target\n"
                f"hint: draftwood search layers --model {name} --out FILE, then --option skip=FILE; or by hand, as in "
                f"skip=a{layers // 2}+m{layers // 2}"
            )
        return read_file(path, target)
    named = "/" in source or source.endswith(".json") or (source and Path(source[:255]).is_file())
    return read_file(Path(source), target) if named else SkipSet.parse(source).check(layers)


def read_file(path: Path, target: Runner) -> SkipSet:
    """A file of `draftwood search layers`; OptionError if it is none, or of another target."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        made_for, skip = found["target"], SkipSet.of(_numbers(found["attention"]), _numbers(found["mlp"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is another kind of file"
        raise OptionError(
            f"skip: {path} cannot be read as a set of skipped layers: {why}\n"
            "hint: a file that `draftwood search layers` wrote, or sub-layers as in a3+a5+m7"
        ) from None
    own = fingerprint(target)
    if made_for != own:
        raise OptionError(
            f"skip: {path} was searched for the target {made_for}, this one is {own}\n"
            "hint: draftwood search layers --model MODEL --out FILE"
        )
    return skip.check(target.info.num_layers)


def _numbers(found: Any) -> list[int]:
    """ValueError unless these are layers."""
    if not isinstance(found, list) or any(type(i) is not int for i in found):
        raise ValueError(f"no layers: {found!r}")
    return found


def write_file(path: Path, target: Runner, skip: SkipSet, more: dict[str, Any]) -> None:
    """`more`: what the search measured."""
    told = {
        "target": fingerprint(target),
        "attention": sorted(skip.attention),
        "mlp": sorted(skip.mlp),
        "skip": str(skip),
        **more,
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(told, indent=1) + "\n")
    partial.replace(path)
