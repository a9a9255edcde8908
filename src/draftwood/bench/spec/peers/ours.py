"""Our recipes as a peer: one copy of the weights, a fresh engine for every answer.

A fresh engine holds no cache entry, no pool and no table of an earlier text. Only the cost model is kept: it describes the
machine, and a server has one after a minute. Before the clock starts, a few tokens of another prompt are drafted and
decoded.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from draftwood import recipes
from draftwood.bench.provenance import device_name
from draftwood.bench.spec.answer import DIFFERS, IDENTICAL, NEAR, UNJUDGED
from draftwood.bench.spec.peers import Settings
from draftwood.bench.spec.text_equality import difference, following, not_compared
from draftwood.controllers.cost import CostModel
from draftwood.core import host
from draftwood.core.config import EngineConfig
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import PARTS
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of

WARM_PROMPT, WARM_TOKENS = 8, 4  # tokens; drafters over features need two prompt tokens and a second round


class Ours:
    """`judge` and `encode` serve all methods of the run: they need the target and its chat template."""

    loaded: Loaded
    settings: Settings

    def __init__(self) -> None:
        self.recipes: dict[str, Recipe] = {}
        self.cost_model: dict[str, CostModel] = {}
        self._kept: dict[str, LLM] = {}

    def open(self, settings: Settings) -> dict[str, Any]:
        torch.set_num_threads(settings.threads)
        self.settings = settings
        self.loaded = load(settings.model, dtype=settings.dtype, device=settings.device)
        for name in settings.methods:
            self.recipes[name] = recipes.build(name, runner_of(self.loaded), **following(name, settings.temperature))
        return {
            "eos": list(self.loaded.config.eos_token_ids),
            "fingerprint": self.loaded.fingerprint,
            "precision": self.loaded.info.backend,
            "device": device_name(self.loaded.info.device),
            "threads": torch.get_num_threads(),
            "lossless": {name: recipe.lossless for name, recipe in self.recipes.items()},
            "not_compared": {
                name: why
                for name, recipe in self.recipes.items()
                if (why := not_compared(recipe, settings.temperature))
            },
        }

    def encode(self, texts: Sequence[str]) -> dict[str, Any]:
        """Prompts by the model's chat template, the same for every method."""
        chats = [[{"role": "user", "content": text}] for text in texts]
        return {"prompts": [self.loaded.tokenizer.encode_chat(chat) for chat in chats]}

    def answer(self, method: str, prompt: Sequence[int], index: int) -> dict[str, Any]:
        llm = self._llm(method)
        other = next(token for token in range(2) if token != prompt[0])  # shares no prefix with the prompt
        warm = replace(self._params(index), max_tokens=WARM_TOKENS, ignore_eos=True)
        _finish(llm, llm.request([other] * WARM_PROMPT, warm))
        request = llm.request(prompt, self._params(index))
        gc.collect()
        start = perf_counter()
        first, before, drafted = _finish(llm, request)
        end = perf_counter()
        if request.finish_reason == "error":
            raise RuntimeError(request.error)
        s, totals = request.stats, llm.engine.totals
        if s.cached_tokens:
            raise RuntimeError(f"{s.cached_tokens} prompt tokens came from a cache that should be empty")
        if s.disabled is not None:
            raise RuntimeError(f"the drafter was disabled: {s.disabled}")
        parts = {part: totals[part] - before.get(part, 0.0) for part in PARTS}
        return {
            "tokens": request.output,
            "emitted": len(request.output),
            "seconds": end - start,
            "first_seconds": first - start,
            "decode_seconds": end - first,
            "passes": s.target_passes,
            "drafted": s.draft_tokens,
            "accepted": sum(s.accepted),
            "drafted_by_position": s.drafted,
            "accepted_by_position": s.accepted,
            "rounds": [s.rounds_all, s.rounds_some, s.rounds_none],
            # On a GPU passes are enqueued, so their times by part are not known.
            "parts": {**parts, "draft": totals.draft_seconds - drafted} if host.on_host(llm.device) else {},
            "finish": request.finish_reason,
            "counted": "ids of the request's output",
        }

    def _llm(self, method: str) -> LLM:
        """A fresh engine for every answer. Where passes are captured, an engine that is kept and forgets the texts before:
        a user's engine lives longer than an answer, and captures only once."""
        if method in self._kept:
            self._kept[method].engine.runner.forget()
            return self._kept[method]
        llm = LLM(self.loaded, self.recipes[method], config=EngineConfig(max_num_seqs=1))
        llm.cost_model = llm.engine.cost_model = self.cost_model.setdefault(method, llm.cost_model)
        if not host.on_host(llm.device):
            self._kept[method] = llm
        return llm

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


def _finish(llm: LLM, request: Request) -> tuple[float, dict[str, float], float]:
    """Run a request to its end. Returns the time of its first token, and the seconds by part until then."""
    first, before, drafted = 0.0, dict[str, float](), 0.0
    llm.engine.add(request)
    while not request.finished:
        llm.engine.step()
        if not first and request.output:
            first = perf_counter()
            before, drafted = dict(llm.engine.totals.seconds), llm.engine.totals.draft_seconds
    return first or perf_counter(), before, drafted
