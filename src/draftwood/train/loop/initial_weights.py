"""`--from`: training that starts from existing head files instead of random weights.

    auto      the head that ships for this target
    FILE      for one recipe
    FOLDER    holds RECIPE.safetensors for each recipe

A head fits if it was trained for the same target and has the same kind and shape, or is a smaller one that the net can begin
as. Its draft vocabulary may differ if it uses the target's LM head: then no weight belongs to a token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.find import AUTO, shipped_file, ships
from draftwood.drafters.nets.files.grow import SMALLER, grown, grows
from draftwood.drafters.nets.files.store import Head, read
from draftwood.errors import CompositionError, OptionError
from draftwood.models.loading.folder_cache import sha256
from draftwood.models.loading.load import NOT_ARITHMETIC, Loaded
from draftwood.runners.open import runner_of
from draftwood.train.loop.measure import head_file

HINT = "hint: name a head that fits, or leave out --from"


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """The head file that a net's initial weights come from."""

    name: str
    sha256: str
    record: dict[str, Any]  # its training record


def load_initial(
    where: str, nets: Mapping[str, TrainPlan], keep: Int[Tensor, "W"], loaded: Loaded, out: Path
) -> dict[str, Start]:
    """Copies weights into every net, by recipe, if all of them fit."""
    if not nets:
        raise OptionError(f"--from {where}: none of the trained recipes has weights")
    files = {name: _file(where, name, plan, loaded, out, len(nets)) for name, plan in nets.items()}
    heads = {name: read(path) for name, path in files.items()}
    for name, plan in nets.items():
        _check(heads[name], plan, keep, loaded, files[name])
    loaded_weights = {name: _weights(head, nets[name]) for name, head in heads.items()}
    with torch.no_grad():
        for name, plan in nets.items():
            assert plan.net is not None
            for key, t in plan.net.state_dict().items():
                t.copy_(loaded_weights[name][key])
    return {name: Start(path.name, sha256(path), heads[name].record) for name, path in files.items()}


def _weights(head: Head, plan: TrainPlan) -> dict[str, torch.Tensor]:
    whole = filled(head).state_dict()
    assert plan.net is not None
    return grown(head, plan.net.state_dict(), plan.config) if grows(head.config, plan.config) else whole


def _file(where: str, name: str, plan: TrainPlan, loaded: Loaded, out: Path, num_nets: int) -> Path:
    if where == AUTO:
        kind, target = plan.config.kind, runner_of(loaded)
        smaller = SMALLER.get(kind)
        return shipped_file(smaller if smaller and not ships(kind, target) else kind, target, name)
    path = head_file(Path(where), name) if Path(where).is_dir() else Path(where)
    if path.is_file() and num_nets > 1 and path == Path(where):
        raise OptionError(
            f"--from {where}: one file cannot start {num_nets} nets\nhint: a folder that holds {name}.safetensors"
        )
    if not path.is_file():
        raise OptionError(f"--from {where}: there is no {path}\nhint: a head file, a folder of them, or auto")
    if path.resolve() == head_file(out, name).resolve():
        raise OptionError(f"--from {path} is what this run will write\nhint: another --out, or copy the file first")
    return path


def _check(head: Head, plan: TrainPlan, keep: Tensor, loaded: Loaded, path: Path) -> None:
    """CompositionError says what does not fit."""
    theirs, ours = head.config, plan.config
    smaller = grows(theirs, ours)
    if theirs.kind != ours.kind and not smaller:
        raise CompositionError(f"{path} holds weights of kind {theirs.kind!r}, {ours.kind!r} is trained here\n{HINT}")
    if head.target != loaded.fingerprint:
        who = f"{head.record.get('target', 'another target')} ({head.target or 'no fingerprint'})"
        raise CompositionError(f"{path} was trained for {who}, not for {loaded.name} ({loaded.fingerprint})\n{HINT}")
    differences = list(_differences(replace(theirs, depth=ours.depth) if smaller else theirs, ours))
    if differences:
        raise CompositionError(
            f"{path} has another shape: {'; '.join(differences)}\nhint: the same --option as it had, or leave out --from"
        )
    own_lm_head = getattr(plan.net, "own_head", False) or ours.own_tables
    if own_lm_head and not torch.equal(torch.arange(theirs.rows) if head.ids is None else head.ids, keep):
        raise CompositionError(
            f"{path} has an LM head of its own for {theirs.rows} tokens, and this run's {ours.rows} tokens differ\n"
            "hint: the data and --draft-vocab-size it was trained with, or leave out --from"
        )


def _differences(theirs: HeadConfig, ours: HeadConfig) -> Iterator[str]:
    """Differences in what weights depend on, the draft vocabulary left out."""
    pairs = [(theirs, ours, f.name) for f in fields(HeadConfig) if f.name not in ("kind", "layer", "rows", "exits")]
    pairs += [(theirs.layer, ours.layer, f.name) for f in fields(ModelConfig) if f.name not in NOT_ARITHMETIC]
    for then, now, name in pairs:
        if getattr(then, name) != getattr(now, name):
            yield f"{name} was {getattr(then, name)}, now it is {getattr(now, name)}"
