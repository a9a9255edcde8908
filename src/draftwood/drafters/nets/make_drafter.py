"""A head as a drafter of its target: in the target's backend and on its device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from typing import Any

from jaxtyping import Int
from torch import Tensor

from draftwood.core.protocols import Drafter, Runner
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.layers.early_exit import EarlyExit
from draftwood.drafters.layers.hierarchical import Hierarchical, exit_layers
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.modules.acceptance import REJECTED
from draftwood.drafters.nets.modules.exit import ExitsNet, parts
from draftwood.drafters.nets.modules.probes import ProbesModel
from draftwood.drafters.nets.runners.block_native import BlockInt8Runner
from draftwood.drafters.nets.runners.block_runner import BlockDeviceRunner, BlockModel, BlockRunner
from draftwood.drafters.nets.runners.device_runner import DeviceRunner
from draftwood.drafters.nets.runners.heads_model import StageModel
from draftwood.drafters.nets.runners.native_runner import Int8Runner
from draftwood.drafters.nets.runners.runner import FeatureModel, FloatRunner
from draftwood.drafters.nets.runners.semi_runner import SemiRunner
from draftwood.drafters.nets.runners.small_lm_model import language_model
from draftwood.drafters.on_features.blocks import Blocks
from draftwood.drafters.on_features.feature_text import FeatureText
from draftwood.drafters.on_features.features import Features
from draftwood.drafters.on_features.heads import Heads
from draftwood.drafters.on_features.semi_autoregressive import SemiAutoregressive
from draftwood.errors import CompositionError, OptionError
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.runners.exits import Exits
from draftwood.runners.nested import NestedRunner
from draftwood.runners.open import runner_on


def feature_drafter(head: Head, target: Runner) -> Features:
    """The drafter of a head that reads features."""
    return Features(feature_model(head, target))


def feature_model(head: Head, target: Runner) -> FeatureModel:
    """Where the int8 target runs on stock operations the head runs in float32 beside it: the text does not depend on a
    draft's bits, so a head need not be batch-invariant."""
    net = filled(head)  # refuses a head that is not whole, whatever backend runs it
    if isinstance(target, CpuRunner) and isinstance(target.model, NativeDecoder):
        return Int8Runner(head, target.model)
    device, dtype = target.info.device, target.info.dtype
    ids = None if head.ids is None else head.ids.to(device)
    kind = DeviceRunner if isinstance(target, CudaRunner) else FloatRunner
    return kind(net.to(device=device, dtype=dtype), target, ids)


def block_drafter(head: Head, target: Runner) -> Blocks:
    """The drafter of a net that guesses a block in one pass."""
    return Blocks(block_model(head, target))


def block_model(head: Head, target: Runner) -> BlockModel:
    """As `feature_model`."""
    net = filled(head)
    if isinstance(target, CpuRunner) and isinstance(target.model, NativeDecoder):
        return BlockInt8Runner(head, target.model)
    device, dtype = target.info.device, target.info.dtype
    ids = None if head.ids is None else head.ids.to(device)
    kind = BlockDeviceRunner if isinstance(target, CudaRunner) else BlockRunner
    return kind(net.to(device=device, dtype=dtype), target, ids)


def semi_drafter(head: Head, target: Runner) -> SemiAutoregressive:
    """The drafter of a net that guesses several levels in one pass. Beside an int8 target it runs in float32."""
    device, dtype = target.info.device, target.info.dtype
    ids = None if head.ids is None else head.ids.to(device)
    return SemiAutoregressive(SemiRunner(filled(head).to(device=device, dtype=dtype), target, ids))


def exit_drafter(head: Head, target: Runner) -> EarlyExit:
    """The drafter of a net behind an early exit."""
    (layers,) = head.config.taps
    check_exit(layers, target)
    return EarlyExit(feature_model(head, target))


def two_exit_drafter(head: Head, target: Runner, per_review: int) -> Hierarchical:
    """The drafter of nets behind two exits."""
    filled(head)  # refuses a head that is not whole
    first, then = exit_layers(target, *head.config.taps)
    nets: list[FeatureText] = []
    for name, config in zip(ExitsNet.names, parts(head.config), strict=True):
        own = {key.removeprefix(f"{name}."): t for key, t in head.tensors.items() if key.startswith(f"{name}.")}
        nets.append(FeatureText(feature_model(replace(head, config=config, tensors=own), target)))
    draft, review = nets
    return Hierarchical(first, then, per_review, (draft, review))


def reviewed_drafter(
    target: Runner, head: Head | None, draft_layers: int | None, review_layers: int | None, per_review: int
) -> tuple[Hierarchical, str]:
    """The drafter of two exits, and a name for what it costs. `head`: the nets behind them, which say where they are;
    without one both exits are the target's own norm and head."""
    if head is None:
        places = exit_layers(target, draft_layers, review_layers)
        return Hierarchical(*places, per_review), f"shared exits {places} {per_review}"
    asked = {"draft_layers": draft_layers, "review_layers": review_layers}
    for (name, layers), have in zip(asked.items(), head.config.taps, strict=True):
        if layers not in (None, have):
            raise OptionError(
                f"{name} cannot be {layers}: these weights were trained for {have}\n"
                f"hint: leave out {name}, or train others with --option {name}={layers}"
            )
    return two_exit_drafter(head, target, per_review), f"exits {head.digest} {per_review}"


def check_exit(layers: int, target: Runner) -> None:
    """OptionError unless an exit after so many layers leaves some to verify with."""
    most = target.info.num_layers - 1
    if not 1 <= layers <= most:
        raise OptionError(f"an exit after {layers} layers is not inside the target\nhint: from 1 to {most}")


def heads_drafter(head: Head, target: Runner) -> Heads:
    """The drafter of heads on one feature."""
    device, dtype = target.info.device, target.info.dtype
    ids = None if head.ids is None else head.ids.to(device)
    return Heads(StageModel(filled(head).to(device=device, dtype=dtype), target, ids))


def probes_model(head: Head, target: Runner) -> ProbesModel:
    """The model of a drafter with trained probes."""
    device, dtype = target.info.device, target.info.dtype
    ids = None if head.ids is None else head.ids.to(device)
    return ProbesModel(filled(head).to(device=device, dtype=dtype), target, ids)  # type: ignore[arg-type]


def language_drafter(head: Head, target: Runner) -> DraftModel:
    """The drafter of a small language model."""
    return DraftModel(runner_on(language_model(head, target)), _ids(head, target))


def exits_of(head: Head, thresholds: Sequence[float] | None, usual: float) -> Exits:
    """Of a nested model. `thresholds`: one for each exit; None: `usual` for all but the last."""
    layers = head.config.exits
    return Exits(layers, (*[usual] * (len(layers) - 1), 0.0) if thresholds is None else tuple(thresholds))


def nested_drafter(head: Head, target: Runner, exits: Exits) -> DraftModel:
    """The drafter of a small language model with exits."""
    return DraftModel(NestedRunner(runner_on(language_model(head, target)), exits), _ids(head, target))


def _ids(head: Head, target: Runner) -> Int[Tensor, "W"] | None:
    return None if head.ids is None else head.ids.to(target.info.device)


def judge_of(head: Head, drafter: Drafter, name: str) -> Callable[[Tensor], Tensor]:
    """What a decision net says of this drafter's hidden states. `name`: the drafter's, as the net's record has it."""
    net = _reader(head, drafter, name, ", weights=none")
    return lambda hidden: net(hidden.float())


def acceptance_of(head: Head, drafter: Drafter, name: str, *, unweighted: bool = False) -> Callable[[Tensor], Tensor]:
    """What an acceptance net says of this drafter's hidden states. `unweighted`: without what the weight of rejection in
    its loss does to the odds."""
    net = _reader(head, drafter, name)
    weight = float(head.record.get("options", {}).get("weight", REJECTED))
    shift = log(weight) if unweighted else 0.0
    return lambda hidden: (net.logit(hidden.float()) + shift).sigmoid()


def length_of(head: Head, target: Runner, name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """What a length net says for drafts of the drafter of this name."""
    trained = head.record.get("options", {}).get("inner", name)
    if trained != name:
        raise CompositionError(
            f"these weights know how far drafts of {trained!r} are right, not those of {name!r}\n"
            f"hint: inner={trained}, or train others with --option inner={name}"
        )
    net = filled(head).to(device=target.info.device)
    return lambda embedding, feature: net(embedding.float(), feature.float())


def _reader(head: Head, drafter: Drafter, name: str, instead: str = "") -> Any:
    """A net that reads this drafter's hidden states; CompositionError if it was trained on others."""
    width, read = states_width(drafter, instead), head.config.layer.hidden_size
    trained = head.record.get("options", {}).get("inner", name)
    if (trained, read) != (name, width):
        raise CompositionError(
            f"these weights read hidden states of {trained!r}, {read} wide; those of {name!r} are {width} wide\n"
            f"hint: inner={trained}{instead}, or train others with --option inner={name}"
        )
    return filled(head).to(device=drafter.model.info.device)  # type: ignore[attr-defined]


def states_width(drafter: Drafter, instead: str = "") -> int:
    """Width of the hidden states that a drafter shows of its nodes. CompositionError if it shows none."""
    if not isinstance(drafter, DraftModel):
        raise CompositionError(
            f"this net reads the hidden states of a draft model, {type(drafter).__name__} shows none\n"
            f"hint: inner=fast_draft or inner=speculative_sampling{instead}"
        )
    return drafter.model.info.hidden_size


def levels(head: Head, depth: int | None) -> int:
    """As deep as was asked for, by default as deep as the weights were trained."""
    most = head.config.stages
    if depth is not None and depth > most:
        raise OptionError(
            f"depth cannot be {depth}: the weights draft {most} levels at most\nhint: depth={most}, or leave it out"
        )
    return most if depth is None else depth
