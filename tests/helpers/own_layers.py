"""Runs of a target that drafts with its own layers: 20 prompts in batches of 8, on three backends."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ForwardOutput
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Drafter, Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome
from draftwood.drafters.learners.plans import exit_plan
from draftwood.drafters.nets.files.store import Head
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from native_levels import BEST, kept_weights, opened

EXIT = 3  # of four layers
PROMPTS = [[1 + i % 7, 2, 3 + i % 5][: 1 + i % 3] + [4] * (i % 4) for i in range(20)]


@cache
def int8() -> CpuRunner:
    weights = int8_weights.from_tensors(CONFIG, kept_weights(CONFIG))
    return CpuRunner(NativeDecoder(CONFIG, weights, opened(BEST)))


TARGETS: dict[str, Callable[[], Runner]] = {
    "float64": tiny_runner,
    "int8": int8,
    "device": lambda: CudaRunner(tiny_decoder()),
}


def exit_head(target: Runner, kind: str = "exit", layers: int = EXIT) -> Head:
    """An untrained net of which the attention says something."""
    keep = torch.arange(CONFIG.vocab_size)
    plan = exit_plan(kind, target, keep, layers=layers, rate=1e-3, seed=1, share=1.0, muon=False)
    assert plan.net is not None
    tensors = {name: x.detach().float().clone() for name, x in plan.net.state_dict().items()}
    noise = torch.Generator().manual_seed(2)
    tensors["layer.out.weight"] = 0.05 * torch.randn(tensors["layer.out.weight"].shape, generator=noise)
    return Head(plan.config, tensors, None, "", {})


class Seen:
    """Rounds by how much of their draft was accepted."""

    def __init__(self) -> None:
        self.rounds: Counter[str] = Counter()

    def __call__(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        for taken, deep in zip(outcome.accepted, outcome.deepest, strict=True):
            if deep:
                self.rounds["all" if taken == deep else "some" if taken else "none"] += 1


def served(
    target: Runner,
    drafter: Drafter | None,
    temperature: float,
    policy: TreePolicy | None = None,
    verifier: Any = None,
    controller: Any = None,
    **more: Any,
) -> tuple[list[Request], Seen]:
    """20 requests in batches of 8 with a cache that is too small for all of them; without a drafter by plain decoding."""
    seen = Seen()
    recipe = autoregressive.build(target)
    if drafter is not None:
        recipe = Recipe(
            drafter=drafter,
            policy=policy or Chain(Draw.GIVEN),
            verifier=verifier or Match(),
            controller=controller or Fixed(depth=3),
            watch=(seen,),
        )
    engine = make_engine(target, recipe, slots=8, **more)
    each = [SamplingParams(max_tokens=9 + i % 5, temperature=temperature, seed=i) for i in range(len(PROMPTS))]
    return serve(engine, PROMPTS, each), seen
