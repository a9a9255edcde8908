"""The length net says a number for every pair of an embedding and a feature, whatever their scale."""

from typing import Any

import torch

from draftwood.drafters.nets.files.build import filled
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner


def test_it_knows_no_scale_and_is_a_residual_net() -> None:
    net: Any = filled(random_head("length", tiny_runner(), depth=3)).double()
    e, f = torch.randn(2, 5, CONFIG.hidden_size, dtype=torch.float64)
    k = net(e, f)
    assert k.shape == (5,) and len(net.blocks) == 3
    assert torch.allclose(net(100 * e, 1000 * f), k, atol=1e-3)
    for block in net.blocks:
        block.weight.zero_()
        block.bias.zero_()
    halves = [torch.nn.functional.rms_norm(x, x.shape[-1:], eps=CONFIG.rms_eps) for x in (e, f)]
    assert torch.allclose(net(e, f), net.last(net.enter(torch.cat(halves, -1)))[:, 0]), "blocks of zeros add nothing"
