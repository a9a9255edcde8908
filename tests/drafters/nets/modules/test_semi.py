"""The relaxed mask is the one drawn, and the LSTM run index by index is the LSTM run at once."""

from typing import Any

import torch

from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.modules.semi import PARTS, relaxed
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner


def test_the_mask_of_five_indices_in_blocks_of_two() -> None:
    by_hand = [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert relaxed(5, 2).int().tolist() == by_hand
    assert torch.equal(relaxed(6, 1), torch.ones(6, 6).tril().bool())


def test_states_are_those_of_the_whole_sequence_wherever_it_is_cut() -> None:
    net: Any = filled(random_head("semi", tiny_runner())).double()
    z = torch.randn(2, 7, 2 * CONFIG.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole, (last, cells) = net.lstm(z)
    state = torch.zeros(2, PARTS, CONFIG.hidden_size, dtype=torch.float64)
    for cut in (0, 3, 7):
        first = net.states(z[:, :cut], state) if cut else None
        then = net.states(z[:, cut:], state if first is None else first[:, -1]) if cut < 7 else None
        made = torch.cat([part for part in (first, then) if part is not None], dim=1)
        torch.testing.assert_close(made[:, :, -2], whole)
        torch.testing.assert_close(made[:, -1], torch.stack([last[0], cells[0], last[1], cells[1]], dim=1))
