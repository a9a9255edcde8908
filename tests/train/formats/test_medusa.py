"""Medusa's files, original and vLLM's, say what the equations say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import plain_medusa
from draftwood.errors import OptionError, WeightsError
from format_heads import VOCAB, Conversion, columns, edit, folder_of, head, logits, read, shown, target


def agree(folder: Path, made: Any, shared: Any = None) -> None:
    given = shown(made, target())
    plain = plain_medusa.logits(folder, given.features[0][-1], shared)
    torch.testing.assert_close(plain, logits(made, columns(made), given), rtol=1e-4, atol=1e-4)
    back = read(folder, Conversion(target()))[1]
    torch.testing.assert_close(logits(back, columns(made), given), plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", [1, 2])
def test_heads_on_the_target_s_table_get_a_copy_each(tmp_path: Path, depth: int):
    made = head("medusa", depth=depth)
    folder = folder_of("medusa", tmp_path / "h", made)
    assert (folder / "medusa_lm_head.pt").is_file()
    agree(folder, made)
    assert not read(folder, Conversion(target()))[1].config.own_tables
    assert read(folder, Conversion())[1].config.own_tables  # nothing to compare them with


def test_heads_without_tables_share_the_target_s(tmp_path: Path):
    made = head("medusa")
    folder = folder_of("medusa", tmp_path / "h", made, Conversion())
    agree(folder, made, target().lm_head)
    edit(folder, lambda c, _: c.pop("vocab_size"))
    with pytest.raises(OptionError, match="does not say how many tokens"):
        read(folder, Conversion())


def test_tables_of_their_own_are_kept(tmp_path: Path):
    made = head("medusa", own_tables=True)
    agree(folder_of("medusa", tmp_path / "h", made), made)


def test_fewer_rows_than_tokens_take_the_form_of_vllm(tmp_path: Path):
    made = head("medusa", own_tables=True, rows=20)
    folder = folder_of("medusa", tmp_path / "h", made)
    agree(folder, made)
    back = read(folder, Conversion())[1]
    assert back.ids is not None and torch.equal(back.ids, columns(made))


def test_vllm_form_without_biases_and_with_one_table_is_read(tmp_path: Path):
    made = head("medusa", own_tables=True, rows=20)
    made = replace(made, tensors={**made.tensors, "blocks.bias": torch.zeros(3, 1, 32)})
    made.tensors["rows"][1:] = made.tensors["rows"][0]
    folder = folder_of("medusa", tmp_path / "h", made)

    def change(c: Any, t: Any) -> None:
        c.update(original_lm_head=True, medusa_fc_bias=False)
        for h in range(3):
            del t[f"blocks.{h}.layers.0.bias"]
        del t["lm_heads.1.weight"], t["lm_heads.2.weight"]

    back = read(edit(folder, change), Conversion())[1]
    given = shown(made, target())
    torch.testing.assert_close(logits(back, columns(made), given), logits(made, columns(made), given))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c, _: c.update(medusa_num_heads=5), "medusa_num_heads is 5, medusa_lm_head.safetensors has 3"),
        (lambda c, _: c.update(medusa_num_layers=2), "medusa_num_layers is 2"),
        (lambda _, t: t.pop("1.0.linear.bias"), "missing 1.0.linear.bias"),
        (lambda _, t: t.pop("1.1.weight"), "missing 1.1.weight"),
        (lambda _, t: t.update({"9.weight": torch.ones(2)}), "unexpected 9.weight"),
        (lambda _, t: t.update({"1.0.linear.weight": torch.ones(32, 31)}), r"1.0.linear.weight is \[32, 31\]"),
        (lambda c, _: c.update(vocab_size=60), r"0.1.weight is \[61, 32\], config.json asks for \[60, 32\]"),
    ],
)
def test_damage_is_refused_by_name(tmp_path: Path, change: Any, why: str):
    with pytest.raises(WeightsError, match=why):
        read(edit(folder_of("medusa", tmp_path / "h"), change), Conversion())


def test_a_token_map_that_leads_nowhere_is_refused(tmp_path: Path):
    folder = folder_of("medusa", tmp_path / "h", head("medusa", own_tables=True, rows=20))
    edit(folder, lambda _, t: t["token_map"].fill_(VOCAB))
    with pytest.raises(WeightsError, match="token_map names a token twice, or one out of range"):
        read(folder, Conversion())
