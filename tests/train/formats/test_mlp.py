"""The MLP speculator's files say what the equations say: tables multiplied out, tables of its own, tied and not."""

from pathlib import Path
from typing import Any

import pytest
import torch

import plain_mlp
from draftwood.errors import OptionError, WeightsError
from format_heads import VOCAB, Conversion, columns, edit, folder_of, head, logits, read, shown, target


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("tables", [True, False])
def test_a_written_folder_drafts_what_the_head_drafts(tmp_path: Path, tied: bool, scaled: bool, tables: bool):
    made, to = head("mlp", tied=tied, scale_input=scaled, own_tables=tables), target()
    folder = folder_of("mlp_speculator", tmp_path / "h", made)
    given = shown(made, to)
    plain = plain_mlp.logits(folder, given.features[0][-1], given.drafted)
    torch.testing.assert_close(plain, logits(made, columns(made), given), rtol=1e-4, atol=1e-4)
    back = read(folder, Conversion(to))[1]
    assert back.config.own_tables and back.config.tied == tied
    torch.testing.assert_close(logits(back, columns(made), given), plain, rtol=1e-4, atol=1e-4)


def test_the_other_table_would_be_noticed(tmp_path: Path):
    made, to = head("mlp"), target()
    folder = folder_of("mlp_speculator", tmp_path / "h", made)
    edit(folder, lambda _, t: t.update({"speculator.emb.1.weight": t["speculator.head.1.weight"]}))
    given = shown(made, to)
    plain = plain_mlp.logits(folder, given.features[0][-1], given.drafted)
    assert not torch.allclose(plain, logits(made, columns(made), given), atol=0.01)


def test_tables_of_the_target_need_the_target(tmp_path: Path):
    with pytest.raises(OptionError, match="--target"):
        folder_of("mlp_speculator", tmp_path / "h", head("mlp"), Conversion())


def test_a_tied_file_may_repeat_its_tensors_but_not_contradict_itself(tmp_path: Path):
    folder = folder_of("mlp_speculator", tmp_path / "h", head("mlp", tied=True))
    edit(folder, lambda _, t: t.update({"speculator.head.2.weight": t["speculator.head.0.weight"].clone()}))
    read(folder, Conversion())
    edit(folder, lambda _, t: t["speculator.head.2.weight"].add_(1))
    with pytest.raises(WeightsError, match=r"head\.2\.weight differs from head\.0\.weight"):
        read(folder, Conversion())


def test_names_without_their_prefix_and_an_inner_width_of_zero_are_read(tmp_path: Path):
    folder = folder_of("mlp_speculator", tmp_path / "h", head("mlp", own_tables=True))

    def change(c: Any, t: Any) -> None:
        c.update(inner_dim=0)
        for name in list(t):
            t[name.removeprefix("speculator.")] = t.pop(name)

    back = read(edit(folder, change), Conversion())[1]
    assert back.config.layer.hidden_size == 32 and back.config.rows == VOCAB


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c, _: c.update(n_predict=4), "missing emb.3.weight"),
        (lambda c, _: c.update(n_predict=2), "unexpected emb.2.weight"),
        (lambda c, _: c.update(emb_dim=64), r"proj.0.weight is \[32, 32\], config.json asks for \[32, 64\]"),
        (lambda c, _: c.update(vocab_size="many"), "should be a positive integer"),
        (lambda c, _: c.pop("n_predict"), "'n_predict' is missing"),
    ],
)
def test_damage_is_refused_by_name(tmp_path: Path, change: Any, why: str):
    with pytest.raises(WeightsError, match=why):
        read(edit(folder_of("mlp_speculator", tmp_path / "h", head("mlp", own_tables=True)), change), Conversion())
