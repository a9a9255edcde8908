"""The block rule: a whole chain in one decision, exact, and never shorter than token by token."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.noise import fold, word
from draftwood.core.round import TARGET, Round
from draftwood.core.sampling import SamplingParams
from draftwood.testing.contracts import check_verifier
from draftwood.testing.exact import acceptance, distance, expected_accepted, joint_error, law_of
from draftwood.testing.tables import context_free, joint
from draftwood.trees.chain import Chain
from draftwood.verifiers import block
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match
from draftwood.verifiers.path_block import PathBlock
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.traversal import Traversal
from look_ahead import Failing, Wayward, outcomes, pair

TWO = context_free((1 / 3, 2 / 3)), context_free((2 / 3, 1 / 3))


def test_fixture_b_is_reproduced() -> None:
    found = outcomes(Block(), Chain(), *TWO, 2)
    assert expected_accepted(found) == pytest.approx(11 / 9, abs=1e-9)
    assert joint_error(found, TWO[0], 2, 3) < 1e-12


def test_weights_of_fixture_b_are_those_of_the_card() -> None:
    p, q = (torch.tensor([x], dtype=torch.float64) for x in ([1 / 3, 2 / 3], [2 / 3, 1 / 3]))
    w = block.weight(torch.ones(1, dtype=torch.float64), p, q, torch.tensor([[0]]))
    assert w.item() == pytest.approx(0.5)
    assert block.share(block.missing(w, p, q).sum(-1), w).item() == 0, "never stop after the first token"
    assert block.weight(w, p, q, torch.tensor([[1]])).item() == 1, "and keep both"


def test_a_root_is_always_kept() -> None:
    """With w = 1 the share is 1 to the last bit, whatever is missing; rounding must not leave a row with nothing."""
    one, total = torch.ones(1000, dtype=torch.float64), torch.rand(1000, dtype=torch.float64) * 1e-8
    assert (block.share(total, one) == 1).all() and (block.share(0 * total, one) == 1).all()
    assert (block.share(0 * total, one / 2) == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_random_chains_come_out_exactly(seed: int) -> None:
    p, q = pair(3, seed)
    assert joint_error(outcomes(Block(), Chain(), p, q, 3, depth=3), p, 3, 4) < 1e-12
    p, q = pair(5, seed)
    assert joint_error(outcomes(Block(), Chain(), p, q, 5), p, 5, 3) < 1e-12


@given(st.integers(0, 2**31), st.sampled_from([0.2, 0.6, 1.0]), st.integers(2, 3))
@settings(max_examples=10, deadline=None)
def test_it_keeps_at_least_what_rejection_keeps(seed: int, mix: float, depth: int) -> None:
    p, q = pair(3, seed, mix)
    whole, each = (expected_accepted(outcomes(rule, Chain(), p, q, 3, depth)) for rule in (Block(), Rejection()))
    assert whole > each - 1e-12


def test_on_one_token_it_is_rejection() -> None:
    for seed in range(3):
        p, q = pair(4, seed)
        ours, theirs = (law_of(outcomes(rule, Chain(), p, q, 4, depth=1)) for rule in (Block(), Rejection()))
        assert ours.keys() == theirs.keys()
        assert all(abs(ours[text] - theirs[text]) < 1e-12 for text in ours)


def test_on_chains_all_look_ahead_rules_are_one() -> None:
    """Their verdicts have one law for every draft: outcomes agree together with how much of them was drafted."""
    p, q = pair(3, 5)

    def split(rule: Any) -> dict[Any, float]:
        law: dict[Any, float] = {}
        for leaf in outcomes(rule, Chain(), p, q, 3, depth=3):
            law[leaf.output, leaf.accepted] = law.get((leaf.output, leaf.accepted), 0) + leaf.prob
        return law

    want = split(Block())
    for rule in (Traversal(), PathBlock(), PathBlock(counted=True)):
        got = split(rule)
        assert got.keys() == want.keys() and all(abs(got[key] - want[key]) < 1e-12 for key in want)


def test_equal_laws_keep_all_and_disjoint_ones_nothing() -> None:
    even, low, high = (context_free(x) for x in ((0.2, 0.3, 0.5), (0.5, 0.5, 0.0), (0.0, 0.0, 1.0)))
    assert expected_accepted(outcomes(Block(), Chain(), even, even, 3)) == pytest.approx(2, abs=1e-12)
    for p, q in ((low, high), (high, low)):
        found = outcomes(Block(), Chain(), p, q, 3)
        assert acceptance(found) == 0 and joint_error(found, p, 3, 3) < 1e-12


@pytest.mark.slow
def test_the_contract_of_verifiers_holds() -> None:
    check_verifier(Block(), models=1)


def test_whole_requests_over_several_rounds_have_the_targets_joint_law() -> None:
    p, q = pair(3, 7)
    found = outcomes(Block(), Chain(), p, q, 3, tokens=3)
    assert {len(leaf.output) for leaf in found} == {3} and joint_error(found, p, 3, 3) < 1e-12


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.7, "top_k": 2}, {"top_p": 0.6}, {"repetition_penalty": 1.8, "bad_words": ((1, 1),)}],
    ids=lambda o: "+".join(o),
)
def test_options_are_honoured(options: dict[str, Any]) -> None:
    p, q = pair(3, 5)
    params = SamplingParams(**{"temperature": 1.0, **options})
    fast = law_of(outcomes(Block(), Chain(), p, q, 3, tokens=3, params=params))
    slow = law_of(outcomes(Match(), Chain(), p, q, 3, depth=0, tokens=3, params=params))
    assert max(abs(fast.get(z, 0) - slow.get(z, 0)) for z in {*fast, *slow}) < 1e-12


@pytest.mark.parametrize("raises", [False, True])
def test_chains_that_break_off_because_of_what_was_drawn_do_not_bias(raises: bool) -> None:
    p, q = pair(3, 2)
    found = outcomes(Block(), Chain(), p, Failing(q, raises=raises), 3, width=1, benched=True)
    assert joint_error(found, p, 3, 3) < 1e-12
    found = outcomes(Block(), Chain(), p, q, 3, depth=3, controller=Wayward(3, 3))
    assert joint_error(found, p, 3, 4) < 1e-12 and {leaf.accepted for leaf in found} == {0, 1, 2, 3}


# Planted mistakes: the shipped rule with one change, on chains of five tokens, and what the change costs.


def cost() -> list[float]:
    """The largest error of a text of three tokens, on three pairs of unrelated laws."""
    laws = [pair(5, seed, 1.0) for seed in (3, 4, 7)]
    return [joint_error(outcomes(Block(), Chain(), p, q, 5), p, 5, 3) for p, q in laws]


def test_without_a_mistake_nothing_is_lost() -> None:
    assert max(cost()) < 1e-12


def test_control_weights_above_one_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbounded(w: Any, p: Any, q: Any, token: Any) -> Any:
        return w * p.gather(1, token)[:, 0] / q.gather(1, token)[:, 0]

    p, q = pair(5, 0)
    right = expected_accepted(outcomes(Block(), Chain(), p, q, 5))
    monkeypatch.setattr(block, "weight", unbounded)
    assert min(cost()) > 8e-3
    assert expected_accepted(outcomes(Block(), Chain(), p, q, 5)) > right, "and it looks better than the rule"


def test_control_stopping_at_the_first_coin_that_fails_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    coin, failed = Round.coin, set[int]()

    def first(self: Round, purpose: str, at: Any, prob: Any, where: Any, turn: int = 0) -> Any:
        got = coin(self, purpose, at, prob, where, turn)
        for b, who in enumerate(self.ids):
            if where[b] and at[b] == 0:
                failed.discard(who)
            elif where[b]:
                got[b] = got[b] and who not in failed
                failed.update([] if got[b] else [who])
        return got

    monkeypatch.setattr(Round, "coin", first)
    assert min(cost()) > 1e-2


def test_control_the_ordinary_residual_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = block.missing

    def ordinary(w: Any, p: Any, q: Any) -> Any:
        """As much as is missing, spread like (p - q)+."""
        total, spread = missing(w, p, q).sum(-1, keepdim=True), (p - q).clamp_min(0)
        return total * spread / spread.sum(-1, keepdim=True)

    monkeypatch.setattr(block, "missing", ordinary)
    assert 1e-3 < min(cost()) < max(cost()) < 5e-3


def test_control_noise_keyed_by_position_instead_of_by_round_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = pair(3, 3)
    key = Round.key

    def by_position(self: Round, purpose: str, at: Any, turn: int = 0) -> Any:
        if purpose == TARGET:
            return key(self, purpose, at, turn)
        shape = (-1,) + (1,) * (at.ndim - 1)
        place = (self.lengths - 1).view(shape) + at
        return fold(fold(fold(self.seeds.view(shape), word(purpose)), place), turn)

    def error(rule: Any) -> float:
        """Total variation of texts of three tokens."""
        law, texts = law_of(outcomes(rule, Chain(), p, q, 3, tokens=3)), list(product(range(3), repeat=3))
        return distance([law.get(z, 0) for z in texts], [joint(p, (0,), z) for z in texts])

    assert error(Block()) < 1e-12
    monkeypatch.setattr(Round, "key", by_position)
    assert 0.02 < error(Block()) < 0.04
    assert error(Rejection()) < 1e-12, "token by token nothing is left over that a second round could meet again"
