"""A model of the transformers library runs whole, or not at all."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers

from draftwood.core.forward import ALL, ForwardInput, LayerPlan
from draftwood.errors import ModelError, OptionError
from draftwood.models.hf.model import HFModel
from draftwood.recipes import speculative_sampling
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.transformers import TransformersRunner

pytestmark = pytest.mark.slow

TEXT = [104, 101, 108, 108, 111]


@cache
def net() -> Any:
    torch.manual_seed(3)
    shape = transformers.GPT2Config(vocab_size=264, n_embd=32, n_layer=3, n_head=4, n_positions=128)
    return transformers.AutoModelForCausalLM.from_config(shape).eval()


def target() -> TransformersRunner:
    return TransformersRunner(HFModel.wrap(net(), "tiny-gpt2"))


def text() -> ForwardInput:
    at = torch.arange(len(TEXT))
    return ForwardInput(torch.tensor(TEXT), at * 0, at, at, at - 1, want=at)


def opened(runner: CpuRunner) -> CpuRunner:
    fresh = runner.open(1, 16)
    fresh.admit(0, TEXT)
    return fresh


@pytest.mark.parametrize(
    "plan",
    [LayerPlan(stop=2), LayerPlan(start=1), LayerPlan(skip_mlp=frozenset({1})), LayerPlan(together=(range(2),))],
    ids=str,
)
def test_part_of_the_layers_is_refused(plan: LayerPlan) -> None:
    with pytest.raises(ModelError, match=r"tiny-gpt2: transformers runs all 3 layers, asked for: .*\nhint: "):
        opened(target()).execute(text(), layers=plan)


def test_a_plan_of_all_layers_is_run_and_says_what_transformers_says() -> None:
    with torch.inference_mode():
        right = net()(torch.tensor([TEXT]), use_cache=False).logits[0]
    for whole in (ALL, LayerPlan(stop=3)):
        found = opened(target()).execute(text(), layers=whole).logits
        assert torch.allclose(found, right, atol=2e-5 * float(right.abs().max()), rtol=0)


def test_the_guard_is_the_runners_own() -> None:
    """The twin: without it a plan would be dropped silently, and all layers run."""
    model = HFModel.wrap(net(), "tiny-gpt2")
    unguarded = opened(CpuRunner(model)).execute(text(), layers=LayerPlan(stop=2)).logits
    assert torch.equal(unguarded, opened(CpuRunner(model)).execute(text()).logits)


def test_an_opened_runner_refuses_the_same_plans() -> None:
    again = opened(opened(target()))
    assert type(again) is TransformersRunner
    with pytest.raises(ModelError, match="runs all 3 layers"):
        again.execute(text(), layers=LayerPlan(stop=1))


def test_its_first_layers_are_no_model() -> None:
    assert not target().info.layer_ranges
    with pytest.raises(ModelError, match="transformers float32: runs all of its 3 layers or none"):
        target().first_layers(2)
    with pytest.raises(OptionError, match=r"draft 'first:2': tiny-gpt2 cannot run its first layers alone\nhint: "):
        speculative_sampling.build(target(), draft="first:2")


def test_its_info_has_what_an_engine_needs() -> None:
    info = target().info
    assert (info.vocab_size, info.num_layers, info.hidden_size, info.max_positions) == (264, 3, 32, 128)
    assert (info.backend, info.batch_invariant, info.config) == ("transformers float32", False, None)
    assert info.near_ties and not replace(info, dtype=torch.float64).near_ties
