"""One hash, computed by tensors, arrays or single numbers."""

import pytest
import torch

from draftwood.core import host
from draftwood.core.sampling.keys import digits, fold, uniform, word


def test_uniforms_are_uniform_and_neighbours_are_independent() -> None:
    key = fold(torch.arange(40_000), word("x"))
    u, v = uniform(key), uniform(fold(torch.arange(1, 40_001), word("x")))
    assert u.min() >= 0 and u.max() < 1
    count = torch.histc(u, bins=100, min=0, max=1)
    chi = float(((count - 400) ** 2 / 400).sum())
    assert 60 < chi < 150, "chi-square with 99 degrees of freedom"
    assert abs(float(torch.corrcoef(torch.stack([u, v]))[0, 1])) < 0.02


def test_words_of_a_key_are_ordered() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    assert uniform(fold(fold(zero, 1), 2)) != uniform(fold(fold(zero, 2), 1))


def test_the_hash_is_the_one_of_whole_numbers_modulo_two_to_the_sixty_four() -> None:
    full = 2**64

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % full
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % full
        return x ^ (x >> 31)

    golden, key, other = 0x9E3779B97F4A7C15, 7, word("accept") % full
    folded = mix(((key ^ other) + golden) % full) ^ (key * 0xBF58476D1CE4E5B9 % full)
    by_hand = (mix((folded + golden) % full) >> 11) * 2.0**-53
    assert uniform(fold(torch.tensor([key]), word("accept"))).item() == by_hand


@pytest.mark.parametrize("shape", [(50, 1), (1, 1), (1,)])
def test_few_numbers_and_single_ones_are_hashed_to_the_same_bits(shape: tuple[int, ...], monkeypatch) -> None:
    key = torch.randint(-(2**62), 2**62, shape)
    other = torch.arange(-3, 4).expand(50, 7) if shape == (50, 1) else torch.full(shape, -7)

    def all_of_it() -> list[torch.Tensor]:
        folds = [fold(key, other), fold(key, -5), fold(key, 2**40), fold(key, other, 3), fold(key)]
        return [*folds, fold(fold(key, other), 3), *map(uniform, folds), *map(digits, folds)]

    quick = all_of_it()
    assert torch.equal(quick[3], quick[5]), "several words are one after another"
    monkeypatch.setattr(host, "on_host", lambda device: False)
    for ours, theirs in zip(quick, all_of_it(), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)
