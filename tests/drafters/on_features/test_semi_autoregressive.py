"""Levels guessed k at a time never change the text, and are those of the net over the whole path, written out."""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import FINAL
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.make_drafter import semi_drafter
from draftwood.drafters.nets.runners.semi_runner import SemiRunner
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.on_features.feature_text import TextState
from draftwood.drafters.on_features.semi_autoregressive import SemiAutoregressive
from draftwood.models.rope import angles, frequencies
from draftwood.recipes import autoregressive
from draftwood.testing import exact
from draftwood.testing.contracts import Always
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.teacher import Teacher
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from own_layers import PROMPTS, TARGETS, int8, served
from semi_nets import BLOCK, trained

CHAIN, TREE = Chain(Draw.GIVEN), BestFirst(3)
SIZES: dict[Any, Fixed] = {CHAIN: Fixed(depth=3), TREE: Fixed(depth=4, nodes=10)}


@pytest.mark.parametrize("policy", SIZES, ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.slow
def test_the_text_is_that_of_plain_decoding(name: str, temperature: float, policy: TreePolicy) -> None:
    target = TARGETS[name]()
    with as_if_on_a_device() if name == "device" else nullcontext():
        done, seen = served(target, semi_drafter(trained(name), target), temperature, policy, controller=SIZES[policy])
        plain, _ = served(target, None, temperature)
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] == [r.output for r in plain]
    print(name, temperature, policy, dict(seen.rounds))
    assert all(seen.rounds[each] for each in ("all", "some", "none")), seen.rounds


def test_also_where_requests_lose_their_slots_in_between() -> None:
    target = int8()
    done, seen = served(target, semi_drafter(trained("int8"), target), 0.0, max_cache_tokens=60)
    assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]]
    assert sum(seen.rounds.values()) > 10 and sum(r.stats.preempted for r in done) > 0


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.slow
def test_random_weights_leave_the_text_alone(block: int) -> None:
    target = tiny_runner()
    plain = [r.output for r in served(target, None, 1.0)[0]]
    for policy in (CHAIN, TREE, Static((3, 2, 1), Draw.GIVEN), MostValuableFirst()):
        drafter = semi_drafter(random_head("semi", target, rows=30, stages=block), target)
        done, seen = served(target, drafter, 1.0, policy, controller=Fixed(depth=4, nodes=8))
        assert [r.output for r in done] == plain and seen.rounds["none"] and {r.stats.disabled for r in done} == {None}


@pytest.mark.slow
def test_options_along_a_path_leave_the_text_alone() -> None:
    target = tiny_runner()
    options: dict[str, Any] = {"repetition_penalty": 1.5, "logit_bias": {2: 1.0, 4: -1.0}, "min_tokens": 5}
    each = [SamplingParams(max_tokens=12, temperature=0.8, seed=i, **options) for i in range(len(PROMPTS))]
    drafter = semi_drafter(random_head("semi", target), target)
    recipe = Recipe(drafter=drafter, policy=TREE, verifier=Match(), controller=SIZES[TREE])
    texts: list[Any] = []
    for chosen in (recipe, autoregressive.build(target)):
        done = serve(make_engine(target, chosen, slots=8), PROMPTS, each)
        assert {r.stats.disabled for r in done} == {None}
        texts.append([r.output for r in done])
    assert texts[0] == texts[1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", [Chain(), Static((2, 1))], ids=["chain", "tree"])
def test_the_emitted_distribution_is_the_targets(policy: Any) -> None:
    """I2: every outcome of whole requests under rejection, against plain decoding."""
    target = tiny_runner(config=replace(CONFIG, vocab_size=3, num_layers=1))
    drafter = semi_drafter(random_head("semi", target, rows=2, stages=1), target)
    plain = Recipe(drafter=Nothing(), policy=Chain(), verifier=Match(), controller=Always(0, 0))
    drafting = Recipe(drafter=drafter, policy=policy, verifier=Rejection(), controller=Always(2, 4))
    found = exact.leaves(target.model, lambda: drafting, tokens=4)
    assert max(leaf.accepted for leaf in found) == 2
    fast, slow = exact.probs_of(found), exact.probs_of(exact.leaves(target.model, lambda: plain, tokens=4))
    assert max(abs(fast.get(z, 0) - slow.get(z, 0)) for z in {*fast, *slow}) < 1e-12


# --- what a draft is


def written_out(net: Any, target: Any, known: list[int], path: list[int], shift: int = 0) -> Tensor:
    """The logits of the token behind `known` and a drafted path, from one pass of the net for each block of k indices, over
    the whole sequence of pairs. `shift`: of the blocks' mask, for a twin."""
    k, n = net.config.stages, len(known) - 1
    on = torch.ones(1, len(known), dtype=torch.bool)
    f = Teacher(target).show(torch.tensor([known]), on, on, frozenset({FINAL}), 0).features[FINAL][0, :n]
    tokens = known[1:]
    for first in range(0, len(path) + 1, k):
        g = one_pass(net, target, f, tokens, k, shift)[-k:]
        if len(path) - first < k:
            return target.head(g[len(path) - first], norm=False)
        f, tokens = torch.cat([f, g]), tokens + path[first : first + k]
    raise AssertionError


def one_pass(net: Any, target: Any, f: Tensor, tokens: list[int], k: int, shift: int = 0) -> Tensor:
    """Blocks end with the last index."""
    total = len(tokens)
    z = torch.cat([target.embed(torch.tensor(tokens)).to(f.dtype), f], dim=-1)
    s = net.lstm(z[None])[0][0]
    at = torch.arange(total)
    q, keys, values = net.project(s, *angles(frequencies(net.config.layer), at, s.dtype))
    block = (at - total - shift).div(k, rounding_mode="floor")
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (keys, values))
    mixed = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), keys, values, attn_mask=block[:, None] >= block
    )
    return net.layer.tail(s, mixed.transpose(0, 1).flatten(1)).detach()


@dataclass(frozen=True, slots=True, eq=False)
class Compared(SemiAutoregressive):
    """Compares every distribution of its drafts with the net written out."""

    shift: int = 0
    found: list[float] = field(default_factory=list[float])

    def propose(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made = SemiAutoregressive.propose(self, state, rnd, base, limit, policy)
        tree, rows = made.tree, made.q_indices()
        if made.q is None:
            return made
        paths = tree.path_tokens(torch.arange(tree.num_nodes).expand(tree.batch, -1)).tolist()
        for b, request in enumerate(rnd.requests):
            for node in rows[b].ge(0).nonzero()[:, 0].tolist():
                path = [t for t in paths[b][node] if t >= 0]
                right = written_out(self.model.net, self.model.target, request.known, path, self.shift)
                said = made.q.prob[rows[b, node]]
                self.found.append(float((said - right.softmax(-1)).abs().max()))
        return made


def compared(block: int, policy: TreePolicy, shift: int = 0, drafter: Any = Compared, **more: Any) -> float:
    target = tiny_runner()
    net = filled(random_head("semi", target, stages=block)).double()
    made = drafter(SemiRunner(net, target, None), shift=shift)
    done, _ = served(target, made, 1.0, policy, Rejection(), Fixed(depth=4, nodes=10), **more)
    assert {r.stats.disabled for r in done} == {None} and len(made.found) > 10
    return max(made.found)


@pytest.mark.parametrize("policy", [Chain(), Static((2, 1, 2, 1))], ids=["chain", "tree"])
@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.slow
def test_drafts_are_those_of_the_net_written_out(block: int, policy: TreePolicy) -> None:
    """With k = 1 the mask is causal, and a chain is written token by token from the net's own features."""
    assert compared(block, policy) < 1e-9


def test_also_after_a_text_was_put_aside() -> None:
    assert compared(2, Chain(), max_cache_tokens=60) < 1e-9


@pytest.mark.slow
def test_control_another_mask_is_found() -> None:
    assert compared(2, Chain(), shift=1) > 1e-3


class Forgets(Compared):
    """Twin: the state of the LSTM behind the text is that of an earlier text."""

    def keep_pairs(self, state: TextState, counts: dict[int, int]) -> None:
        Compared.keep_pairs(self, state, counts)
        runner: Any = state.runner
        for slot in counts:
            runner.cache.store("state")[slot, :, runner.length(slot) - 1] = 0.0


@pytest.mark.slow
def test_control_a_state_that_does_not_follow_the_text_is_found() -> None:
    assert compared(2, Chain(), drafter=Forgets) > 1e-3


def test_a_pass_guesses_as_many_levels_as_a_block_has(monkeypatch: pytest.MonkeyPatch) -> None:
    target, passes = tiny_runner(), []
    first, more = SemiRunner.first, SemiRunner.more
    monkeypatch.setattr(SemiRunner, "first", lambda self, *a: passes.append("first") or first(self, *a))
    monkeypatch.setattr(SemiRunner, "more", lambda self, *a: passes.append("more") or more(self, *a))
    ledger: list[tuple[int, int]] = []

    def watch(rnd: Round, outcome: Any, output: Any) -> None:
        ledger.append((outcome.proposal.tree.num_nodes, len(passes)))
        passes.clear()

    drafter = semi_drafter(random_head("semi", target, stages=BLOCK), target)
    recipe = Recipe(drafter=drafter, policy=CHAIN, verifier=Match(), controller=Fixed(depth=4), watch=(watch,))
    serve(make_engine(target, recipe, slots=1), [[1, 2, 3]], [SamplingParams(max_tokens=30)])
    assert len(ledger) > 5 and all(count == -(-(nodes - 1) // BLOCK) for nodes, count in ledger), ledger


def test_a_draft_at_the_end_of_the_context_is_shorter() -> None:
    target = tiny_runner()
    texts: list[list[list[int]]] = []
    drafter = semi_drafter(random_head("semi", target), target)
    recipe = Recipe(drafter=drafter, policy=CHAIN, verifier=Match(), controller=Fixed(depth=5))
    for each in (recipe, autoregressive.build(target)):
        engine = make_engine(target, each, slots=2, capacity=64)
        done = serve(engine, PROMPTS[:5], [SamplingParams(max_tokens=500)] * 5)
        assert {r.stats.disabled for r in done} == {None} and {r.finish_reason for r in done} == {"length"}
        texts.append([r.output for r in done])
    assert texts[0] == texts[1]
