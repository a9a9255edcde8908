"""A head as a drafter of its target: in the target's backend and on its device."""

from collections.abc import Callable

from torch import Tensor

from draftwood.core.protocols import Drafter, Runner
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.features import Features
from draftwood.drafters.heads import Heads
from draftwood.drafters.layers.early_exit import EarlyExit
from draftwood.drafters.nets.build import filled
from draftwood.drafters.nets.device_runner import DeviceRunner
from draftwood.drafters.nets.heads_model import StageModel
from draftwood.drafters.nets.native_runner import Int8Runner
from draftwood.drafters.nets.runner import FeatureModel, FloatRunner
from draftwood.drafters.nets.small_lm_model import language_model
from draftwood.drafters.nets.store import Head
from draftwood.errors import CompositionError, OptionError
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
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


def exit_drafter(head: Head, target: Runner) -> EarlyExit:
    """The drafter of a net behind an early exit. It has no kernel of its own, and runs in float beside an int8 target."""
    (layers,) = head.config.taps
    check_exit(layers, target)
    device, dtype = target.info.device, target.info.dtype
    ids = None if head.ids is None else head.ids.to(device)
    kind = DeviceRunner if isinstance(target, CudaRunner) else FloatRunner
    return EarlyExit(kind(filled(head).to(device=device, dtype=dtype), target, ids))


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


def language_drafter(head: Head, target: Runner) -> DraftModel:
    """The drafter of a small language model."""
    ids = None if head.ids is None else head.ids.to(target.info.device)
    return DraftModel(runner_on(language_model(head, target)), ids)


def judge_of(head: Head, drafter: Drafter, name: str) -> Callable[[Tensor], Tensor]:
    """What a decision net says of this drafter's hidden states. `name`: the drafter's, as the net's record has it."""
    width, read = states_width(drafter), head.config.layer.hidden_size
    trained = head.record.get("options", {}).get("inner", name)
    if (trained, read) != (name, width):
        raise CompositionError(
            f"these weights read hidden states of {trained!r}, {read} wide; those of {name!r} are {width} wide\n"
            f"hint: inner={trained}, weights=none, or train others with --option inner={name}"
        )
    net = filled(head).to(device=drafter.model.info.device)  # type: ignore[attr-defined]
    return lambda hidden: net(hidden.float())


def states_width(drafter: Drafter) -> int:
    """Width of the hidden states that a drafter shows of its nodes. CompositionError if it shows none."""
    if not isinstance(drafter, DraftModel):
        raise CompositionError(
            f"a decision net reads the hidden states of a draft model, {type(drafter).__name__} shows none\n"
            "hint: inner=fast_draft or inner=speculative_sampling, or weights=none"
        )
    return drafter.model.info.hidden_size


def levels(head: Head, depth: int | None) -> int:
    """As deep as was asked for, by default as deep as the head was trained."""
    most = head.config.stages
    if depth is not None and depth > most:
        raise OptionError(
            f"depth cannot be {depth}: the weights hold {most} heads\nhint: depth={most}, or leave it out"
        )
    return most if depth is None else depth
