"""Tiny models and heads, and what they are expanded to, in float64."""

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.config import ModelConfig, RopeScaling
from draftwood.core.forward import ForwardInput, ForwardOutput
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Drafter, Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome
from draftwood.drafters.nets.files.build import net
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.runners.runner import FloatRunner
from draftwood.models.decoder import Decoder
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.expand.fill import Filling
from draftwood.testing.expand.model import parts
from draftwood.testing.expand.shape import Shape, expanded
from draftwood.testing.parts.tiny import CONFIG, tiny_weights
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

BIASED = replace(CONFIG, family="qwen2", qkv_bias=True)
ALL_BIASES = replace(CONFIG, qkv_bias=True, out_bias=True, mlp_bias=True, tie_embeddings=False)
STRETCHED = replace(CONFIG, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64), rope_theta=500.0)
WINDOW = replace(CONFIG, family="mistral", sliding_window=17, tie_embeddings=False)
THREE = replace(CONFIG, num_heads=9, num_kv_heads=3)  # as in SmolLM2

# Up to 64 tokens a pick takes one step and padded ones change nothing; beyond, the same seed means another token.
# What is expanded, and to which layers, hidden, heads, key/value heads, head size, MLP, vocabulary.
CASES: dict[str, tuple[ModelConfig, Shape]] = {
    "hidden": (CONFIG, Shape(4, 50, 4, 2, 8, 48, 61)),
    "MLP": (CONFIG, Shape(4, 32, 4, 2, 8, 77, 61)),
    "layers": (CONFIG, Shape(7, 32, 4, 2, 8, 48, 61)),
    "heads": (CONFIG, Shape(4, 32, 10, 5, 8, 48, 61)),
    "larger groups": (THREE, Shape(4, 32, 16, 4, 8, 48, 61)),
    "smaller groups": (THREE, Shape(4, 32, 14, 7, 8, 48, 61)),
    "no groups": (CONFIG, Shape(4, 32, 5, 5, 8, 48, 61)),
    "head size, twice": (CONFIG, Shape(4, 32, 4, 2, 16, 48, 61)),
    "head size, three times": (CONFIG, Shape(4, 32, 4, 2, 24, 48, 61)),
    "vocabulary": (CONFIG, Shape(4, 33, 4, 2, 8, 48, 100)),
    "everything": (THREE, Shape(6, 96, 16, 4, 16, 128, 64)),
    "biases of q, k, v": (BIASED, Shape(5, 40, 6, 2, 16, 60, 64)),
    "all biases": (ALL_BIASES, Shape(5, 40, 6, 2, 16, 60, 64)),
    "stretched rotation": (STRETCHED, Shape(5, 40, 6, 2, 16, 60, 64)),
    "window, own head": (WINDOW, Shape(5, 40, 6, 3, 16, 60, 61)),
}
TEXT = [1 + (7 * i * i + i // 5) % 60 for i in range(200)]
PROMPTS = [[1 + i % 7, 2, 3 + i % 5][: 1 + i % 3] + [4] * (i % 4) for i in range(12)]


def weights(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random, biases too."""
    return tiny_weights(seed, config)


def filling(noise: bool = True, dtype: torch.dtype = torch.float64) -> Filling:
    return Filling(dtype, noise)


def expand(
    config: ModelConfig, tensors: dict[str, Tensor], shape: Shape, how: Filling
) -> tuple[ModelConfig, dict[str, Tensor]]:
    new = expanded(config, shape)
    return new, dict(chain.from_iterable(part.items() for part in parts(config, tensors, new, how)))


def runner(config: ModelConfig, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float64) -> CpuRunner:
    return CpuRunner(Decoder.from_tensors(config, tensors, dtype=dtype))


def both(name: str, noise: bool = True, **changed: Any) -> tuple[CpuRunner, CpuRunner]:
    """The old model and the new one. `changed`: fields of its config, to plant a fault."""
    config, shape = CASES[name]
    tensors = weights(config)
    new, wide = expand(config, tensors, shape, filling(noise))
    return runner(config, tensors), runner(replace(new, **changed), wide)


def logits(target: Runner, text: list[int] = TEXT) -> Tensor:
    """At every position of a text."""
    opened = target.open(1, len(text) + 8)
    opened.admit(0, text)
    at = torch.arange(len(text))
    return opened.execute(ForwardInput(torch.tensor(text), at * 0, at, at, at - 1, at)).logits


def float64_runner(head: Head, target: Runner) -> FloatRunner:
    """A head in float64, whose own loading rounds to float32."""
    module = net(head.config).double()
    module.load_state_dict(head.tensors)
    return FloatRunner(module.requires_grad_(False), target, head.ids)


class Drafts:
    """What was drafted and what of it was accepted, in every round."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.rounds: Counter[str] = Counter()

    def __call__(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        tree = outcome.proposal.tree
        self.seen.append((tree.tokens.tolist(), tree.parents.tolist(), tree.live.tolist(), outcome.emitted))
        for taken, deep in zip(outcome.accepted, outcome.deepest, strict=True):
            if deep:
                self.rounds["all" if taken == deep else "some" if taken else "none"] += 1


def served(
    target: Runner, temperature: float, drafter: Drafter | None = None, policy: Any = None, tokens: int = 12
) -> tuple[list[Request], Drafts]:
    """12 requests in batches of 4."""
    drafts = Drafts()
    recipe = autoregressive.build(target)
    if drafter is not None:
        recipe = Recipe(
            drafter=drafter,
            policy=policy or Chain(Draw.GIVEN),
            verifier=Match(),
            controller=Fixed(depth=3),
            watch=(drafts,),
        )
    engine = make_engine(target, recipe, slots=4)
    each = [SamplingParams(max_tokens=tokens, temperature=temperature, seed=i) for i in range(len(PROMPTS))]
    return serve(engine, PROMPTS, each), drafts
