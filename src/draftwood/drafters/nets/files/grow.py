"""Weights of a net that begins as a smaller head: what is new in it adds nothing at first, so both guess the same.

griffin       from eagle: the last product of the layer twice, once for each output
deep_eagle    from eagle, or from one with fewer layers
deep_medusa   from medusa, or from one with fewer blocks
nested        from language, whose weights are those of the last exit
"""

from collections.abc import Mapping

from torch import Tensor

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.store import Head

SMALLER = {"griffin": "eagle", "deep_eagle": "eagle", "deep_medusa": "medusa", "nested": "language"}


def grows(theirs: HeadConfig, ours: HeadConfig) -> bool:
    """Whether a net of `ours` can begin as a head of `theirs`, if nothing but `depth` differs."""
    deeper = ours.kind.startswith("deep_")
    kinds = {SMALLER.get(ours.kind)} | ({ours.kind} if deeper else set())
    return theirs.kind in kinds and (theirs.depth <= ours.depth if deeper else theirs.depth == ours.depth)


def grown(head: Head, fresh: Mapping[str, Tensor], ours: HeadConfig) -> dict[str, Tensor]:
    """The weights of the larger net. `fresh`: those it has now, of which the new parts add nothing."""
    found = {name: t.clone() for name, t in fresh.items()}
    for name, t in head.tensors.items():
        if ours.kind == "griffin" and name.startswith("layer.down."):
            t = t.repeat(2, *[1] * (t.ndim - 1))
        if ours.kind == "deep_medusa":  # [stages, depth, ..]
            found[name][:, : t.shape[1]] = t
        else:
            found[name] = t
    return found
