"""EAGLE's files say what the equations say, in both directions."""

from pathlib import Path

import pytest
import torch

import plain_eagle
from draftwood.errors import WeightsError
from format_heads import VOCAB, Conversion, columns, edit, folder_of, head, logits, read, shown, target


@pytest.mark.parametrize("bias", [True, False])
def test_a_written_folder_drafts_what_the_head_drafts(tmp_path: Path, bias: bool):
    made, to = head("eagle", bias=bias), target()
    folder = folder_of("eagle", tmp_path / "h", made)
    given = shown(made, to)
    plain = plain_eagle.logits(folder, given.features[0], given.embedded, to.lm_head)
    torch.testing.assert_close(plain, logits(made, columns(made), given), rtol=1e-4, atol=1e-4)
    back = read(folder, Conversion(to))[1]
    torch.testing.assert_close(logits(back, columns(back), given), plain, rtol=1e-4, atol=1e-4)


def test_another_order_of_embedding_and_feature_would_be_noticed(tmp_path: Path):
    made, to = head("eagle"), target()
    folder = folder_of("eagle", tmp_path / "h", made)
    edit(folder, lambda _, t: t.update({"fc.weight": t["fc.weight"].roll(32, dims=1)}))
    given = shown(made, to)
    plain = plain_eagle.logits(folder, given.features[0], given.embedded, to.lm_head)
    assert not torch.allclose(plain, logits(made, columns(made), given), atol=0.1)


def test_biases_of_the_layer_are_kept(tmp_path: Path):
    from dataclasses import replace

    made = head("eagle")
    layer = replace(made.config.layer, qkv_bias=True)
    config = replace(made.config, layer=layer)
    made = replace(made, config=config, tensors={**made.tensors, "layer.qkv.bias": torch.randn(64)})
    folder = folder_of("eagle", tmp_path / "h", made)
    given = shown(made, target())
    plain = plain_eagle.logits(folder, given.features[0], given.embedded, target().lm_head)
    torch.testing.assert_close(plain, logits(made, columns(made), given), rtol=1e-4, atol=1e-4)
    assert read(folder, Conversion())[1].config.layer.qkv_bias


def test_a_trimmed_head_is_written_with_every_token(tmp_path: Path):
    made = head("eagle", rows=20)
    conversion = Conversion(target())
    back = read(folder_of("eagle", tmp_path / "h", made, conversion), Conversion(target()))[1]
    assert back.ids is None and back.config.rows == VOCAB
    assert any("no draft vocabulary" in line for line in conversion.notes)


def test_a_config_without_bias_means_a_bias(tmp_path: Path):
    folder = folder_of("eagle", tmp_path / "h", head("eagle", bias=True))
    edit(folder, lambda c, _: c.pop("bias"))
    assert read(folder, Conversion())[1].config.bias
    edit(folder, lambda _, t: t.pop("fc.bias"))
    with pytest.raises(
        WeightsError, match=r"missing fc\.bias\nhint: `bias` in config.json is missing, which means true"
    ):
        read(folder, Conversion())


def test_an_embedding_that_is_not_the_target_s_is_said(tmp_path: Path):
    folder, conversion = folder_of("eagle", tmp_path / "h"), Conversion(target())
    read(folder, conversion)
    assert any("the same as the target's" in line for line in conversion.notes)
    edit(folder, lambda _, t: t["embed_tokens.weight"].add_(0.5))
    conversion = Conversion(target())
    read(folder, conversion)
    assert any(line.startswith("warning: embedding") and "0.5" in line for line in conversion.notes)
    edit(folder, lambda _, t: t.pop("embed_tokens.weight"))
    read(folder, Conversion(target()))


def test_more_layers_than_one_are_refused(tmp_path: Path):
    folder = edit(folder_of("eagle", tmp_path / "h"), lambda c, _: c.update(num_hidden_layers=2))
    with pytest.raises(WeightsError, match="num_hidden_layers is 2"):
        read(folder, Conversion())


def test_a_pickle_of_tensors_is_read(tmp_path: Path):
    from safetensors.torch import load_file

    folder = folder_of("eagle", tmp_path / "h")
    file = folder / "model.safetensors"
    torch.save({name: t.half() for name, t in load_file(file).items()}, folder / "pytorch_model.bin")
    whole = read(folder, Conversion())[1].tensors["fc.weight"]
    file.unlink()
    halved = read(folder, Conversion())[1].tensors["fc.weight"]
    assert halved.dtype == torch.float32 and torch.equal(halved, whole.half().float())
