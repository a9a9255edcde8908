"""A head's file holds what it was asked to hold: rounded, or not at all."""

from pathlib import Path

import pytest
import torch

from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import read, read_note, to_bytes
from draftwood.errors import WeightsError
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import tiny_runner


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "hydra", "mlp", "language", "nested"])
def test_thirty_two_bits_round_nothing(tmp_path: Path, kind: str):
    head = random_head(kind, tiny_runner())
    (tmp_path / "h.safetensors").write_bytes(to_bytes(head, floats=32))
    back = read(tmp_path / "h.safetensors")
    assert back.config == head.config
    assert all(torch.equal(back.tensors[name], t) for name, t in head.tensors.items())


def test_fewer_bits_make_smaller_files_and_larger_mistakes(tmp_path: Path):
    head, sizes, mistakes = random_head("eagle3", tiny_runner()), [], []
    for floats in (32, 16, None):
        data = to_bytes(head, floats=floats)
        (tmp_path / "h.safetensors").write_bytes(data)
        back = read(tmp_path / "h.safetensors").tensors
        sizes.append(len(data))
        mistakes.append(max(float((back[name] - t).abs().max()) for name, t in head.tensors.items()))
    assert sizes == sorted(sizes, reverse=True) and mistakes == sorted(mistakes) and mistakes[0] == 0


@pytest.mark.parametrize(("kind", "names"), [("medusa", {"rows"}), ("mlp", {"emb", "head"})])
def test_tables_of_its_own_travel_with_the_head(tmp_path: Path, kind: str, names: set[str]):
    head = random_head(kind, tiny_runner(), own_tables=True)
    (tmp_path / "h.safetensors").write_bytes(to_bytes(head, floats=32))
    back = read(tmp_path / "h.safetensors")
    assert back.config.own_tables and names <= set(back.tensors)
    filled(back)


def test_a_head_without_tables_does_not_mention_them(tmp_path: Path):
    """Files of ordinary heads stay readable by versions that never heard of tables."""
    (tmp_path / "h.safetensors").write_bytes(to_bytes(random_head("medusa", tiny_runner())))
    assert "own_tables" not in read_note(tmp_path / "h.safetensors")["config"]
    with pytest.raises(WeightsError, match="has no tables of its own"):
        random_head("eagle", tiny_runner(), own_tables=True)


def test_a_head_without_exits_does_not_mention_them_either(tmp_path: Path):
    for kind, there in (("language", False), ("nested", True)):
        (tmp_path / "h.safetensors").write_bytes(to_bytes(random_head(kind, tiny_runner())))
        assert ("exits" in read_note(tmp_path / "h.safetensors")["config"]) == there
    with pytest.raises(WeightsError, match="of kind 'language' has no exits"):
        random_head("language", tiny_runner(), exits=(1, 2))
    with pytest.raises(WeightsError, match=r"exits cannot be \[\]"):
        random_head("nested", tiny_runner(), exits=())


def test_a_weight_too_large_for_sixteen_bits_is_found_out(tmp_path: Path):
    head = random_head("eagle", tiny_runner())
    head.tensors["fc.weight"][0, 0] = 1e6
    (tmp_path / "h.safetensors").write_bytes(to_bytes(head, floats=16))
    with pytest.raises(WeightsError, match=r"fc\.weight holds something that is no number"):
        read(tmp_path / "h.safetensors")
