"""A request that leaves no token to choose ends alone, where numbers are looked at and where they are not."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from device_runs import Ran, ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.models.decoder import Decoder
from draftwood.recipes import speculative_sampling
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.oracle_drafter import Replay
from draftwood.testing.tiny import CONFIG, tiny_decoder, tiny_weights
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

BROKEN = 60
PROMPTS = [[1, 2, 3], [4, BROKEN, 5], [6, 7]]


def broken_model() -> Decoder:
    """Token 60 is not a number, and nothing that was read with it is."""
    weights = tiny_weights(2)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][BROKEN] = torch.nan
    return Decoder.from_tensors(replace(CONFIG, tie_embeddings=False), weights, dtype=torch.float64)


def matched(_: Any, rule: Any = None) -> Recipe:
    policy, size = Chain(draw=Draw.GIVEN), Fixed(depth=2)
    return Recipe(drafter=Replay({}, CONFIG.vocab_size), policy=policy, verifier=rule or Match(), controller=size)


def rejected(target: Any) -> Recipe:
    return speculative_sampling.build(target, draft="first:2")


def both(model: Decoder, build: Any, temperature: float) -> tuple[Ran, Ran]:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=6)
    plain, device = (ran(target, build, PROMPTS, params) for target in (CpuRunner(model), CudaRunner(model)))
    return plain, device


@pytest.mark.parametrize("build", [matched, rejected])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_their_request_and_no_other(build: Any, temperature: float) -> None:
    plain, device = both(broken_model(), build, temperature)
    for found in (plain, device):
        assert [r.finish_reason for r in found.requests] == ["length", "error", "length"]
        assert "not numbers" in (found.requests[1].error or "")
    assert device.texts == plain.texts and device.texts[1] == []
    assert all(reads.total == 1 for reads in device.reads[1:]), "once it is gone, the others are read once again"
    assert BROKEN not in device.texts[0] + device.texts[2]


@dataclass(frozen=True, slots=True)
class Shy(Match):
    """A rule that refuses to judge more than one sequence."""

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        if rnd.batch > 1:
            raise ValueError("one at a time")
        return Match.verify(self, proposal, target, rnd)


@dataclass(frozen=True, slots=True)
class Failing(Match):
    """A rule that fails on one request's texts."""

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        if any(request.id == 1 for request in rnd.requests):
            raise ValueError("not this one")
        return Match.verify(self, proposal, target, rnd)


def test_a_rule_that_fails_on_a_batch_is_asked_about_each_sequence_alone() -> None:
    model = tiny_decoder(2)
    right = both(model, matched, 1.0)[0]
    for found in both(model, partial(matched, rule=Shy()), 1.0):
        assert found.texts == right.texts
    for found in both(model, partial(matched, rule=Failing()), 1.0):
        assert [found.texts[0], found.texts[2]] == [right.texts[0], right.texts[2]]
        assert found.requests[1].finish_reason == "error" and "not this one" in (found.requests[1].error or "")
