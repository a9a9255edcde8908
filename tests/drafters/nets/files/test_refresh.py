"""New weights reach every open runner, in place, or none of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.forward import ForwardInput, HostInput
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.runners.device_runner import DeviceRunner
from draftwood.drafters.nets.runners.native_runner import Int8Runner
from draftwood.drafters.nets.runners.runner import FeatureModel, FloatRunner
from draftwood.errors import WeightsError
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder
from native_levels import BEST, kept_weights, opened

ROWS = 30
WIDE = replace(CONFIG, num_heads=6, num_kv_heads=2, head_dim=48, hidden_size=96, intermediate_size=160)
KINDS = [("eagle", {}), ("eagle3", {}), ("eagle3", {"target_rows": True, "norm_fused": True, "norm_features": True})]


def target() -> CpuRunner:
    return CpuRunner(tiny_decoder(config=WIDE, dtype=torch.float32))


def floats(head: Head) -> FeatureModel:
    return FloatRunner(filled(head), target(), head.ids)


def device(head: Head) -> FeatureModel:
    return DeviceRunner(filled(head), target(), head.ids)


def int8(head: Head) -> FeatureModel:
    return Int8Runner(head, NativeDecoder(WIDE, int8_weights.from_tensors(WIDE, kept_weights(WIDE)), opened(BEST)))


BACKENDS = pytest.mark.parametrize("make", [floats, device, int8])
HEADS = pytest.mark.parametrize(("kind", "more"), KINDS, ids=["eagle", "eagle3", "eagle3-target rows"])


def heads(kind: str, more: dict[str, Any]) -> tuple[Head, Head]:
    """Two heads of one config."""
    one, two = (random_head(kind, target(), seed=seed, rows=ROWS, **more) for seed in (0, 1))
    return one, two


def said(runner: FeatureModel, only: Tensor | None = None) -> Tensor:
    """Logits of a short text in slot 0, which is free again afterwards."""
    noise = torch.Generator().manual_seed(3)
    hidden = runner.fuse([torch.randn(5, WIDE.hidden_size, generator=noise) for _ in runner.taps])
    at = list(range(5))
    x = ForwardInput.of(
        HostInput([4, 9, 2, 4, 1], [0] * 5, at, [i - 1 for i in at]), at, at, torch.device("cpu"), hidden
    )
    runner.admit(0, [1])
    runner.reserve([0], [5])
    _, logits = runner.execute(x, only)
    runner.commit([0], [[]], [[]])
    runner.free([0])
    return logits.clone()


@pytest.mark.one_in(5)
@HEADS
@BACKENDS
def test_refreshed_head_is_the_other_head_wherever_it_was_opened(
    make: Callable[[Head], FeatureModel], kind: str, more: dict[str, Any]
) -> None:
    one, two = heads(kind, more)
    assert one.ids is not None
    model, other, only = make(one), make(two).open(1, 16), one.ids[::3].clone()
    before, after = model.open(2, 16), model.open(1, 16)
    old, old_only = said(before), said(before, only)
    model.refresh(two.tensors)
    for runner in (before, after, model.open(1, 16)):
        for columns, stale in ((None, old), (only, old_only)):
            new = said(runner, columns)
            assert torch.equal(new, said(other, columns)) and not torch.allclose(new, stale, atol=1e-3)
    before.refresh(one.tensors)
    assert torch.equal(said(after), old) and torch.equal(said(after, only), old_only), "from any of them to all"


@BACKENDS
def test_what_is_not_named_stays(make: Callable[[Head], FeatureModel]) -> None:
    one, two = heads("eagle3", {})
    model = make(one)
    runner = model.open(1, 16)
    model.refresh({"norm": two.tensors["norm"]})
    mixed = make(replace(one, tensors=one.tensors | {"norm": two.tensors["norm"]}))
    assert torch.equal(said(runner), said(mixed.open(1, 16)))


@BACKENDS
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fc.wait": torch.zeros(2)}, r"no \['fc.wait'\]\nhint: its tensors are .*'fc.weight'"),
        ({"norm": torch.zeros(7)}, r"norm is \[7\], this head has \[96\]"),
        ({"norm": torch.full((96,), float("inf"))}, "norm holds something that is no number"),
    ],
)
def test_wrong_weights_are_named_and_change_nothing(
    make: Callable[[Head], FeatureModel], wrong: dict[str, Tensor], message: str
) -> None:
    one, two = heads("eagle3", {})
    model = make(one)
    runner = model.open(1, 16)
    old = said(runner)
    with pytest.raises(WeightsError, match=message):
        model.refresh({"fc.weight": two.tensors["fc.weight"], **wrong})
    assert torch.equal(said(runner), old)


@pytest.mark.parametrize("make", [floats, device])
def test_weights_keep_their_addresses(make: Callable[[Head], Any]) -> None:
    """Graphs were captured over them."""
    one, two = heads("eagle3", {})
    model = make(one)
    runner = model.open(1, 16)
    assert one.ids is not None
    only = one.ids[::3].clone()
    said(runner, only)

    def addresses() -> list[int]:
        rows = [rows.data_ptr() for _, rows in runner._rows.values()] if isinstance(runner, DeviceRunner) else []
        return [*rows, *(p.data_ptr() for p in runner.net.parameters())]

    before = addresses()
    with torch.inference_mode():
        model.refresh(two.tensors)
    said(runner, only)
    assert addresses() == before


def test_rows_that_do_not_follow_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the copied rows: the net alone is refreshed."""
    from draftwood.drafters.nets.files.refresh import refresh_net

    one, two = heads("eagle3", {})
    assert one.ids is not None
    monkeypatch.setattr(DeviceRunner, "refresh", lambda self, weights: refresh_net(self.net, weights))
    model, only = device(one), one.ids[::3].clone()
    runner, other = model.open(1, 16), device(two).open(1, 16)
    said(runner, only)
    model.refresh(two.tensors)
    assert torch.equal(said(runner), said(other)) and not torch.allclose(said(runner, only), said(other, only))


def test_net_that_was_made_in_inference_mode_takes_weights_too() -> None:
    one, two = heads("eagle", {})
    with torch.inference_mode():
        model = floats(one)
    model.refresh(two.tensors)
    assert torch.equal(said(model.open(1, 16)), said(floats(two).open(1, 16)))
