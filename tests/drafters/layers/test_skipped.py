"""A target that drafts with sub-layers left out writes its own text: the verifying pass writes over the draft."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import LayerPlan, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal, Started
from draftwood.core.protocols import TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.score import KnownTokens, assemble
from draftwood.drafters.layers.skip_set import SkipSet
from draftwood.drafters.layers.skipped import SkippedLayers
from draftwood.errors import CompositionError
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from own_layers import PROMPTS, TARGETS, int8, served

SOME = SkipSet.of(attention=[1, 2], mlp=[2])
EVERYTHING = SkipSet.of(range(4), range(4))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("policy", [Chain(Draw.GIVEN), BestFirst(1, children=2)], ids=["chain", "leaves"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(TARGETS))
def test_the_text_is_that_of_plain_decoding(name: str, temperature: float, policy: TreePolicy) -> None:
    target = TARGETS[name]()
    with as_if_on_a_device() if name == "device" else nullcontext():
        done, seen = served(target, SkippedLayers(SOME), temperature, policy)
        plain, _ = served(target, None, temperature)
    assert [r.output for r in done] == [r.output for r in plain]
    assert {r.stats.disabled for r in done} == {None}
    assert all(seen.rounds[kind] for kind in ("all", "some", "none")), seen.rounds


def test_also_where_requests_lose_their_slots_in_between() -> None:
    target = int8()
    done, seen = served(target, SkippedLayers(SOME), 0.0, max_cache_tokens=60)
    assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]]
    assert sum(seen.rounds.values()) > 20 and sum(r.stats.preempted for r in done) > 0


def test_a_draft_that_leaves_nothing_out_is_always_right() -> None:
    done, seen = served(int8(), SkippedLayers(SkipSet()), 0.0)
    assert set(seen.rounds) == {"all"} and [r.output for r in done] == [r.output for r in served(int8(), None, 0.0)[0]]


def test_a_draft_that_leaves_everything_out_changes_nothing() -> None:
    done, seen = served(int8(), SkippedLayers(EVERYTHING), 1.0)
    assert [r.output for r in done] == [r.output for r in served(int8(), None, 1.0)[0]] and seen.rounds["none"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rejection_takes_the_same_drafts(temperature: float) -> None:
    """Greedy texts are plain decoding's; sampled ones have their distribution, which tests of the rule show."""
    done, seen = served(int8(), SkippedLayers(SOME), temperature, Chain(), Rejection())
    assert {r.stats.disabled for r in done} == {None} and seen.rounds["some"] + seen.rounds["all"]
    if not temperature:
        assert [r.output for r in done] == [r.output for r in served(int8(), None, 0.0)[0]]


def test_a_tree_at_the_end_of_the_context_has_fewer_levels() -> None:
    target = int8()
    recipe = Recipe(
        drafter=SkippedLayers(SOME), policy=BestFirst(6, 2), verifier=Match(), controller=Fixed(depth=5, nodes=12)
    )
    texts: list[list[list[int]]] = []
    for each in (recipe, autoregressive.build(target)):
        engine = make_engine(target, each, slots=2, capacity=64)
        done = serve(engine, PROMPTS[:5], [SamplingParams(max_tokens=500)] * 5)
        assert {r.stats.disabled for r in done} == {None} and {r.finish_reason for r in done} == {"length"}
        texts.append([r.output for r in done])
    assert texts[0] == texts[1]


@dataclass(frozen=True, slots=True)
class HandsOver(SkippedLayers):
    """Twin: hands its hidden states to the verifying pass, as if no sub-layer had been left out of them."""

    needs: Needs = Needs(borrow=True)

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made, target = SkippedLayers.propose(self, state, rnd, base, limit, policy), rnd.target
        assert target is not None
        chains = [
            KnownTokens(s, n - 1, [r.root])
            for s, n, r in zip(rnd.host_slots, rnd.host_lengths, rnd.requests, strict=True)
        ]
        x, places, _ = assemble(chains, made.tree)
        plan = LayerPlan(stop=3, skip_attention=self.skip.attention, skip_mlp=self.skip.mlp)
        hidden = target.execute(replace(x, want=x.want[:0]), layers=plan).hidden
        return replace(made, started=Started(3, hidden[torch.tensor(places)]))


def test_control_hidden_states_of_skipped_layers_that_are_handed_over_change_the_text() -> None:
    done, _ = served(tiny_runner(), HandsOver(SOME), 0.0)
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] != [r.output for r in served(tiny_runner(), None, 0.0)[0]]


def test_a_target_that_runs_all_or_none_of_its_layers_is_refused() -> None:
    target = CpuRunner(TableModel(3, context_free((0.2, 0.3, 0.5))))
    with pytest.raises(CompositionError, match="runs some of the target's layers"):
        served(target, SkippedLayers(SOME), 0.0)
