"""The acceptance net says a chance for every node, whatever the scale of its hidden state."""

from typing import Any

import torch

from draftwood.drafters.nets.files.build import filled
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner


def test_chances_are_those_of_the_second_class_and_know_no_scale() -> None:
    net: Any = filled(random_head("acceptance", tiny_runner(), depth=3)).double()
    hidden = torch.randn(2, 3, CONFIG.hidden_size, dtype=torch.float64)
    chance = net(hidden)
    assert chance.shape == (2, 3) and bool(((chance >= 0) & (chance <= 1)).all())
    assert torch.allclose(net(1000 * hidden), chance, atol=1e-3)
    x = torch.nn.functional.rms_norm(hidden, hidden.shape[-1:], eps=CONFIG.rms_eps)
    for block in net.blocks:
        x = x + torch.nn.functional.silu(block(x))
    assert torch.allclose(net.last(x).softmax(-1)[..., 1], chance)


def test_tied_blocks_are_one() -> None:
    tied: Any = filled(random_head("acceptance", tiny_runner(), depth=3, tied=True)).double()
    apart: Any = filled(random_head("acceptance", tiny_runner(), depth=3)).double()
    for block in apart.blocks:
        block.load_state_dict(tied.blocks[0].state_dict())
    apart.last.load_state_dict(tied.last.state_dict())
    hidden = torch.randn(4, CONFIG.hidden_size, dtype=torch.float64)
    assert len(tied.blocks) == 1 and torch.equal(tied(hidden), apart(hidden))
