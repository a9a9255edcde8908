"""Weights of probes survive their file, and all stages together are each of them alone."""

from pathlib import Path

import pytest
import torch

from draftwood.core.forward import FINAL
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import read
from draftwood.drafters.nets.make_drafter import probes_model
from draftwood.drafters.nets.modules.probes import ProbesNet
from draftwood.errors import WeightsError
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    target = tiny_runner()
    head = random_head("probes", target, rows=20, stages=2)
    again = read(write_head(tmp_path / "h.safetensors", head))
    assert again.config == head.config and again.config.taps == (FINAL,) and again.ids is not None
    net = filled(again)
    assert isinstance(net, ProbesNet) and net.vectors.shape == (2, CONFIG.hidden_size)
    for name, x in head.tensors.items():
        assert (again.tensors[name] - x).abs().max() <= 0.01 * x.abs().max(), name
    del again.tensors["up"]
    with pytest.raises(WeightsError, match=r"missing \['up'\]"):
        filled(again)


def test_all_stages_together_are_each_of_them_alone() -> None:
    target = tiny_runner()
    model = probes_model(random_head("probes", target), target)
    noise = torch.Generator().manual_seed(1)
    start, roots = torch.randn(5, 4, CONFIG.hidden_size, generator=noise, dtype=torch.float64), torch.arange(5)
    whole = model.outputs(start, roots)
    for k in range(model.stages):
        carry, y = model.step(k, start, roots)
        assert carry is start and torch.equal(y, whole[:, k])
    alone = torch.cat([model.outputs(start[i : i + 1], roots[i : i + 1]) for i in range(5)])
    assert (alone - whole).abs().max() < 1e-12
    columns = torch.tensor([3, 8])
    assert model.logits(whole, columns).shape == (5, 3, 2)


def test_the_root_and_the_last_token_are_both_read() -> None:
    """The twin of a net that ignores one of its inputs."""
    target = tiny_runner()
    model = probes_model(random_head("probes", target), target)
    start = torch.ones(1, 4, CONFIG.hidden_size, dtype=torch.float64)
    one = model.outputs(start, torch.tensor([3]))
    assert not torch.equal(one, model.outputs(start, torch.tensor([4])))
    start[:, 0] = 2
    assert not torch.equal(one, model.outputs(start, torch.tensor([3])))
