"""A conversion finds out what it was given, keeps the kind, proves itself, and leaves nothing behind when it cannot."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood.drafters.nets.files.store import read as read_own
from draftwood.drafters.nets.files.store import to_bytes
from draftwood.errors import ModelError, OptionError, UnknownNameError, WeightsError
from draftwood.testing.parts.heads import write_head
from draftwood.train.formats.convert import FORMATS, OWN, Conversion, convert, detect, read
from format_heads import KINDS, columns, edit, folder_of, head, logits, shown, target

FORMS = sorted(FORMATS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [None, 20])
def test_there_and_back_through_the_files_changes_nothing(tmp_path: Path, form: str, rows: int | None):
    made = head(KINDS[form], rows=rows)
    source = tmp_path / "head.safetensors"
    source.write_bytes(to_bytes(made, floats=32))
    there = convert(source, form, tmp_path / "there", Conversion(target()))
    assert there.same and there.difference < 1e-5 and there.columns == len(columns(made))
    back = convert(tmp_path / "there", OWN, tmp_path / "back.safetensors", Conversion(target(), floats=32))
    assert back.source == form and back.difference == 0
    again = read_own(tmp_path / "back.safetensors")
    given = shown(made, target())
    torch.testing.assert_close(
        logits(again, columns(made), given), logits(made, columns(made), given), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(("one", "other"), [("eagle3", "speculators"), ("speculators", "eagle3"), ("eagle", "eagle")])
def test_one_format_of_others_becomes_another(tmp_path: Path, one: str, other: str):
    folder = folder_of(one, tmp_path / "a", head(KINDS[one], rows=20))
    done = convert(folder, other, tmp_path / "b", Conversion(target()))
    assert done.source == one and done.difference == 0 and detect(tmp_path / "b")[0] == other


def test_rounding_is_reported_and_floats_do_not_round(tmp_path: Path):
    source = tmp_path / "head.safetensors"
    source.write_bytes(to_bytes(head("eagle3"), floats=32))
    found = {
        bits: convert(source, OWN, tmp_path / f"{bits}.safetensors", Conversion(floats=bits)) for bits in (None, 16, 32)
    }
    assert found[None].difference > 5 * found[16].difference > found[32].difference == 0
    assert [found[bits].rounded for bits in (None, 16, 32)] == [True, True, False] and all(
        f.same for f in found.values()
    )


def test_a_conversion_that_changes_the_head_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / "head.safetensors"
    source.write_bytes(to_bytes(head("eagle"), floats=32))
    kind, reader, writer = FORMATS["eagle"]

    def careless(made: Any, out: Path, conversion: Conversion) -> None:
        writer(made, out, conversion)
        edit(out, lambda _, t: t["fc.weight"].mul_(1.01))

    monkeypatch.setitem(FORMATS, "eagle", (kind, reader, careless))
    done = convert(source, "eagle", tmp_path / "out", Conversion())
    assert done.difference > 1e-4 and not done.same
    assert [path.name for path in tmp_path.iterdir()] == ["head.safetensors"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("to", FORMS)
def test_a_head_never_changes_its_kind(tmp_path: Path, form: str, to: str):
    if KINDS[form] == KINDS[to]:
        return
    with pytest.raises(
        OptionError, match=rf"kind '{KINDS[form]}' cannot become {to}.*\nhint: it can be written as {OWN}"
    ):
        convert(folder_of(form, tmp_path / "a"), to, tmp_path / "b", Conversion(target()))
    assert not (tmp_path / "b").exists()


def test_layers_read_in_another_order_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Random features cannot tell: the logits are the same, the layers are not."""
    source = write_head(tmp_path / "head.safetensors", head("eagle3"))
    kind, reader, writer = FORMATS["eagle3"]

    def shifted(made: Any, out: Path, conversion: Conversion) -> None:
        writer(made, out, conversion)
        edit(out, lambda c, _: c.update(eagle_aux_hidden_state_layer_ids=[2, 3, 4]))

    monkeypatch.setitem(FORMATS, "eagle3", (kind, reader, shifted))
    with pytest.raises(WeightsError, match=r"taps \(1, 2, 3\), the one that was written \(2, 3, 4\)"):
        convert(source, "eagle3", tmp_path / "out", Conversion())
    assert not (tmp_path / "out").exists()


def test_a_convention_for_layers_is_refused_where_there_are_none(tmp_path: Path):
    with pytest.raises(OptionError, match="format eagle has no layer ids"):
        read(folder_of("eagle", tmp_path / "h"), Conversion(layer_ids="vllm"))


def test_hydra_stays_ours(tmp_path: Path):
    source = write_head(tmp_path / "head.safetensors", head("hydra"))
    with pytest.raises(OptionError, match=r"'hydra' cannot become medusa.*\nhint: it can be written as draftwood$"):
        convert(source, "medusa", tmp_path / "b", Conversion())
    assert convert(source, OWN, tmp_path / "c.safetensors", Conversion(floats=32)).difference == 0


@pytest.mark.parametrize(
    ("form", "change", "why"),
    [
        ("eagle3", lambda c, _: c.update(speculators_model_type="eagle3"), "could be speculators or eagle3"),
        ("speculators", lambda c, _: c.pop("speculators_model_type"), "unknown format"),
        ("eagle", lambda _, t: t.pop("fc.weight"), "unknown format"),
        ("medusa", lambda c, _: c.update(model_type="mlp_speculator"), "could be mlp_speculator or medusa"),
    ],
)
def test_what_is_unclear_is_listed(tmp_path: Path, form: str, change: Any, why: str):
    folder = edit(folder_of(form, tmp_path / "h"), change)
    with pytest.raises(WeightsError, match=f"{why}") as refused:
        detect(folder)
    assert "config.json says" in str(refused.value) and "tensors: " in str(refused.value)


def test_a_file_stands_for_its_folder(tmp_path: Path):
    folder = folder_of("eagle", tmp_path / "h")
    assert detect(folder / "model.safetensors")[0] == detect(folder / "config.json")[0] == "eagle"
    ours = write_head(tmp_path / "head.safetensors", head("eagle"))
    assert detect(ours)[0] == OWN
    with pytest.raises(ModelError, match="no such file or folder"):
        detect(tmp_path / "nowhere")
    beside = write_head(folder / "ours.safetensors", head("eagle"))
    assert detect(beside) == (OWN, beside)
    stray = tmp_path / "stray"
    stray.mkdir()
    (stray / "x.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match=r"no config\.json; it holds x\.safetensors"):
        detect(stray)
    with pytest.raises(ModelError, match="not in the draftwood format, and its folder holds no config"):
        detect(stray / "x.safetensors")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hidden_size": 64}, "features 32 wide, those of tiny are 64"),
        ({"vocab_size": 99}, "a vocabulary of 61 tokens"),
    ],
)
def test_another_target_is_refused(tmp_path: Path, form: str, change: dict[str, int], why: str):
    folder = folder_of(form, tmp_path / "h", head(KINDS[form], own_tables=True) if form == "medusa" else None)
    if form in ("eagle", "speculators"):
        edit(folder, lambda _, t: t.pop("embed_tokens.weight"))
    with pytest.raises(WeightsError, match=why):
        read(folder, Conversion(target(**change)))


def test_layers_that_the_target_does_not_have_are_refused(tmp_path: Path):
    folder = edit(
        folder_of("eagle3", tmp_path / "h"), lambda c, _: c.update(eagle_aux_hidden_state_layer_ids=[2, 4, 9])
    )
    with pytest.raises(WeightsError, match=r"reads layers \[9\], tiny has 8"):
        read(folder, Conversion(target()))


def test_a_head_of_ours_for_another_target_is_refused(tmp_path: Path):
    source = write_head(tmp_path / "head.safetensors", replace(head("eagle"), target="aaaa"))
    with pytest.raises(WeightsError, match="fingerprint aaaa"):
        convert(source, "eagle", tmp_path / "out", Conversion(replace(target(), fingerprint="bbbb")))


def test_nothing_is_overwritten_and_unknown_formats_are_refused(tmp_path: Path):
    source = write_head(tmp_path / "head.safetensors", head("eagle"))
    with pytest.raises(OptionError, match="exists already"):
        convert(source, "eagle", tmp_path, Conversion())
    with pytest.raises(OptionError, match="no such folder"):
        convert(source, "eagle", tmp_path / "a" / "b", Conversion())
    with pytest.raises(UnknownNameError, match="did you mean 'eagle"):
        convert(source, "eagel", tmp_path / "b", Conversion())
