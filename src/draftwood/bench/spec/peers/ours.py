"""Our recipes as a peer: one copy of the weights, a fresh engine for every answer.

A fresh engine holds no cache entry, no pool and no table of an earlier text. Only the cost model is kept.
"""

from collections.abc import Sequence
from typing import Any

import torch

from draftwood import recipes
from draftwood.bench.provenance import device_name
from draftwood.bench.spec.answer import DIFFERS, IDENTICAL, NEAR, UNJUDGED
from draftwood.bench.spec.peers import Settings
from draftwood.bench.spec.questions import chat_prompts
from draftwood.bench.spec.text_equality import difference, following, not_compared
from draftwood.bench.study.timed_answer import TimedEngine
from draftwood.controllers.costs.cost import CostModel
from draftwood.core import host
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import PARTS
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of


class Ours:
    """`judge` and `encode` serve all methods of the run: they need the target and its chat template."""

    loaded: Loaded
    settings: Settings

    def __init__(self) -> None:
        self.recipes: dict[str, Recipe] = {}
        self.cost_model: dict[str, CostModel] = {}
        self._kept: dict[str, TimedEngine] = {}

    def open(self, settings: Settings) -> dict[str, Any]:
        torch.set_num_threads(settings.threads)
        self.settings = settings
        self.loaded = load(settings.model, dtype=settings.dtype, device=settings.device)
        for name in settings.methods:
            self.recipes[name] = recipes.build(name, runner_of(self.loaded), **following(name, settings.temperature))
        reasons = {name: not_compared(recipe, settings.temperature) for name, recipe in self.recipes.items()}
        return {
            "eos": list(self.loaded.config.eos_token_ids),
            "fingerprint": self.loaded.fingerprint,
            "precision": self.loaded.info.backend,
            "device": device_name(self.loaded.info.device),
            "threads": torch.get_num_threads(),
            "lossless": {name: recipe.lossless for name, recipe in self.recipes.items()},
            "not_compared": {name: why for name, why in reasons.items() if why},
        }

    def encode(self, texts: Sequence[str]) -> dict[str, Any]:
        """Prompts by the model's chat template, the same for every method."""
        return {"prompts": chat_prompts(self.loaded.tokenizer, texts)}

    def answer(self, method: str, prompt: Sequence[int], index: int) -> dict[str, Any]:
        found = self._engine(method).answer(prompt, self._params(index))
        s, times = found.stats, [r.times for r in found.decoding]
        if s.cached_tokens:
            raise RuntimeError(f"{s.cached_tokens} prompt tokens came from a cache that should be empty")
        if found.error is not None:
            raise RuntimeError(found.error if s.disabled is None else f"the drafter was disabled: {s.disabled}")
        parts = {part: sum(t[part] for t in times) for part in PARTS}
        decoding = sum(r.wall for r in found.decoding)
        return {
            "tokens": list(found.tokens),
            "emitted": len(found.tokens),
            "seconds": found.seconds,
            "first_seconds": found.seconds - decoding,
            "decode_seconds": decoding,
            "passes": s.target_passes,
            "drafted": s.draft_tokens,
            "accepted": sum(s.accepted),
            "drafted_by_position": s.drafted,
            "accepted_by_position": s.accepted,
            "rounds": [s.rounds_all, s.rounds_some, s.rounds_none],
            # On a GPU passes are enqueued, so their times by part are not known.
            "parts": parts | {"draft": sum(t.draft_seconds for t in times)} if self._on_host else {},
            "finish": found.finish,
            "counted": "ids of the request's output",
        }

    @property
    def _on_host(self) -> bool:
        return host.on_host(self.loaded.info.device)

    def _engine(self, method: str) -> TimedEngine:
        """A fresh engine for every answer. On a device, where passes are captured once, one engine for all answers, whose
        cache is emptied before each."""
        if method in self._kept:
            self._kept[method].llm.engine.runner.forget()
            return self._kept[method]
        cost_model = self.cost_model.setdefault(method, CostModel())
        engine = TimedEngine(self.loaded, self.recipes[method], cost_model)
        if not self._on_host:
            self._kept[method] = engine
        return engine

    def judge(
        self, method: str, prompt: Sequence[int], tokens: Sequence[int], plain: Sequence[int], index: int
    ) -> dict[str, Any]:
        """Compare an answer with plain decoding's: the status, and where it differs."""
        if why := not_compared(self.recipes[method], self.settings.temperature):
            return {"status": UNJUDGED, "why": why}
        found = difference(runner_of(self.loaded), prompt, tokens, plain, self._params(index))
        if found is None:
            return {"status": IDENTICAL, "compared": len(plain), "same_text": True}
        status = NEAR if found.near and self.loaded.info.near_ties else DIFFERS
        return {"status": status, "compared": found.position + 1, "same_text": False, "why": str(found)}

    def _params(self, index: int) -> SamplingParams:
        s = self.settings
        return SamplingParams(temperature=s.temperature, seed=s.seed + index, max_tokens=s.max_tokens)
