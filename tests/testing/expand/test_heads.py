"""Heads draft beside the expanded target what they drafted beside the old one, and as much of it is accepted."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.core.forward import FINAL
from draftwood.drafters.layers.early_exit import EarlyExit
from draftwood.drafters.nets.files.build import net
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.store import Head, read, to_bytes
from draftwood.drafters.on_features.features import Features
from draftwood.errors import OptionError
from draftwood.testing.expand import heads
from draftwood.testing.expand.heads import expand_head
from draftwood.testing.expand.shape import Shape, expanded
from draftwood.testing.parts.tiny import CONFIG
from draftwood.trees.best_first import BestFirst
from expansions import THREE, both, expand, filling, float64_runner, runner, served, weights

WIDE = Shape(6, 96, 16, 4, 16, 128, 64)
FEW = torch.arange(0, 61, 2)

# kind -> further fields of its config
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle": ("eagle", {}),
    "eagle, bias": ("eagle", {"bias": True}),
    "eagle3": ("eagle3", {"target_rows": True}),
    "eagle3, own rows": ("eagle3", {}),
    "eagle3, norms of features": ("eagle3", {"target_rows": True, "norm_features": True}),
    "eagle3, norm of all": ("eagle3", {"norm_fused": True}),
    "eagle3, normed residual": ("eagle3", {"target_rows": True, "norm_before_residual": True}),
    "eagle3, normed output": ("eagle3", {"target_rows": True, "norm_output": True}),
    "exit": ("exit", {}),
    "exit_layer": ("exit_layer", {}),
}


def made(name: str, ids: torch.Tensor | None, seed: int = 3) -> Head:
    """Weights that follow the target often enough for drafts to be accepted and refused: small ones beside its features."""
    kind, more = KINDS[name]
    taps = {"eagle3": (1, 2, 3), "eagle": (FINAL,)}.get(kind, (3,))
    layer = replace(THREE, num_layers=1, intermediate_size=40)
    config = HeadConfig(kind, layer, THREE.hidden_size, taps, rows=61 if ids is None else len(ids), **more)
    noise = torch.Generator().manual_seed(seed)
    drawn = {n: torch.randn(t.shape, generator=noise).double() for n, t in net(config).state_dict().items()}
    tensors = {n: 0.1 * x if x.ndim > 1 or "bias" in n else 1 + 0.1 * x for n, x in drawn.items()}
    if kind in ("eagle", "eagle3"):  # the last feature goes through
        tensors["fc.weight"][:, -THREE.hidden_size :] += torch.eye(THREE.hidden_size)
    return Head(config, tensors, ids, "old")


def drafted(
    name: str, ids: torch.Tensor | None, temperature: float, policy: Any = None, *, noise: bool = True
) -> list[Any]:
    """Texts, drafts and counts, beside the old target and beside the new one."""
    tensors, head = weights(THREE), made(name, ids)
    new, wide = expand(THREE, tensors, WIDE, filling(noise))
    found = []
    for target, own in (
        (runner(THREE, tensors), head),
        (runner(new, wide), expand_head(head, THREE, new, "new", filling(noise))),
    ):
        model = float64_runner(own, target)
        drafter = EarlyExit(model) if head.config.kind.startswith("exit") else Features(model)
        requests, drafts = served(target, temperature, drafter, policy)
        found.append(([r.output for r in requests], drafts.seen, drafts.rounds))
    return found


RUNS = [(name, 1.0, True) for name in KINDS]
RUNS += [(name, 0.0, True) for name in ("eagle", "eagle3", "exit_layer")] + [
    (name, 0.0, False) for name in ("eagle3", "exit")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "temperature", "noise"), RUNS)
def test_drafts_and_accepted_counts_are_those_of_the_old_head(name: str, temperature: float, noise: bool) -> None:
    old, new = drafted(name, None, temperature, noise=noise)
    print(name, temperature, dict(old[2]))
    assert old == new
    assert old[2]["some"] >= 1 and old[2]["none"] >= 20, old[2]


@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3, norms of features"])
@pytest.mark.slow
def test_trees_over_a_trimmed_vocabulary_are_the_same_too(name: str) -> None:
    old, new = drafted(name, FEW, 0.0, BestFirst(3))
    assert old == new and old[2]["none"] and old[2]["some"] + old[2]["all"]


@pytest.mark.parametrize("fault", ["none", "constant", "fc", "epsilon"])
def test_what_attention_reads_is_the_same_unless_a_step_is_wrong(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts may survive a small fault; here it shows."""
    old, new = both("everything")
    head = made("eagle3", None)
    if fault == "constant":
        monkeypatch.setattr(heads, "_hand_on_the_constant", lambda c, tensors: None)
    elif fault == "epsilon":
        monkeypatch.setattr(heads, "epsilon", lambda eps, old, new, kept: eps)
    config = replace(new.info.config, num_layers=6)  # type: ignore[arg-type]
    wide = expand_head(head, THREE, config, "new", filling())
    if fault == "fc":  # reads the constant
        wide.tensors["fc.weight"][:32, 95] = 1.0
    x = torch.randn(7, 3, 32, generator=torch.Generator().manual_seed(1)).double() * 0.01  # where epsilon counts
    padded = torch.nn.functional.pad(x, (0, 64))
    padded[..., -1] = 2.0**-10
    theirs, ours = (float64_runner(h, t).net for h, t in ((head, old), (wide, new)))
    u, v = theirs.fuse(list(x.unbind(1))), ours.fuse(list(padded.unbind(1)))
    entered = theirs.enter(x[:, 0], u)[0], ours.enter(padded[:, 0], v)[0]
    far = max(
        float((entered[0][:, :32] - entered[1][:, :32]).abs().max()),
        float((entered[0][:, 32:] - entered[1][:, 96:128]).abs().max()),
    )
    assert far < 1e-9 if fault == "none" else far > 1e-6


def test_the_fields_of_the_config_and_the_fingerprint_follow() -> None:
    new = expanded(THREE, WIDE)
    wide = expand_head(made("eagle3", None), THREE, new, "new", filling())
    c = wide.config
    assert (wide.target, c.target_hidden, c.taps, c.rows) == ("new", 96, (1, 2, 3), 61)
    assert wide.ids is not None and wide.ids.tolist() == list(range(61))
    layer = c.layer
    assert (layer.hidden_size, layer.num_heads, layer.num_kv_heads, layer.head_dim) == (96, 16, 4, 16)
    assert (layer.intermediate_size, layer.vocab_size, layer.rope_theta) == (128, 64, THREE.rope_theta)
    own = replace(
        made("eagle3", None), config=replace(made("eagle3", None).config, layer=replace(THREE, intermediate_size=200))
    )
    assert heads.layer_config(own.config, THREE, new).intermediate_size == 200


def test_a_file_keeps_what_its_blocks_can_hold(tmp_path: Any) -> None:
    """Blocks of 32 columns that hold old weights hold the same ones; vectors keep their 32 bits."""
    old = replace(CONFIG, hidden_size=64, head_dim=32, num_heads=2, num_kv_heads=2, intermediate_size=64)
    layer = replace(old, num_layers=1)
    config = HeadConfig("eagle", layer, 64, (FINAL,), rows=61)
    noise = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(t.shape, generator=noise) for n, t in net(config).state_dict().items()}
    (tmp_path / "old").write_bytes(to_bytes(Head(config, tensors, None, "old")))
    stored = read(tmp_path / "old")
    new = expanded(old, Shape(4, 160, 4, 4, 64, 128, 61))
    wide = expand_head(stored, old, new, "new", filling(dtype=torch.float32))
    vectors = {name: 32 for name, t in wide.tensors.items() if t.ndim < 2}
    (tmp_path / "new").write_bytes(to_bytes(wide, bits=vectors))
    again = read(tmp_path / "new")
    assert again.target == "new" and again.config == wide.config
    for name, at in (
        ("fc.weight", slice(0, 64)),
        ("layer.down.weight", slice(0, 64)),
        ("layer.out.weight", slice(0, 32)),
    ):
        assert torch.equal(again.tensors[name][:64, at], stored.tensors[name][:64, at]), name
    assert torch.equal(again.tensors["layer.mlp_norm"], wide.tensors["layer.mlp_norm"])
    far = (again.tensors["layer.qkv.weight"] - wide.tensors["layer.qkv.weight"]).abs().max()
    assert float(far) < 0.02


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kind": "medusa"}, "heads of kind 'medusa' cannot be expanded"),
        ({"target_hidden": 48}, "a head 32 wide on features 48 wide"),
        ({"layer": replace(THREE, hidden_size=16)}, "a head 16 wide on features 32 wide"),
        (
            {"layer": replace(THREE, num_heads=6, num_kv_heads=6)},
            "the head's attention (6 heads on 6, 8 wide) does not fit",
        ),
        ({"layer": replace(THREE, head_dim=12)}, "12 wide) does not fit"),
        ({"layer": replace(THREE, rms_eps=1e-9)}, "leave no room for a constant"),
    ],
)
def test_heads_that_do_not_fit_are_refused(changed: dict[str, Any], said: str) -> None:
    head = made("eagle", None)
    with pytest.raises(OptionError) as caught:
        expand_head(
            replace(head, config=replace(head.config, **changed)), THREE, expanded(THREE, WIDE), "new", filling()
        )
    assert said in str(caught.value)
