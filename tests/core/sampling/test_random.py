"""Chance depends on its key and on nothing else."""

import math

import pytest
import torch

from draftwood.core.round import TARGET, Round
from draftwood.core.sampling.keys import digits, fold
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.sampling.random import Keyed, invert
from draftwood.testing.contracts import toy_round


def test_a_pick_follows_its_distribution_and_never_takes_a_token_without_mass() -> None:
    probs = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0])
    key = fold(torch.arange(30_000), 3)
    tokens = Keyed().pick(key, probs.expand(30_000, -1), torch.ones(30_000).bool(), [])
    share = torch.bincount(tokens, minlength=6) / 30_000
    assert (share[probs == 0] == 0).all()
    assert (share - probs).abs().max() < 4 * math.sqrt(0.25 / 30_000)


def test_the_ends_of_the_unit_hit_the_first_and_last_token_with_mass() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.5, 0.0]] * 2)
    ends = torch.tensor([[0.0] * 3, [1.0 - 2**-53] * 3], dtype=torch.float64)
    assert invert(probs, ends).tolist() == [1, 2]
    assert invert(torch.zeros(1, 4), ends[:1]).tolist() == [-1]


@pytest.mark.slow
def test_last_bits_of_a_wide_distribution_rarely_change_the_pick() -> None:
    noise = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, 49_152, generator=noise)
    shaken = logits + 1e-4 * torch.randn(logits.shape, generator=noise)
    u = digits(fold(torch.arange(400), 9))
    moved = invert(torch.softmax(logits, -1), u) != invert(torch.softmax(shaken, -1), u)
    assert moved.sum() <= 1

    def one_step(probs: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(probs.double().cumsum(-1), u[:, :1].contiguous())

    plain = one_step(torch.softmax(logits, -1)) != one_step(torch.softmax(shaken, -1))
    assert plain.sum() >= 3 + moved.sum(), "the twin: one step over the whole vocabulary disagrees often"


def test_target_samples_are_keyed_by_seed_and_position_alone() -> None:
    near, far = toy_round([[1, 2, 3]], 5), toy_round([[1, 2]], 5)
    at = torch.tensor
    assert near.key(TARGET, at([1])) == far.key(TARGET, at([2]))
    assert near.key("accept", at([1])) != far.key("accept", at([2])), "other coins know where the round began"


def test_keys_of_a_few_sequences_are_those_of_many() -> None:
    many = toy_round([[1] * (b + 1) for b in range(20)], 5)
    few = many.take([3, 4, 19])
    for depth in (0, 7):
        whole = many.key(TARGET, torch.full((20,), depth))
        assert torch.equal(many.target_key(depth), whole) and torch.equal(few.target_key(depth), whole[[3, 4, 19]])
    inner = few.inner("x")
    assert torch.equal(inner.target_key(1), inner.key(TARGET, torch.ones(3, dtype=torch.int64)))


def test_rules_inside_drafters_have_noise_of_their_own() -> None:
    rnd: Round = toy_round([[1]], 5)
    at = torch.tensor([0])
    assert rnd.key("accept", at) != rnd.inner("a").key("accept", at) != rnd.inner("b").key("accept", at)
    assert rnd.key(TARGET, at) != rnd.inner("a").key(TARGET, at)


def test_a_row_draws_the_same_alone_and_in_a_batch() -> None:
    rnd = toy_round([[1], [2, 3], [4]], 5)
    probs = torch.softmax(torch.randn(3, 50, generator=torch.Generator().manual_seed(0)), -1)
    at, yes = torch.tensor([0, 3, 1]), torch.ones(3).bool()
    together = rnd.pick("residual", at, probs, yes)
    alone = [int(rnd.take([b]).pick("residual", at[b : b + 1], probs[b : b + 1], yes[:1])) for b in range(3)]
    assert together.tolist() == alone


def test_a_pick_from_a_sparse_distribution_is_the_pick_from_the_dense_one() -> None:
    noise = torch.Generator().manual_seed(5)
    for vocab_size in (40, 500, 49_152):
        ids = torch.rand(64, vocab_size, generator=noise).topk(30).indices.sort(dim=1).values
        ids[:, 25:] = vocab_size  # columns that stand for no token, whatever they hold
        prob = torch.rand(64, 30, generator=noise)
        prob[3] = 0
        table, key = TokenProbs(prob, vocab_size, ids), fold(torch.arange(64), vocab_size)
        packed = TokenProbs(prob[:, :25].flatten(), vocab_size, ids[:, :25].flatten(), torch.full((64,), 25))
        where = torch.arange(64) % 5 > 0
        for sparse in (table, packed):
            few = Keyed().pick(key, sparse, where, range(64))
            assert torch.equal(few, Keyed().pick(key, sparse.dense(), where, range(64)))
            assert few[3] == -1 and (few[~where] == -1).all() and (few >= 0).sum() > 40


def test_few_columns_do_not_feel_empty_ones_behind_them() -> None:
    probs, key = torch.rand(200, 5, generator=torch.Generator().manual_seed(2)), fold(torch.arange(200), 3)
    where = torch.ones(200, dtype=torch.bool)
    alone = Keyed().pick(key, probs, where, range(200))
    for more in (1, 20, 59):
        assert torch.equal(Keyed().pick(key, torch.nn.functional.pad(probs, (0, more)), where, range(200)), alone)
