"""A chain in one call is the chain that the growing loop grows, and no text shows which of them it was."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ForwardInput
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.drafters.nets.runners.native_runner import Int8Runner
from draftwood.drafters.on_features.feature_draft import chain_in_one_call
from draftwood.engine import drafting
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.grow import NO_NUMBERS
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match
from draftwood.verifiers.path_block import PathBlock
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.selection import Selection
from draftwood.verifiers.transport import Transport
from draftwood.verifiers.traversal import Traversal
from native_levels import BEST, kept_weights, opened
from tiny_heads import features, random_net

SHAPE = replace(CONFIG, num_heads=6, num_kv_heads=2, head_dim=48, hidden_size=96, intermediate_size=160)
NOTHING: Any = None


def native_target() -> CpuRunner:
    return CpuRunner(NativeDecoder(SHAPE, int8_weights.from_tensors(SHAPE, kept_weights(SHAPE)), opened(BEST)))


def drafted(
    probabilities: list[list[float]], depth: list[int], nodes: list[int], on_device: bool = False, least: float = 0.0
) -> Any:
    """What becomes of a model's chains."""

    class Model:
        def best_chains(
            self, x: ForwardInput, temperature: list[float], steps: int, only: Any, asked: float, k: int
        ) -> Any:
            assert asked == least and k == 1
            tokens = torch.tensor([[7, 8, 9, 10], [11, 12, 13, 14]])[: len(probabilities)]
            return tokens[:, :steps, None], torch.tensor(probabilities)[:, :steps, None]

    model: Any = Model()
    base, limit = Proposal.roots(torch.tensor([3, 4])[: len(probabilities)]), Limit.of(depth, nodes, least=least)
    ones = [1.0] * len(probabilities)
    if not on_device:
        return chain_in_one_call(model, base, limit, NOTHING, ones, None)
    with as_if_on_a_device(), HostReads() as reads:
        found = chain_in_one_call(model, base, limit, NOTHING, ones, None)
    assert reads.total == 0
    return found


def live(found: Any) -> list[list[int]]:
    """Tokens of the live nodes of each sequence."""
    each = zip(found.tree.tokens, found.tree.live, strict=True)
    return [tokens[alive].tolist() for tokens, alive in each]


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_the_next_best_tokens_are_leaves_beside_the_chain(on_device: bool) -> None:
    class Model:
        def best_chains(self, *given: Any) -> Any:
            tokens = torch.tensor([[[7, 17], [8, 18], [9, 19]]])
            return tokens, torch.tensor([[[0.5, 0.25], [0.5, 0.0], [0.25, 0.125]]])

    model: Any = Model()
    with as_if_on_a_device() if on_device else nullcontext():
        found = chain_in_one_call(
            model, Proposal.roots(torch.tensor([3])), Limit.of([3], [6]), NOTHING, [1.0], None, k=2
        )
    assert found is not None
    tree = found.tree
    nodes = {int(token): i for i, token in enumerate(tree.tokens[0]) if tree.live[0, i]}
    assert nodes.keys() == {3, 7, 17, 8, 9, 19}, "a token without a chance is none"
    above = {token: int(tree.tokens[0, int(tree.parents[0, i])]) for token, i in nodes.items() if token != 3}
    assert above == {7: 3, 17: 3, 8: 7, 9: 8, 19: 8}
    score = [float(tree.score[0, nodes[token]].exp()) for token in (7, 17, 8, 9, 19)]
    assert score == pytest.approx([0.5, 0.25, 0.25, 0.0625, 0.03125])
    assert (found.passes, found.max_depth, found.max_children) == (3, 3, 2)


PATHS = pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])


@PATHS
def test_tokens_follow_one_another_scored_by_their_product(on_device: bool) -> None:
    found = drafted([[0.5, 0.5, 0.25, 1.0], [1.0, 0.5, 0.5, 0.5]], [4, 2], [8, 8], on_device)
    assert live(found) == [[3, 7, 8, 9, 10], [4, 11, 12]], "each as deep as it may be"
    parents = [row[on].tolist() for row, on in zip(found.tree.parents, found.tree.live, strict=True)]
    assert parents == [[-1, 0, 1, 2, 3], [-1, 0, 1]]
    assert not found.tree.copies.any() and (found.q_indices() == -1).all() and found.q is None
    assert (found.draw, found.passes, found.max_depth, found.max_children) == (Draw.GIVEN, 4, 4, 1)
    torch.testing.assert_close(found.tree.score[0, 1:].exp(), torch.tensor([0.5, 0.25, 0.0625, 0.0625]))


@PATHS
def test_what_is_no_probability_ends_the_chain(on_device: bool) -> None:
    assert live(drafted([[0.5, 0.0, 0.5, 0.5]], [4], [8], on_device)) == [[3, 7]]
    assert live(drafted([[float("nan"), 0.5, 0.5, 0.5]], [4], [8], on_device)) == [[3]]
    two = drafted([[0.5, float("nan"), 0.5, 0.5], [0.5] * 4], [4, 4], [3, 8], on_device)
    assert live(two) == [[3, 7], [4, 11, 12, 13, 14]]


def test_steps_that_were_left_out_are_not_counted() -> None:
    found = drafted([[0.5, 0.5, 0.0, 0.0]], [4], [8], least=0.3)
    assert found.tree.tokens.tolist() == [[3, 7, 8]] and found.passes == 2 and found.fault is None


def test_probabilities_that_are_no_numbers_are_reported() -> None:
    assert drafted([[0.5, float("nan"), 0.5]], [3], [8]).fault == NO_NUMBERS
    assert drafted([[0.5, 0.0, 0.5]], [3], [8]).fault is None, "a token that cannot follow is no fault"


@PATHS
def test_depth_and_budget_are_kept(on_device: bool) -> None:
    assert drafted([[0.5] * 4], [2], [8], on_device).tree.num_nodes == 3
    assert drafted([[0.5] * 4], [4], [1], on_device).tree.num_nodes == 2
    assert drafted([[0.5] * 4] * 2, [1, 2], [8, 8], on_device).tree.num_nodes == 3
    assert live(drafted([[0.5] * 4] * 2, [4, 4], [1, 2], on_device)) == [[3, 7], [4, 11, 12]]
    assert drafted([[0.5] * 4] * 2, [0, 0], [8, 8], on_device) is None


def test_a_head_in_float_leaves_the_chain_to_the_loop(target: Any) -> None:
    model = features(random_net("eagle3"), target).model.open(1, 8)
    at = torch.arange(2)
    hidden = torch.zeros(2, CONFIG.hidden_size, dtype=torch.float64)
    pairs = ForwardInput(torch.tensor([5, 6]), at * 0, at, at, at - 1, want=at[1:], hidden=hidden)
    base = Proposal.roots(torch.tensor([6]))
    assert chain_in_one_call(model, base, Limit.of([3], [3]), pairs, [1.0], None) is None
    assert model.length(0) == 0, "and nothing was run"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("children", [1, 3])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_text_and_accounts_are_those_of_the_loop(kind: str, children: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = native_target()
    head = random_head(kind, target, rows=37)
    calls: list[int] = []
    in_one_call = Int8Runner.best_chains

    def counted(self: Int8Runner, x: ForwardInput, *more: Any) -> Any:
        calls.append(x.size)
        return in_one_call(self, x, *more)

    def texts(temperature: float) -> Any:
        recipe = Recipe(
            drafter=feature_drafter(head, target),
            policy=BestFirst(1, children),
            verifier=Match(),
            controller=Fixed(depth=3, nodes=3 * children),
        )
        params = SamplingParams(temperature=temperature, seed=0, max_tokens=40)
        found = serve(make_engine(target, recipe), [[5, 6, 7, 8]], params)
        return [(r.output, r.stats.accepted, r.stats.drafted) for r in found]

    for temperature in (0.0, 0.8):
        monkeypatch.setattr(Int8Runner, "best_chains", counted)
        quick = texts(temperature)
        assert calls, "and it was the one call that made them"
        calls.clear()
        monkeypatch.setattr(Int8Runner, "best_chains", lambda *_: None)
        assert texts(temperature) == quick


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Chain(), Rejection()),
        (Chain(), Block()),
        (Paths(2), Transport()),
        (Paths(2), Selection()),
        (Paths(2), PathBlock()),
        (Static((1, 1, 1)), Traversal()),
    ],
    ids=lambda part: type(part).__name__,
)
def test_chains_that_would_be_drawn_take_the_one_call_for_greedy_requests_alone(
    policy: Any, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = native_target()
    head = random_head("eagle3", target, rows=37)
    monkeypatch.setattr(drafting, "SLOW_SECONDS", float("inf"))  # a busy machine is no reason to stop here
    calls: list[int] = []
    in_one_call = Int8Runner.best_chains

    def counted(self: Int8Runner, x: ForwardInput, *more: Any) -> Any:
        calls.append(x.size)
        return in_one_call(self, x, *more)

    def texts(temperature: float) -> Any:
        drafter, size = feature_drafter(head, target), Fixed(depth=3, nodes=6)
        recipe = Recipe(drafter=drafter, policy=policy, verifier=rule, controller=size)
        params = SamplingParams(temperature=temperature, seed=0, max_tokens=24)
        found = serve(make_engine(target, recipe), [[5, 6, 7, 8]], params)
        assert all(r.stats.disabled is None for r in found)
        return [(r.output, r.stats.accepted) for r in found]

    monkeypatch.setattr(Int8Runner, "best_chains", counted)
    quick = texts(0.0)
    assert calls, "a greedy request draws nothing"
    calls.clear()
    texts(0.8)
    assert not calls, "a drawn chain has a distribution, which the one call would not show"
    monkeypatch.setattr(Int8Runner, "best_chains", lambda *_: None)
    assert texts(0.0) == quick
