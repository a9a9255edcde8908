"""The decision net says a chance for every node, whatever the scale of its hidden state."""

from typing import Any

import torch

from draftwood.drafters.nets.files.build import filled
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner


def test_chances_are_between_0_and_1_and_know_no_scale() -> None:
    net: Any = filled(random_head("decision", tiny_runner())).double()
    hidden = torch.randn(2, 3, CONFIG.hidden_size, dtype=torch.float64)
    chance = net(hidden)
    assert chance.shape == (2, 3) and bool(((chance > 0) & (chance < 1)).all())
    assert torch.allclose(net(1000 * hidden), chance, atol=1e-4)
    assert torch.equal(net.logit(hidden) > 0, chance > 0.5)
