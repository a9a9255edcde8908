"""Converts draft heads between formats and checks that the logits stay the same.

    draftwood        one safetensors file                    eagle           EAGLE and EAGLE-2
    eagle3           EAGLE-3 and 3.1 as first published      speculators     EAGLE-3 of the `speculators` package
    medusa           Medusa, also in vLLM's spelling             mlp_speculator  MLP speculator

A conversion changes the format, never the kind of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory

from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import Head, read_note, to_bytes
from draftwood.drafters.nets.files.store import read as read_own
from draftwood.errors import OptionError, UnknownNameError, WeightsError
from draftwood.train.formats import eagle, eagle3, medusa, mlp, roundtrip, speculators
from draftwood.train.formats.conversion import Conversion, check_target
from draftwood.train.formats.files import CONFIG, Found, read_folder
from draftwood.train.loop.checkpoint import replace_file

OWN = "draftwood"
# Format -> kind of head, reader, writer.
FORMATS: dict[str, tuple[str, Callable[[Found, Conversion], Head], Callable[[Head, Path, Conversion], None]]] = {
    "eagle": ("eagle", eagle.read, eagle.write),
    "eagle3": ("eagle3", eagle3.read, eagle3.write),
    "speculators": ("eagle3", speculators.read, speculators.write),
    "medusa": ("medusa", medusa.read, medusa.write),
    "mlp_speculator": ("mlp", mlp.read, mlp.write),
}


@dataclass(frozen=True, slots=True, eq=False)
class Converted:
    source: str  # format that was read
    head: Head
    difference: float  # largest difference of logits
    columns: int  # tokens whose logits were compared
    rounded: bool  # the chosen storage rounds weights

    @property
    def same(self) -> bool:
        return self.difference <= roundtrip.LIMIT or (self.rounded and isfinite(self.difference))


def convert(source: Path, to: str, out: Path, conversion: Conversion) -> Converted:
    """Reads the head, writes it, reads it back and compares. `out` is created only if the logits agree."""
    if to not in (OWN, *FORMATS):
        raise UnknownNameError("format", to, (OWN, *FORMATS))
    if out.exists():
        raise OptionError(f"{out} exists already\nhint: name a new --out, or remove it first")
    if not out.parent.is_dir():
        raise OptionError(f"{out.parent}: no such folder\nhint: make it first, or name another --out")
    name, head = read(source, conversion)
    try:
        with TemporaryDirectory(prefix=".draftwood-", dir=out.parent) as folder:
            fresh = Path(folder) / ("head.safetensors" if to == OWN else "head")
            write(head, to, fresh, conversion)
            back = read(fresh, replace(conversion, layer_ids="auto", notes=[]))[1]
            difference, columns = roundtrip.largest_difference(head, back, conversion.target)
            rounded = conversion.floats == 16 or (to == OWN and conversion.floats is None)
            found = Converted(name, head, difference, columns, rounded)
            if found.same:
                fresh.rename(out)
            return found
    except OSError as error:
        raise WeightsError(f"{out} could not be written: {error.strerror or error}") from None


def read(source: Path, conversion: Conversion) -> tuple[str, Head]:
    """(format, head). The tensors fit the config; the head fits the target, if one is given."""
    name, found = detect(source)
    if conversion.layer_ids != "auto" and FORMATS.get(name, ("",))[0] != "eagle3":
        raise OptionError(f"--layer-ids {conversion.layer_ids}: a file in the format {name} has no layer ids to read")
    if isinstance(found, Found):
        head = FORMATS[name][1](found, conversion)
    else:
        head = read_own(found)
    filled(head)  # checks names and shapes
    check_target(head, conversion.target, str(source))
    return name, head


def write(head: Head, to: str, out: Path, conversion: Conversion) -> None:
    """OptionError if the format cannot hold a head of this kind."""
    if to == OWN:
        replace_file(out, to_bytes(head, floats=conversion.floats))
        return
    kind, _, write_it = FORMATS[to]
    if head.config.kind != kind:
        fit = [OWN, *(name for name, (k, _, _) in FORMATS.items() if k == head.config.kind)]
        raise OptionError(
            f"a head of kind {head.config.kind!r} cannot become {to}, which holds heads of kind {kind!r}\n"
            f"hint: it can be written as {' or '.join(fit)}"
        )
    write_it(head, out, conversion)


def detect(source: Path) -> tuple[str, Found | Path]:
    """(format, files), recognised from the files. WeightsError lists what was found otherwise."""
    if source.is_file():
        if is_ours(source):
            return OWN, source
        if source.name == CONFIG or (source.parent / CONFIG).is_file():
            return detect(source.parent)
        raise WeightsError(
            f"{source}: not in the draftwood format, and its folder holds no {CONFIG}\nhint: name a folder that holds both"
        )
    if not source.is_dir():
        raise WeightsError(f"{source}: no such file or folder")
    ours = [] if (source / CONFIG).is_file() else [path for path in source.glob("*.safetensors") if is_ours(path)]
    if len(ours) == 1:
        return OWN, ours[0]
    found = read_folder(source)
    fit = _candidates(found)
    if len(fit) == 1:
        return fit[0], found
    what = f"could be {' or '.join(fit)}" if fit else "unknown format"
    names = sorted(found.tensors)
    facts = {k: found.config[k] for k in ("model_type", "architectures", "speculators_model_type") if k in found.config}
    raise WeightsError(
        f"{source}: {what}\n"
        f"hint: {CONFIG} says {facts or 'nothing about it'}; {found.file} holds {len(names)} tensors: "
        f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}\n"
        f"      known: {', '.join((OWN, *FORMATS))}"
    )


def is_ours(path: Path) -> bool:
    """Whether a file is in the draftwood format, by its metadata."""
    try:
        return path.suffix == ".safetensors" and bool(read_note(path))
    except WeightsError as error:
        return "has format" in str(error)  # of another version; reading it gives the error


def _candidates(found: Found) -> list[str]:
    names, config = set(found.tensors), found.config
    package = config.get("speculators_model_type")
    if package is not None and package != "eagle3":
        raise WeightsError(f"{found.folder}: a speculators model of type {package!r}; only 'eagle3' can be read")
    layers = any(name.startswith("layers.0.") for name in names)
    signs = {
        "mlp_speculator": config.get("model_type") == mlp.MODEL_TYPE
        or {"emb.0.weight", "proj.0.weight", "head.0.weight"} <= {name.removeprefix(mlp.PREFIX) for name in names},
        "medusa": medusa.is_medusa(names),
        "speculators": package == "eagle3",
        "eagle3": any(name.startswith("midlayer.") for name in names),
        "eagle": package is None and layers and "fc.weight" in names and "layers.0.hidden_norm.weight" not in names,
    }
    return [name for name, there in signs.items() if there]
