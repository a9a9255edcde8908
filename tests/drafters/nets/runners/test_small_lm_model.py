"""A small language model, folded into tables of its own, is the model that was trained, and drafts without a trace."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.config import ModelConfig
from draftwood.core.forward import FINAL, ForwardInput
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.learners.language import Language
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.make_drafter import language_drafter
from draftwood.drafters.nets.runners.small_lm_model import language_model
from draftwood.drafters.nothing import Nothing
from draftwood.models.backends import int8_weights
from draftwood.models.backends.choose import int8_decoder
from draftwood.runners.cpu import CpuRunner
from draftwood.testing import exact
from draftwood.testing.contracts import Always, check_drafter
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner, tiny_weights
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.teacher import Teacher
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

BIASED = replace(CONFIG, qkv_bias=True, out_bias=True, mlp_bias=True, tie_embeddings=False)


def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    runner = CpuRunner(model).open(1, 64)
    runner.admit(0, [])
    at = torch.arange(len(ids))
    return runner.execute(ForwardInput(ids, torch.zeros_like(ids), at, at, at - 1, want=at)).logits


def trained_logits(head: Any, target: Any, ids: torch.Tensor) -> torch.Tensor:
    """What the learner multiplies with the target's rows."""
    net: Any = filled(head).to(target.info.dtype)
    keep = torch.arange(target.info.vocab_size) if head.ids is None else head.ids
    on = torch.ones_like(ids, dtype=torch.bool)[None]
    shown = Teacher(target).show(ids[None], on, on, frozenset({FINAL}), 0)
    return net.read(Language(net, keep, align=True).hidden(shown))[0] @ shown.rows(keep).T


@pytest.mark.parametrize("config", [CONFIG, BIASED], ids=["tied", "biased"])
@pytest.mark.parametrize("rows", [None, 20])
def test_the_folded_model_is_the_one_that_was_trained(config: ModelConfig, rows: int | None) -> None:
    target = tiny_runner(config=config)
    head = random_head("language", target, rows=rows)
    head = replace(head, ids=head.ids if rows else None)
    ids = torch.randint(config.vocab_size, (24,), generator=torch.Generator().manual_seed(2))
    found = logits_of(language_model(head, target), ids)
    assert found.shape == (24, rows or config.vocab_size)
    torch.testing.assert_close(found, trained_logits(head, target, ids), rtol=1e-9, atol=1e-9)


def test_in_the_int8_backend_it_is_nearly_that_model() -> None:
    """It runs on the target's kernels, with a head of fewer rows than the vocabulary."""
    target = CpuRunner(int8_decoder(CONFIG, int8_weights.from_tensors(CONFIG, tiny_weights())))
    head = random_head("language", target, rows=20)
    ids = torch.randint(CONFIG.vocab_size, (24,), generator=torch.Generator().manual_seed(2))
    model: Any = language_model(head, target)
    assert type(model) is type(target.model) and model.info.batch_invariant
    got, want = logits_of(model, ids), trained_logits(head, target, ids)
    assert got.shape == want.shape == (24, 20)
    assert torch.corrcoef(torch.stack([got.flatten(), want.flatten()]))[0, 1] > 0.995
    alone = torch.cat([logits_of(model, ids[: n + 1])[-1:] for n in range(3)])
    assert torch.equal(alone, got[:3])


def run(target: Any, drafter: Any, policy: Any, rule: Any, temperature: float) -> Any:
    recipe = Recipe(drafter=drafter, policy=policy, verifier=rule, controller=Fixed(depth=4, nodes=10))
    recipe.check(target)
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=20) for i in range(4)]
    prompts = [[5, 7, 1, 3], list(range(1, 40)), [9, 9, 2], [4]]
    requests = serve(make_engine(target, recipe, slots=3, chunk=16), prompts, params)
    assert not any(r.stats.disabled for r in requests)
    return requests


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("trimmed", [False, True])
def test_random_weights_leave_the_text_alone(target: Any, temperature: float, trimmed: bool) -> None:
    plain = run(target, Nothing(), Chain(Draw.GIVEN), Match(), temperature)
    drafter: Any = language_drafter(random_head("language", target, rows=30), target)
    if trimmed:
        drafter = VocabTrim(drafter, torch.arange(0, CONFIG.vocab_size, 3))
    for policy in (Chain(Draw.GIVEN), Static((3, 2), Draw.GIVEN), BestFirst(3)):
        drafted = run(target, drafter, policy, Match(), temperature)
        assert [r.output for r in drafted] == [r.output for r in plain]
        assert all(r.stats.draft_tokens > 0 for r in drafted)


@pytest.mark.parametrize("keep", [None, torch.tensor([1, 2])], ids=["own ids", "and trimmed"])
def test_the_emitted_distribution_is_the_targets(keep: Any) -> None:
    target = tiny_runner(config=replace(CONFIG, vocab_size=3, num_layers=1))
    drafter: Any = language_drafter(random_head("language", target, rows=2), target)
    drafter = drafter if keep is None else VocabTrim(drafter, keep)
    recipe = Recipe(drafter=drafter, policy=Chain(), verifier=Rejection(), controller=Always(2, 2))
    plain = Recipe(drafter=Nothing(), policy=Chain(), verifier=Match(), controller=Always(0, 0))
    fast, slow = (exact.probs_of(exact.leaves(target.model, lambda r=r: r, tokens=3)) for r in (recipe, plain))
    assert max(abs(fast.get(z, 0) - slow.get(z, 0)) for z in {*fast, *slow}) < 1e-12


def test_the_contract_of_drafters_holds(target: Any) -> None:
    for policy in (Chain(), Static((2, 2)), BestFirst(3)):
        check_drafter(language_drafter(random_head("language", target, rows=30), target), policy, CONFIG.vocab_size)


def test_a_trim_that_leaves_no_token_drafts_nothing(target: Any) -> None:
    drafter = VocabTrim(language_drafter(random_head("language", target, rows=30), target), torch.tensor([1, 3]))
    assert all(r.stats.draft_tokens == 0 for r in run(target, drafter, Chain(), Rejection(), 1.0))
