"""A smaller model drafts from its own cache, and that cache is always a fresh one's equal."""

from typing import Any

import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ForwardInput
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import check_drafter
from draftwood.testing.parts.table_model import TableModel, random_probs
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection


def test_the_contract_of_drafters_holds() -> None:
    table = CpuRunner(TableModel(5, random_probs(5, 1)))
    for policy in (Chain(), Static((2, 2)), Static((2, 2), Draw.GIVEN)):
        check_drafter(DraftModel(table), policy, 5)


def test_a_draft_that_is_the_target_itself_is_always_accepted() -> None:
    model = tiny_runner(3)
    drafter = DraftModel(model)
    for verifier, draw in ((Rejection(), Draw.IID), (Match(), Draw.GIVEN)):
        recipe = Recipe(drafter=drafter, policy=Chain(draw), verifier=verifier, controller=Fixed(4))
        params = [SamplingParams(temperature=t, seed=i, max_tokens=21) for i, t in enumerate((0.0, 1.0, 0.7))]
        got = serve(make_engine(model, recipe), [[1, 2, 3], [4], [5, 6] * 9], params)
        for r in got:
            assert r.stats.disabled is None and r.stats.rounds_some == r.stats.rounds_none == 0
            assert r.stats.target_passes == 5, "21 tokens: four rounds of five, and the last"


def test_after_every_round_its_cache_equals_a_fresh_one() -> None:
    target, draft = tiny_runner(1), tiny_runner(1).first_layers(3)
    checked: list[int] = []

    def compare(rnd: Any, outcome: Any, output: Any) -> None:
        cache = engine.drafter_state.runner.cache
        for slot, request in zip(rnd.slots.tolist(), rnd.requests, strict=True):
            length = cache.length(slot)
            text, index = request.known[:length], torch.arange(length)
            assert cache.text(slot) == text
            fresh = draft.open(1, 300)
            fresh.admit(0, [])
            fresh.execute(
                ForwardInput(torch.tensor(text, dtype=torch.int64), index * 0, index, index, index - 1, index[:0])
            )
            for spec in draft.model.cache_specs:
                have, want = cache.store(spec.name)[slot, :, :length], fresh.cache.store(spec.name)[0, :, :length]
                assert torch.allclose(have, want, atol=1e-11)
            checked.append(length)

    recipe = Recipe(
        drafter=DraftModel(draft),
        policy=Static((2, 2, 1)),
        verifier=Rejection(),
        controller=Fixed(3, 8),
        watch=(compare,),
    )
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=15) for i in range(3)]
    engine = make_engine(target, recipe, slots=2, chunk=5)
    got = serve(engine, [[1, 2, 3] * 5, [4], [5, 6]], params)
    assert all(r.stats.disabled is None for r in got) and len(checked) > 10
    assert sum(r.stats.rounds_some + r.stats.rounds_all for r in got) > 3
