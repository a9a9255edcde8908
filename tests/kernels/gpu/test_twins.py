"""Words of ancestors, and refusals."""

import pytest
import torch

from draftwood.errors import EngineError
from draftwood.kernels.gpu.twins import Twins, bits_of, words_of


def test_bits_and_words_are_inverse() -> None:
    bits = torch.rand(3, 130, generator=torch.Generator().manual_seed(0)) < 0.5
    bits[0, 63] = True  # the sign of a word
    words = words_of(bits, 3)
    assert words.shape == (3, 3) and words[0, 0] < 0
    assert torch.equal(bits_of(words)[:, :130], bits) and not bits_of(words)[:, 130:].any()


def test_entries_of_a_copy_do_not_move() -> None:
    store = torch.zeros(2, 3, 2, 16, 8).transpose(1, 2)
    one = torch.tensor([0])
    with pytest.raises(EngineError, match="cannot move"):
        Twins().moved(store, one, one, one, 1)
