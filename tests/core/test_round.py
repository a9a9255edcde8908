"""Random numbers are the same wherever their keys are made, and a device makes them without a host read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.legal_draws import Draw
from draftwood.core.round import TARGET, Round, some
from draftwood.testing.contracts import toy_round
from draftwood.testing.host_reads import HostReads, as_if_on_a_device

VOCAB = 200


def rounds(batch: int) -> list[Round]:
    """Alone, in a batch, and inside a drafter; each fresh, since keys are kept for the round."""
    made = toy_round([list(range(1, 3 + b % 5)) for b in range(batch)], VOCAB, seed=-7)
    return [made, made.inner("draft"), made.take(list(range(0, batch, 2)))]


def both(batch: int, ask: Callable[[Round], Any]) -> list[tuple[Any, Any]]:
    """What the rounds give on a CPU, and on a device."""
    free = [ask(rnd) for rnd in rounds(batch)]
    with as_if_on_a_device():
        made = rounds(batch)
        with HostReads() as reads:
            told = [ask(rnd) for rnd in made]
    assert reads.total == 0, reads.by_name
    return list(zip(free, told, strict=True))


@pytest.mark.parametrize("batch", [1, 3, 40])
def test_keys_are_the_same_on_a_device(batch: int) -> None:
    def keys(rnd: Round) -> list[Tensor]:
        at = torch.arange(6).expand(rnd.batch, -1)
        return [
            rnd.key("accept", at, 2), rnd.key("order", at, torch.arange(6)), rnd.key(TARGET, at),
            rnd.target_key(3), rnd.key("residual", at[:, 0]),
        ]  # fmt: skip

    for free, told in both(batch, keys):
        assert all(torch.equal(a, b) for a, b in zip(free, told, strict=True))


@pytest.mark.parametrize("draw", list(Draw))
@pytest.mark.parametrize("batch", [1, 8])
def test_draws_coins_and_picks_are_the_same_on_a_device(batch: int, draw: Draw) -> None:
    def ask(rnd: Round) -> list[Tensor]:
        at = torch.arange(4).expand(rnd.batch, -1)
        probs = torch.softmax(2 * torch.randn(rnd.batch, 4, VOCAB, generator=torch.Generator().manual_seed(1)), -1)
        where = (at + torch.arange(rnd.batch)[:, None]) % 3 > 0
        return [
            rnd.draw(at, probs, 5, draw, where), rnd.coin("accept", at, probs[..., 0] * 40, where),
            rnd.pick("residual", at, probs, where), rnd.sample(at, probs, where),
        ]  # fmt: skip

    for free, told in both(batch, ask):
        assert all(torch.equal(a, b) for a, b in zip(free, told, strict=True))


def test_a_mask_is_looked_at_on_the_host_only() -> None:
    nothing = torch.zeros(3, dtype=torch.bool)
    assert not some(nothing) and some(~nothing)
    with as_if_on_a_device(), HostReads() as reads:
        assert some(nothing)
    assert reads.total == 0


def test_drafts_made_while_a_pass_runs_have_keys_of_their_own_and_the_target_keeps_its() -> None:
    rnd = toy_round([[1, 2], [3]], VOCAB, seed=5)
    at = torch.arange(8).expand(2, -1)
    ahead = rnd.ahead()
    assert ahead.in_flight and ahead.take([1]).in_flight and not rnd.in_flight
    assert torch.equal(ahead.key(TARGET, at), rnd.key(TARGET, at))
    streams = [rnd, ahead, rnd.inner("x"), ahead.inner("x")]
    keys = [key for each in streams for key in each.key("draft", at).flatten().tolist()]
    assert len(set(keys)) == len(keys)
    assert torch.equal(ahead.take([1]).key("draft", at[1:]), ahead.key("draft", at)[1:])
