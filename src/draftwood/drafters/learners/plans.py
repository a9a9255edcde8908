"""Training plans that several recipes share: net sizes and stages."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.core.forward import FINAL
from draftwood.core.protocols import Drafter, Runner
from draftwood.core.train_plan import Learn, Rate, TrainPlan
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.layers.hierarchical import exit_layers
from draftwood.drafters.learners.at_exit import AtExit, AtExits
from draftwood.drafters.learners.at_probes import AtProbes
from draftwood.drafters.learners.blocks import BlockLearner
from draftwood.drafters.learners.glancing import Glancing
from draftwood.drafters.learners.language import Language
from draftwood.drafters.learners.lengths.decision import Decision
from draftwood.drafters.learners.parallel import Parallel
from draftwood.drafters.learners.unrolling.unrolled import Unrolled
from draftwood.drafters.nets.files.build import net
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.make_drafter import check_exit, states_width
from draftwood.errors import CompositionError, OptionError, need_at_least
from draftwood.models.backends.float_copy import differentiable
from draftwood.models.decoder import Decoder
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner

MOST_UNROLLED = 32


def need_share(share: float) -> None:
    """OptionError unless some of the positions teach."""
    if not 0 < share <= 1:
        raise OptionError(f"share cannot be {share}\nhint: of the positions, more than 0 and at most 1")


def shape_of(target: Runner) -> ModelConfig:
    config = target.info.config
    if config is None:
        raise CompositionError(
            f"{target.info.name or 'this target'} has no config, so the sizes of a head are unknown\n"
            "hint: load the target without hf:"
        )
    return config.plain_layer()


def fresh(config: HeadConfig, target: Runner, seed: int) -> Any:
    """An untrained net on the target's device; the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return net(config).to(target.info.device)


def feature_plan(
    kind: str,
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    taps: tuple[int, ...],
    unroll: int,
    regress: float,
    rate: float,
    seed: int,
    noise: float = 0.0,
    muon: bool = False,
    inner: int | None = None,
    **more: Any,
) -> TrainPlan:
    """One layer of the target's sizes (`inner`: of its MLP). An LM head of its own starts as a copy of the target's."""
    need_at_least(kind, unroll=(unroll, 1))
    if unroll > MOST_UNROLLED:
        raise OptionError(
            f"{kind}: unroll cannot be {unroll}\nhint: at most {MOST_UNROLLED}; every step keeps its activations"
        )
    if not 0 <= noise < float("inf"):
        raise OptionError(f"noise cannot be {noise}\nhint: 0 for none, or a small share such as 0.1")
    shape = shape_of(target)
    layer = replace(shape, num_layers=1, qk_norm=False, intermediate_size=inner or shape.intermediate_size)
    config = HeadConfig(kind, layer, shape.hidden_size, taps, rows=len(keep), **more)
    module = fresh(config, target, seed)
    if module.own_head:
        device = target.info.device
        unit = torch.eye(shape.hidden_size, device=device, dtype=target.info.dtype)
        with torch.no_grad():
            module.lm_head.weight.copy_(target.head(unit, ids=keep.to(device), norm=False).T)
    learner = Unrolled(module, keep, steps=unroll, regress=regress, noise=noise)
    return TrainPlan((Learn(learner, Rate(peak=rate, muon=muon)),), module, config)


def middle_taps(target: Runner) -> tuple[int, ...]:
    """An early, a middle and a late layer: 2, L // 2, L - 3."""
    layers = target.info.num_layers
    return tuple(sorted({min(2, layers), layers // 2, max(layers - 3, 1)}))


def parallel_plan(
    kind: str,
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    stages: int,
    rate: float,
    seed: int,
    share: float,
    muon: bool = False,
    **more: Any,
) -> TrainPlan:
    """Heads on the final feature, trained on a `share` of the positions."""
    need_share(share)
    shape = shape_of(target)
    width = more.pop("inner", shape.hidden_size)
    layer = replace(shape, num_layers=1, hidden_size=width)
    config = HeadConfig(kind, layer, shape.hidden_size, (FINAL,), rows=len(keep), stages=stages, **more)
    module = fresh(config, target, seed)
    return TrainPlan((Learn(Parallel(module, keep, share=share), Rate(peak=rate, muon=muon)),), module, config)


def exit_plan(
    kind: str,
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    layers: int | None,
    rate: float,
    seed: int,
    share: float,
    muon: bool,
) -> TrainPlan:
    """A net behind the target's first `layers` layers, by default an eighth of them."""
    need_share(share)
    shape = shape_of(target)
    layers = max(1, round(shape.num_layers / 8)) if layers is None else layers
    check_exit(layers, target)
    layer = replace(shape, num_layers=1, qk_norm=False)
    config = HeadConfig(kind, layer, shape.hidden_size, (layers,), rows=len(keep), target_rows=True)
    module = fresh(config, target, seed)
    with torch.no_grad():
        module.layer.out.weight.zero_()  # at first the exit itself: the attention adds nothing
    learn = Learn(AtExit(module, keep, share=share), Rate(peak=rate, muon=muon))
    # Acceptance is measured with drafts in every round: whether they pay on this machine is another question.
    return TrainPlan((learn,), module, config, notes={"options": {"size": "paper"}})


def exits_plan(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    draft_layers: int | None,
    review_layers: int | None,
    rate: float,
    seed: int,
    share: float,
    muon: bool,
) -> TrainPlan:
    """Nets behind two exits, by default after an eighth and a quarter of the target's layers, in one run."""
    need_share(share)
    shape = shape_of(target)
    taps = exit_layers(target, draft_layers, review_layers)
    layer = replace(shape, num_layers=1, qk_norm=False)
    config = HeadConfig("exits", layer, shape.hidden_size, taps, rows=len(keep), target_rows=True)
    module = fresh(config, target, seed)
    with torch.no_grad():
        for each in module.children():
            each.layer.out.weight.zero_()  # at first the exit itself: the attention adds nothing
    learn = Learn(AtExits(module, keep, share=share), Rate(peak=rate, muon=muon))
    return TrainPlan((learn,), module, config, notes={"options": {"size": "paper"}})


def probes_plan(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    probes: int,
    inner: int | None,
    vectors: bool,
    rate: float,
    seed: int,
    share: float,
) -> TrainPlan:
    """Probes that begin as the mean embedding of the draft vocabulary. `inner`: width of the adapter, by default a quarter
    of the target's. `vectors` False: they stay so, and the adapter alone learns."""
    shape, wide = shape_of(target), target.info.hidden_size // 4
    need_at_least("probes", probes=(probes, 1), inner=(wide if inner is None else inner, 1))
    need_share(share)
    layer = replace(shape, num_layers=1, intermediate_size=wide if inner is None else inner)
    config = HeadConfig("probes", layer, shape.hidden_size, (FINAL,), rows=len(keep), stages=probes)
    module = fresh(config, target, seed)
    with torch.no_grad():
        module.vectors.copy_(target.embed(keep.to(target.info.device)).mean(0))
    module.vectors.requires_grad_(vectors)
    learner = AtProbes(module, keep, float_layers(target), share=share)
    # Acceptance is measured with drafts in every second round: whether they pay on this machine is another question.
    return TrainPlan((Learn(learner, Rate(peak=rate)),), module, config, notes={"options": {"size": "paper"}})


def float_layers(target: Runner) -> Decoder:
    """The target's layers, to differentiate through. CompositionError if they are not ours."""
    known = isinstance(target, CpuRunner | CudaRunner)
    found = differentiable(target.model) if known else None
    if found is None:
        raise CompositionError(
            f"{target.info.name or 'this target'} runs on {target.info.backend or 'a backend'} whose layers pass on no "
            "gradients\nhint: load the target without hf:"
        )
    return found


def block_plan(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    taps: tuple[int, ...],
    stages: int,
    layers: int,
    inner: int | None,
    rate: float,
    seed: int,
    share: float,
    decay: float,
    muon: bool,
) -> TrainPlan:
    """A net that guesses `stages` tokens in one pass, of `layers` layers of the target's sizes (`inner`: of their MLPs)."""
    need_at_least("block", stages=(stages, 1), layers=(layers, 1))
    for name, value in (("share", share), ("decay", decay)):
        if not 0 < value <= 1:
            raise OptionError(f"{name} cannot be {value}\nhint: more than 0 and at most 1")
    shape = shape_of(target)
    sizes = {"num_layers": layers, "intermediate_size": inner or shape.intermediate_size}
    layer = replace(shape, qk_norm=False, sliding_window=None, **sizes)
    more: dict[str, Any] = {"stages": stages, "target_rows": True, "norm_features": True}
    config = HeadConfig("block", layer, shape.hidden_size, taps, rows=len(keep), **more)
    module = fresh(config, target, seed)
    learn = Learn(BlockLearner(module, keep, share=share, decay=decay), Rate(peak=rate, muon=muon))
    # Acceptance is measured with a whole block in every round: whether it pays on this machine is another question.
    return TrainPlan((learn,), module, config, notes={"options": {"size": "paper"}})


def semi_plan(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    block: int,
    inner: int | None,
    noise: float,
    glance: float,
    rate: float,
    seed: int,
    muon: bool,
) -> TrainPlan:
    """A net that guesses `block` levels in one pass."""
    need_at_least("semi", block=(block, 1))
    for name, value in (("noise", noise), ("glance", glance)):
        if not 0 <= value <= 1:
            raise OptionError(f"{name} cannot be {value}\nhint: from 0 to 1")
    shape = shape_of(target)
    sizes = {"num_layers": 1, "intermediate_size": inner or shape.intermediate_size}
    layer = replace(shape, qk_norm=False, sliding_window=None, **sizes)
    config = HeadConfig("semi", layer, shape.hidden_size, (FINAL,), rows=len(keep), stages=block, target_rows=True)
    module = fresh(config, target, seed)
    learn = Learn(Glancing(module, keep, noise=noise, glance=glance), Rate(peak=rate, muon=muon))
    # Acceptance is measured with drafts in every round: whether they pay on this machine is another question.
    return TrainPlan((learn,), module, config, notes={"options": {"size": "paper"}})


def language_plan(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    width: int,
    layers: int,
    heads: int,
    inner: int,
    rate: float,
    seed: int,
    pretrain: float = 0.2,
    muon: bool = False,
    exits: tuple[int, ...] = (),
) -> TrainPlan:
    """Pre-training on all text in a share of the steps, then the target's distributions. With `exits` a nested model, of
    which every exit is taught."""
    if not 0 <= pretrain < 1:
        raise OptionError(f"pretrain cannot be {pretrain}\nhint: a share of the steps, at least 0 and below 1")
    shape = shape_of(target)
    layer = replace(
        shape,
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        intermediate_size=inner,
        qk_norm=False,
    )
    kind = "nested" if exits else "language"
    config = HeadConfig(kind, layer, shape.hidden_size, (FINAL,), rows=len(keep), exits=exits)
    module = fresh(config, target, seed)
    first, then = Rate(peak=rate, muon=muon, floor=0.5), Rate(peak=rate, muon=muon, warmup=0.01)
    any_text = Learn(Language(module, keep, align=False), first, share=pretrain, name="pre-train")
    own_text = Learn(Language(module, keep, align=True), then, share=1 - pretrain, name="align")
    # Acceptance of a nested model is measured with drafts in every round: whether they pay here is another question.
    notes: dict[str, Any] = {"options": {"size": "paper"}} if exits else {}
    return TrainPlan((any_text, own_text) if pretrain else (own_text,), module, config, notes=notes)


def decision_plan(
    target: Runner,
    drafter: Drafter,
    *,
    wide: int | None,
    rate: float,
    seed: int,
    share: float,
    drawn: bool = False,
    **made_for: Any,
) -> TrainPlan:
    """A net on the hidden states of a draft model. `made_for`: recipe options that its weights depend on."""
    width = states_width(drafter)
    # In proportion to the published widths (768, 512, 256), and a multiple of the storage block of 32.
    wide = max(32, round(width * 2 / 3 / 32) * 32) if wide is None else wide
    need_at_least("decision", wide=(wide, 1))
    need_share(share)
    shape = shape_of(target)
    layer = replace(shape, num_layers=1, hidden_size=width, intermediate_size=wide)
    config = HeadConfig("decision", layer, shape.hidden_size, (), rows=1)
    module = fresh(config, target, seed)
    assert isinstance(drafter, DraftModel)
    learner = Decision(module, drafter.model, drafter.ids, share, drawn)
    notes = {"ids": None, "options": made_for}
    return TrainPlan((Learn(learner, Rate(peak=rate)),), module, config, notes=notes)
