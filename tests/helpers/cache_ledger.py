"""What the caches of a target that drafts for itself hold between rounds, compared with a fresh pass over the text."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ForwardInput, ForwardOutput
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Drafter, Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome
from draftwood.drafters.on_features.feature_text import FeatureText, TextState
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from own_layers import PROMPTS


class CacheLedger:
    """What was found after each round, noted and not asserted, because an engine goes on without a watcher that fails.
    `nets`: states of the drafter's nets."""

    def __init__(self, target: Runner, nets: Callable[[Any], Sequence[TextState]]) -> None:
        self.target, self.nets, self.found = target, nets, Counter[str]()
        self.engine: Any = None

    def __call__(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        for slot, request, before, taken in zip(
            rnd.host_slots, rnd.requests, rnd.host_lengths, outcome.verdict.to_host().paths, strict=True
        ):
            size = before - 1 + len(taken)  # the root and the accepted tokens
            self.found[self._target(slot, [*request.prompt, *request.output][:size], size)] += 1
            for state in self.nets(self.engine):
                self.found[self._net(state, slot, request.known[1 : size + 1], size)] += 1

    def _target(self, slot: int, text: list[int], size: int) -> str:
        cache, length = self.engine.runner.cache, self.engine.runner.length(slot)
        if (length, cache.text(slot)) != (size, text):
            return "another text"
        fresh: Any = self.target.open(1, 300)
        index = torch.arange(size)
        fresh.admit(0, [])
        fresh.execute(ForwardInput(torch.tensor(text), index * 0, index, index, index - 1, index[:0]))
        for layer in range(CONFIG.num_layers):
            for store in (f"k{layer}", f"v{layer}"):
                gap = cache.store(store)[slot, :, :size] - fresh.cache.store(store)[0, :, :size]
                if gap.abs().max() > 1e-11:
                    return f"entries of another text in {store}"
        return "the text"

    def _net(self, state: TextState, slot: int, text: list[int], size: int) -> str:
        runner: Any = state.runner
        held, length = state.slots[slot].held, runner.length(slot)
        if length + held != size:
            return f"a net has {length} entries and {held} waiting, the text is {size}"
        return "the text" if runner.cache.text(slot) == text[:length] else "a net's entries of another text"


def ledger(
    drafter: Callable[[Runner], Drafter],
    controller: Fixed,
    nets: Callable[[Any], Sequence[TextState]] = lambda engine: (),
    policy: TreePolicy | None = None,
) -> tuple[Counter[str], list[Request]]:
    """What was found in five requests of three slots, greedy ones and sampled ones."""
    target = tiny_runner()
    noted = CacheLedger(target, nets)
    made = drafter(target)
    policy = policy or Chain(Draw.GIVEN)
    recipe = Recipe(drafter=made, policy=policy, verifier=Match(), controller=controller, watch=(noted,))
    noted.engine = make_engine(target, recipe, slots=3)
    each = [SamplingParams(max_tokens=16, temperature=i % 2, seed=i) for i in range(5)]
    done = serve(noted.engine, PROMPTS[:5], each)
    return noted.found, done


def keep_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: nets note a token too many as text."""
    real = FeatureText.keep_pairs

    def keep_pairs(self: FeatureText, state: TextState, counts: dict[int, int]) -> None:
        runner: Any = state.runner
        real(self, state, counts)
        for slot in counts:
            runner.cache._slots[slot].text.append(0)

    monkeypatch.setattr(FeatureText, "keep_pairs", keep_pairs)


def first_wrong(found: Counter[str]) -> set[str]:
    """The stores in which entries of another text begin."""
    return {key.rsplit(" ", 1)[1] for key in found if key.startswith("entries of another text")}
