"""Heads in the formats of others: read, written, and proved to say the same.

    draftwood        one safetensors file of ours            eagle           EAGLE and EAGLE-2
    eagle3           EAGLE-3 and 3.1 as first published      speculators     EAGLE-3 of the `speculators` package
    medusa           Medusa, also in vLLM's form             mlp_speculator  MLP speculator

A head changes its format, never its kind.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory

from draftwood.drafters.nets.build import filled
from draftwood.drafters.nets.store import Head, read_note, to_bytes
from draftwood.drafters.nets.store import read as read_own
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
    source: str  # format
    head: Head
    difference: float  # largest, of logits
    columns: int
    rounded: bool  # by the user's choice of how it is stored

    @property
    def same(self) -> bool:
        return self.difference <= roundtrip.LIMIT or (self.rounded and isfinite(self.difference))


def convert(source: Path, to: str, out: Path, conversion: Conversion) -> Converted:
    """Read, write beside `out`, read back, compare; `out` appears only when all of it went well enough to be looked at."""
    if to not in (OWN, *FORMATS):
        raise UnknownNameError("format", to, (OWN, *FORMATS))
    if out.exists():
        raise OptionError(f"{out} is there already\nhint: name a new --out, or remove it first")
    if not out.parent.is_dir():
        raise OptionError(f"{out.parent}: no such folder to write into")
    name, head = read(source, conversion)
    try:
        with TemporaryDirectory(prefix=".draftwood-", dir=out.parent) as beside:
            fresh = Path(beside) / ("head.safetensors" if to == OWN else "head")
            write(head, to, fresh, conversion)
            back = read(fresh, replace(conversion, layer_ids="auto", notes=[]))[1]
            apart, columns = roundtrip.largest_difference(head, back, conversion.target)
            rounded = conversion.floats == 16 or (to == OWN and conversion.floats is None)
            found = Converted(name, head, apart, columns, rounded)
            if found.same:
                fresh.rename(out)
            return found
    except OSError as error:
        raise WeightsError(f"{out} could not be written: {error.strerror or error}") from None


def read(source: Path, conversion: Conversion) -> tuple[str, Head]:
    """The format's name and a head whose tensors fit its config; checked against the target where there is one."""
    name, found = detect(source)
    if conversion.layer_ids != "auto" and FORMATS.get(name, ("",))[0] != "eagle3":
        raise OptionError(f"--layer-ids {conversion.layer_ids}: a file in the format {name} has no layer ids to read")
    if isinstance(found, Found):
        head = FORMATS[name][1](found, conversion)
    else:
        head = read_own(found)
    filled(head)  # names and shapes as the net wants them
    check_target(head, conversion.target, str(source))
    return name, head


def write(head: Head, to: str, out: Path, conversion: Conversion) -> None:
    """OptionError if a head of this kind has no such form."""
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
    """The format by the files themselves, with what was read of them; WeightsError lists what was found."""
    if source.is_file():
        if is_ours(source):
            return OWN, source
        if source.name == CONFIG or (source.parent / CONFIG).is_file():
            return detect(source.parent)
        raise WeightsError(
            f"{source}: no drafter of ours, and no {CONFIG} lies beside it\nhint: give the folder that holds both"
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
    what = f"could be {' or '.join(fit)}" if fit else "no format that is known here"
    names = sorted(found.tensors)
    told = {k: found.config[k] for k in ("model_type", "architectures", "speculators_model_type") if k in found.config}
    raise WeightsError(
        f"{source}: {what}\n"
        f"hint: {CONFIG} says {told or 'nothing about it'}; {found.file} holds {len(names)} tensors: "
        f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}\n"
        f"      known: {', '.join((OWN, *FORMATS))}"
    )


def is_ours(path: Path) -> bool:
    """By the note in the file, whatever lies beside it."""
    try:
        return path.suffix == ".safetensors" and bool(read_note(path))
    except WeightsError as error:
        return "has format" in str(error)  # ours, of another version: reading it will say so


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
