"""EAGLE-3's native files say what the equations say; the 3.1 variants and both numberings of layers with them."""

from pathlib import Path
from typing import Any

import pytest
import torch

import plain_eagle3
from draftwood.errors import OptionError, WeightsError
from format_heads import VOCAB, Conversion, columns, edit, folder_of, head, logits, read, shown, target

VARIANTS = ["norm_before_residual", "norm_output", "norm_features", "norm_fused"]


@pytest.mark.parametrize("form", ["eagle3", "speculators"])
@pytest.mark.parametrize("variant", ["", *VARIANTS])
@pytest.mark.parametrize("rows", [None, 20])
def test_a_written_folder_drafts_what_the_head_drafts(tmp_path: Path, form: str, variant: str, rows: int | None):
    made = head("eagle3", rows=rows, **({variant: True} if variant else {}))
    folder = folder_of(form, tmp_path / "h", made)
    given = shown(made, target())
    plain = plain_eagle3.logits(folder, given.features, given.embedded)
    assert torch.equal(plain_eagle3.tokens(folder, VOCAB), columns(made))
    torch.testing.assert_close(plain, logits(made, columns(made), given), rtol=1e-4, atol=1e-4)
    back = read(folder, Conversion(target()))[1]
    torch.testing.assert_close(logits(back, columns(made), given), plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_that_the_config_forgets_would_be_noticed(tmp_path: Path, variant: str):
    made = head("eagle3", **{variant: True})
    folder = folder_of("eagle3", tmp_path / "h", made)
    theirs = {"norm_features": "fc_norm", "norm_fused": "norm_before_fc"}.get(variant, variant)
    edit(folder, lambda c, _: c.update({theirs: False}))
    given = shown(made, target())
    plain = plain_eagle3.logits(folder, given.features, given.embedded)
    assert not torch.allclose(plain, logits(made, columns(made), given), atol=0.01)


def test_columns_in_any_order_are_written_sorted(tmp_path: Path):
    from dataclasses import replace

    made = head("eagle3", rows=20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert made.ids is not None
    mixed = replace(
        made, ids=made.ids[order], tensors={**made.tensors, "lm_head.weight": made.tensors["lm_head.weight"][order]}
    )
    folder = folder_of("eagle3", tmp_path / "h", mixed)
    assert torch.equal(plain_eagle3.tokens(folder, VOCAB), made.ids)
    given = shown(made, target())
    plain = plain_eagle3.logits(folder, given.features, given.embedded)
    torch.testing.assert_close(plain, logits(mixed, made.ids, given), rtol=1e-4, atol=1e-4)


def damaged(d2t: Any = None, t2d: Any = None) -> Any:
    def change(_: Any, t: Any) -> None:
        if d2t is not None:
            t["d2t"] = d2t(t["d2t"])
        if t2d is not None:
            t["t2d"] = t2d(t["t2d"])

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (damaged(lambda x: x + 50), "out of range: there are 61"),
        (damaged(lambda x: x - 1), "out of range"),
        (damaged(lambda x: torch.zeros_like(x) - torch.arange(20) // 2), "two columns to token"),
        (damaged(t2d=lambda x: ~x), "t2d and d2t disagree"),
        (damaged(d2t=lambda x: x.float()), "integers"),
        (damaged(d2t=lambda x: x[:-1]), r"d2t is \[19\]"),
        (lambda _, t: t.pop("d2t"), "but d2t is missing"),
        (lambda c, _: c.update(draft_vocab_size=21), r"lm_head.weight is \[20, 32\], config.json asks for \[21, 32\]"),
        (lambda c, _: c.update(norm_before_residual="yes"), "should be true or false"),
        (lambda c, _: c.update(fc_norm=True, norm_before_fc=True), "exclude each other"),
        (lambda c, _: c["eagle_config"].update(norm_output=True), "both true and false"),
        (lambda c, _: c.update(target_hidden_size=64), r"fc.weight is \[32, 96\], config.json asks for \[32, 192\]"),
        (
            lambda _, t: t.update({"midlayer.self_attn.q_norm.weight": torch.ones(8)}),
            "unexpected midlayer.self_attn.q_norm",
        ),
        (lambda _, t: t.pop("norm.weight"), "missing norm.weight"),
        (lambda c, _: c.update(hidden_size=48), "config.json asks for"),
        (lambda c, _: c.update(eagle_aux_hidden_state_layer_ids="2, 3"), "should be a list of layer ids"),
    ],
)
def test_damage_is_refused_by_name(tmp_path: Path, change: Any, why: str):
    folder = edit(folder_of("eagle3", tmp_path / "h", head("eagle3", rows=20)), change)
    with pytest.raises(WeightsError, match=why):
        read(folder, Conversion())


def test_a_draft_narrower_than_its_target_is_refused(tmp_path: Path):
    folder = folder_of("eagle3", tmp_path / "h")
    wide = lambda c, t: (c.update(target_hidden_size=64), t.update({"fc.weight": torch.randn(32, 192)}))  # noqa: E731
    with pytest.raises(WeightsError, match="32 wide and its target 64"):
        read(edit(folder, wide), Conversion())


def test_a_missing_head_is_the_target_s(tmp_path: Path):
    folder = edit(folder_of("eagle3", tmp_path / "h", head("eagle3", rows=20)), lambda _, t: t.pop("lm_head.weight"))
    with pytest.raises(WeightsError, match=r"missing lm_head.weight\nhint: .*--target"):
        read(folder, Conversion())
    back = read(folder, Conversion(target()))[1]
    assert back.ids is not None and torch.equal(back.tensors["lm_head.weight"], target().lm_head[back.ids])


def test_layers_that_are_not_named_need_the_target(tmp_path: Path):
    def forget(c: Any, _: Any) -> None:
        del c["eagle_aux_hidden_state_layer_ids"], c["eagle_config"]

    folder = edit(folder_of("eagle3", tmp_path / "h"), forget)
    with pytest.raises(OptionError, match="names no layers"):
        read(folder, Conversion())
    conversion = Conversion(target())
    assert read(folder, conversion)[1].config.taps == (2, 4, 5)
    assert any("default is 2, L // 2, L - 3" in line for line in conversion.notes)
