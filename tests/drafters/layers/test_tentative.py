"""Tentative tokens have the distribution that is reported for them, so what the target makes of them is its own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core import host
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Tier
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.tree import TokenTree
from draftwood.drafters.layers.tentative import Tentative, entries, schedule
from draftwood.drafters.stateless import Stateless
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.exact import (
    Leaf,
    acceptance,
    distance,
    expected_accepted,
    first_token,
    joint_error,
    leaves,
    probs_of,
)
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_model import Conditional, TableModel, context_free, joint, near, random_probs
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

ROUNDING = 1e-12
P, REVIEW, DRAFT = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4), (0.25, 0.25, 0.25, 0.25)


class TableExit:
    """Distributions behind nodes by a table instead of layers. `ids`: tokens that it knows."""

    def __init__(self, rnd: Round, probs: Conditional, ids: Tensor | None = None) -> None:
        self.rnd, self.probs, self.ids = rnd, probs, ids
        self.asked: list[int] = []

    def logits(self, tree: TokenTree, first: int) -> Float[Tensor, "B K W"]:
        nodes = torch.arange(first, tree.num_nodes).expand(tree.batch, -1)
        self.asked.append(nodes.shape[1])
        made = [
            [self.probs((*request.known, *(t for t in path if t >= 0))) for path in own]
            for request, own in zip(self.rnd.requests, tree.path_tokens(nodes).tolist(), strict=True)
        ]
        logits = torch.tensor(made, dtype=torch.float64).log()
        return logits if self.ids is None else logits[..., self.ids]


@dataclass(frozen=True)
class ByTable(Stateless):
    """The chain of two tables."""

    draft: Conditional
    review: Conditional
    per_review: int = 1
    ids: Tensor | None = None
    stray: Callable[[Proposal], Proposal] = lambda made: made
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset(Draw)

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        exits = (TableExit(rnd, probs, self.ids) for probs in (self.draft, self.review))
        return self.stray(Tentative(rnd, limit, policy.draw, self.per_review, *exits).grow(base))


def rounds(
    p: Conditional,
    vocab: int,
    drafter: ByTable,
    depth: int,
    *,
    given: bool = False,
    nodes: int | None = None,
    **more: Any,
) -> list[Leaf]:
    def recipe() -> Recipe:
        policy, rule = (Chain(Draw.GIVEN), Match()) if given else (Chain(), Rejection())
        return Recipe(drafter=drafter, policy=policy, verifier=rule, controller=Always(depth, nodes or depth))

    return leaves(TableModel(vocab, p), recipe, **more)


def fixture(depth: int, per_review: int = 1, **more: Any) -> list[Leaf]:
    return rounds(context_free(P), 4, ByTable(context_free(DRAFT), context_free(REVIEW), per_review), depth, **more)


def tables(vocab: int, seed: int) -> tuple[Conditional, Conditional, Conditional]:
    p = random_probs(vocab, seed)
    return p, near(p, vocab, seed + 1, 0.6), near(p, vocab, seed + 2, 0.4)


# --- the composition is exact


def test_one_tentative_token_is_accepted_as_a_draw_of_the_deeper_exit_is() -> None:
    found = fixture(1)
    assert acceptance(found) == pytest.approx(1 - distance(P, REVIEW), abs=1e-9)
    assert distance(first_token(found, 4), P) < ROUNDING


@pytest.mark.one_in(5)
@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize(("depth", "per_review"), [(2, 1), (3, 1), (2, 2), (3, 2)])
def test_the_target_s_own_distribution_comes_out(depth: int, per_review: int, device: bool) -> None:
    for seed in range(2):
        p, draft, review = tables(2, 7 * seed)
        nodes = depth if not device else 2 * depth * (per_review + 1)
        with as_if_on_a_device() if device else nullcontext():
            found = rounds(p, 2, ByTable(draft, review, per_review), depth, nodes=nodes)
        assert joint_error(found, p, 2, depth + 1) < ROUNDING
        assert 0 < expected_accepted(found) < depth


def test_also_over_several_rounds() -> None:
    p, draft, review = tables(2, 3)
    found = rounds(p, 2, ByTable(draft, review), 2, tokens=3)
    assert joint_error(found, p, 2, 3) < ROUNDING


def test_also_where_the_exits_know_some_tokens_only() -> None:
    p, draft, review = tables(3, 5)

    def over(probs: Conditional) -> Conditional:
        return lambda text: [x / sum(probs(text)[t] for t in (0, 2)) for x in probs(text)]

    found = rounds(p, 3, ByTable(over(draft), over(review), 1, torch.tensor([2, 0])), 2)
    assert joint_error(found, p, 3, 3) < ROUNDING and acceptance(found) > 0.3


@pytest.mark.parametrize("params", [{"temperature": 0.6}, {"top_p": 0.8}, {"presence_penalty": 0.7}], ids=str)
def test_also_with_sampling_options(params: dict[str, Any]) -> None:
    """Both exits and the target sample as the request says, along the path of each node."""
    p, draft, review = tables(3, 4)
    own = SamplingParams(**{"temperature": 1.0, "seed": 0, **params})
    plain = {leaf: x for leaf, x in probs_of(rounds(p, 3, ByTable(draft, review), 0, params=own, tokens=2)).items()}
    found = probs_of(rounds(p, 3, ByTable(draft, review), 1, params=own, tokens=2))
    assert found.keys() == plain.keys() and max(abs(found[text] - plain[text]) for text in plain) < ROUNDING


def test_guesses_are_accepted_by_the_mass_that_all_levels_share() -> None:
    """One uniform decides at both exits and in the target, so equal distributions always agree."""
    same = ByTable(context_free(P), context_free(P), 2)
    found = rounds(context_free(P), 4, same, 3, given=True)
    assert (
        expected_accepted(found) == pytest.approx(3, abs=1e-9) and joint_error(found, context_free(P), 4, 3) < ROUNDING
    )
    other = rounds(context_free(P), 4, ByTable(context_free(DRAFT), context_free(REVIEW), 2), 3, given=True)
    assert joint_error(other, context_free(P), 4, 3) < ROUNDING and 0 < expected_accepted(other) < 3


# --- twins


@contextmanager
def streams(monkeypatch: pytest.MonkeyPatch, named: Callable[[Round, str], Round]) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(Round, "inner", named)
        yield


def off(found: list[Leaf], probs: Conditional, vocab: int, length: int) -> float:
    """Total variation of texts of this length."""
    emitted, every = probs_of(found), list(texts(vocab, length))
    got = [
        sum(x * joint(probs, (0, *out), z[len(out) :]) for out, x in emitted.items() if out[:length] == z[: len(out)])
        for z in every
    ]
    return distance(got, [joint(probs, (0,), z) for z in every])


def texts(vocab: int, length: int) -> Iterator[tuple[int, ...]]:
    if not length:
        yield ()
        return
    for z in texts(vocab, length - 1):
        yield from ((*z, t) for t in range(vocab))


def test_twin_reviews_that_share_the_outer_rule_s_noise_bias_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert off(fixture(2), context_free(P), 4, 2) < ROUNDING
    with streams(monkeypatch, lambda rnd, name: rnd):
        cost = off(fixture(2), context_free(P), 4, 2)
    print(f"one stream for reviews and the outer rule: TV {cost:.4f}")
    assert cost > 0.02


def test_twin_reviews_that_share_the_accept_coin_alone_bias_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Round.key

    def key(self: Round, purpose: str, at: Tensor, turn: Any = 0) -> Tensor:
        outer = Round(self.slots, self.lengths, self.requests)
        return real(outer if purpose == "accept" else self, purpose, at, turn)

    monkeypatch.setattr(Round, "key", key)
    cost = off(fixture(2, 2), context_free(P), 4, 2)
    print(f"one accept coin for reviews and the outer rule: TV {cost:.4f}")
    assert cost > 0.01


def test_twin_reviews_of_one_round_that_share_a_stream_bias_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both number their nodes from 0, so without the review's number a coin would serve twice."""
    real, p, draft, review = Round.inner, *tables(2, 3)
    drafter = ByTable(draft, review)
    assert off(rounds(p, 2, drafter, 3), p, 2, 3) < ROUNDING
    with streams(monkeypatch, lambda rnd, name: real(rnd, "review")):
        cost = off(rounds(p, 2, drafter, 3), p, 2, 3)
    print(f"one stream for all reviews: TV {cost:.4f}")
    assert cost > 1e-3


def test_twin_the_shallow_exit_s_distribution_as_q_biases_the_text() -> None:
    def wrong(made: Proposal) -> Proposal:
        assert made.q is not None
        return replace(made, q=replace(made.q, prob=torch.tensor(DRAFT, dtype=torch.float64).expand_as(made.q.prob)))

    drafter = ByTable(context_free(DRAFT), context_free(REVIEW), 1, stray=wrong)
    cost = off(rounds(context_free(P), 4, drafter, 2), context_free(P), 4, 2)
    print(f"q of the shallow exit: TV {cost:.4f}")
    assert cost > 0.05


# --- sizes


@pytest.mark.one_in(3)
@pytest.mark.parametrize("draw", [Draw.GIVEN, Draw.IID])
@pytest.mark.parametrize("per_review", [1, 2, 5])
def test_the_contract_of_drafters_holds(per_review: int, draw: Draw) -> None:
    _, draft, review = tables(5, 1)
    ways: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.0}, {"repetition_penalty": 1.3})
    for options in ways:
        check_drafter(ByTable(draft, review, per_review), Chain(draw), 5, depth=4, **options)


def grown(
    limit: Limit, per_review: int, draft: Conditional, review: Conditional, **options: Any
) -> tuple[Any, Any, Any]:
    rnd = toy_round([[1]] * len(limit.depths), 4, **options)
    exits = TableExit(rnd, draft), TableExit(rnd, review)
    return Tentative(rnd, limit, Draw.GIVEN, per_review, *exits).grow(Proposal.roots(rnd.roots())), *exits


def sure(token: int) -> Conditional:
    return context_free([0.91 if t == token else 0.03 for t in range(4)])


def test_two_tokens_of_one_review_and_the_reviewer_s_own_then_its_own_alone() -> None:
    made, draft, review = grown(Limit.of([4], [4]), 2, sure(2), sure(2), temperature=0.0)
    assert made.tree.tokens.tolist() == [[1, 2, 2, 2, 2]] and made.tree.live.all() and made.passes == 4
    assert draft.asked == [1, 1] and review.asked == [3, 1], "nothing is drafted for a last token alone"


def test_what_a_review_rejects_is_dead_and_its_own_token_stands_beside_it() -> None:
    made, draft, review = grown(Limit.of([2], [2]), 2, sure(2), sure(3), temperature=0.0)
    assert made.tree.tokens.tolist() == [[1, 2, 3, 3]] and made.tree.live.tolist() == [[True, False, True, True]]
    assert made.tree.parents.tolist() == [[-1, 0, 0, 2]] and draft.asked == [1] and review.asked == [2, 1]


def test_sequences_of_a_batch_have_their_own_limits() -> None:
    made, _, _ = grown(Limit.of([4, 1, 2], [4] * 3), 2, sure(2), sure(3), temperature=0.0)
    assert (made.tree.live.sum(1) - 1).tolist() == [4, 1, 2] and (made.tree.depths() * made.tree.live).amax(
        1
    ).tolist() == [
        4,
        1,
        2,
    ]


def test_a_chain_ends_where_the_limit_says_so() -> None:
    ways: tuple[dict[str, Any], ...] = ({"least": 0.95}, {"surer": (0.95,)}, {"proceed": Stops()})
    for more in ways:
        made, _, _ = grown(Limit.of([4], [4], **more), 1, sure(2), sure(3), temperature=0.0)
        assert made.tree.live.sum() == 2, more
        other, _, _ = grown(Limit.of([4], [4], least=0.5, surer=(0.9,)), 1, sure(2), sure(3), temperature=0.0)
        assert other.tree.live.sum() == 5


class Stops:
    """Only a root gets children."""

    def __call__(self, tree: TokenTree, frontier: Tensor, above: Tensor | None, own: Tensor) -> Tensor:
        return frontier == 0


def test_where_nothing_is_read_shapes_follow_the_limit_alone() -> None:
    assert schedule(Tier(4, 7), 2) == (2, 2) and entries(4, 2, torch.device("cpu")) == 4
    assert schedule(Tier(4, 5), 2) == (1, 2) and schedule(Tier(1, 2), 2) == (1, 0) and schedule(Tier(0, 1), 2)[0] == 0
    shapes: set[int] = set()
    with as_if_on_a_device():
        assert entries(4, 2, torch.device("cpu")) == 6
        for review in (sure(2), sure(3)):
            rnd = toy_round([[1]] * 2, 4, temperature=1.0)
            rnd = Round(rnd.slots, rnd.lengths, rnd.requests, host_slots=[0, 1], host_lengths=[1, 1])
            limit = Limit.of([4, 3], [6, 6])
            made = Tentative(rnd, limit, Draw.IID, 2, *(Numbers(probs) for probs in (sure(2), review)))
            base = Proposal.roots(rnd.roots())
            assert limit.depth.shape == limit.nodes.shape
            with HostReads() as reads:
                tree = made.grow(base).tree
            shapes.add(tree.num_nodes)
            assert reads.total == 0, reads.by_name
    assert shapes == {7} and not host.on_host(torch.device("cuda"))


class Numbers:
    """The same logits everywhere, without a look at the tree's tokens."""

    ids = None

    def __init__(self, probs: Conditional) -> None:
        self.row = torch.tensor(probs(()), dtype=torch.float64).log()

    def logits(self, tree: TokenTree, first: int) -> Float[Tensor, "B K W"]:
        return self.row.expand(tree.batch, tree.num_nodes - first, -1).clone()


# --- what fails


def test_a_step_that_fails_leaves_what_was_tentative_before() -> None:
    def breaks(text: tuple[int, ...]) -> Sequence[float]:
        if len(text) > 2:
            raise RuntimeError("broken")
        return sure(3)(text)

    for draft, review in ((sure(2), breaks), (breaks, sure(3))):
        made, _, _ = grown(Limit.of([4], [4]), 1, draft, review, temperature=0.0)
        assert made.fault == "propose: RuntimeError: broken"
        assert made.tree.tokens[made.tree.live].tolist() == [1, 3, 3][: 2 + (review is not breaks)]


def test_numbers_that_are_none_end_a_chain_with_a_reason() -> None:
    made, _, _ = grown(Limit.of([2], [2]), 1, context_free([float("nan")] * 4), sure(2))
    assert "not numbers" in made.fault and made.tree.num_nodes == 1


def test_where_a_grammar_leaves_no_token_the_chain_ends() -> None:
    def grammar(text: Any) -> Tensor:
        return torch.tensor([False, False, True, False]) if len(text) < 2 else torch.zeros(4).bool()

    for given in (True, False):
        rnd = toy_round([[1]], 4, temperature=1.0, grammar=grammar)
        exits = (TableExit(rnd, sure(3)) for _ in range(2))
        draw = Draw.GIVEN if given else Draw.IID
        made = Tentative(rnd, Limit.of([4], [4]), draw, 2, *exits).grow(Proposal.roots(rnd.roots()))
        assert made.fault is None and made.tree.tokens[made.tree.live].tolist() == [1, 2, 2]
