"""Faults that can be switched on while an engine runs: drafts that are wrong, and passes that take longer.

Parts are wrapped, so what decides about drafts is the recipe's own and knows nothing of the switch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeVar, cast

import torch

from draftwood.bench.micro.target_pass import clock
from draftwood.bench.wrapped import Wrapped
from draftwood.core.forward import ForwardInput, ForwardOutput
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.retrieved import Retrieved
from draftwood.errors import OptionError

T = TypeVar("T")


@dataclass(slots=True)
class Switch:
    """Whether the fault is there now."""

    on: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class WrongDrafts(Wrapped):
    """Other tokens in the place of those that were drafted, with the same scores, so that the drafter is as sure of them.
    All move by the same distance in the vocabulary, so siblings stay different."""

    switch: Switch
    vocab_size: int = 2

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made = self.inner.propose(state, rnd, base, limit, policy)
        kept = base.tree.num_nodes
        if not self.switch.on or made.tree.num_nodes == kept:
            return made
        tokens = torch.cat([made.tree.tokens[:, :kept], self._moved(made.tree.tokens[:, kept:])], dim=1)
        return replace(made, tree=replace(made.tree, tokens=tokens))

    def retrieve(self, state: Any, rnd: Round, limit: Limit) -> list[Retrieved]:
        found = self.inner.retrieve(state, rnd, limit)
        if not self.switch.on:
            return found
        return [replace(each, tokens=[self._moved(token) for token in each.tokens]) for each in found]

    def _moved(self, token: Any) -> Any:
        return (token + self.vocab_size // 2) % self.vocab_size


@dataclass(frozen=True, slots=True, eq=False)
class SlowDrafter(Wrapped):
    """Everything it does takes `factor` times as long."""

    switch: Switch
    factor: float = 1.0

    def begin(self, state: Any, rnd: Round, output: ForwardOutput) -> None:
        self._slowly(rnd, lambda: self.inner.begin(state, rnd, output))

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made = self._slowly(rnd, lambda: self.inner.propose(state, rnd, base, limit, policy))
        if not self.switch.on or not made.pass_seconds:
            return made
        return replace(made, pass_seconds=self.factor * made.pass_seconds)

    def commit(self, state: Any, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self._slowly(rnd, lambda: self.inner.commit(state, rnd, outcome, output))

    def _slowly(self, rnd: Round, run: Callable[[], T]) -> T:
        return slowly(run, self.factor, rnd.device) if self.switch.on else run()


class SlowRunner:
    """A target whose passes take `factor` times as long while the switch is on; `several`: only those of several tokens."""

    def __init__(self, inner: Runner, switch: Switch, factor: float, *, several: bool = False) -> None:
        self.inner, self.switch, self.factor, self.several = inner, switch, factor, several

    def execute(self, x: ForwardInput, **options: Any) -> ForwardOutput:
        if not self.switch.on or (self.several and len(x.ids) == 1):
            return self.inner.execute(x, **options)
        return slowly(lambda: self.inner.execute(x, **options), self.factor, self.inner.info.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def slowly(run: Callable[[], T], factor: float, device: torch.device) -> T:
    """Run, and wait until `factor` times its time is over. The processor stays busy, as with real work."""
    found: list[T] = []
    start = perf_counter()
    end = start + factor * clock(lambda: found.append(run()), device)
    while perf_counter() < end:
        pass
    return found[0]


def with_wrong_drafts(recipe: Recipe, switch: Switch, vocab_size: int) -> Recipe:
    """The recipe with drafts that become wrong. What Route chooses among is wrapped, not Route: it compares the text with
    the drafts that it chose, and would take drafts that are changed afterwards for right ones."""
    if recipe.policy.draw is not Draw.GIVEN:
        raise OptionError(
            f"{type(recipe.drafter).__name__} draws its tokens, and other ones would not follow their distribution\n"
            "hint: a recipe of given drafts, such as auto or prompt_lookup"
        )
    drafter = recipe.drafter
    if not isinstance(drafter, Route):
        return replace(recipe, drafter=WrongDrafts(drafter, switch, vocab_size))
    model = drafter.model and WrongDrafts(drafter.model, switch, vocab_size)
    found = tuple(WrongDrafts(each, switch, vocab_size) for each in drafter.retrievers)
    return replace(recipe, drafter=replace(drafter, retrievers=found, model=model))


def with_slow_drafts(recipe: Recipe, switch: Switch, factor: float) -> Recipe:
    return replace(recipe, drafter=SlowDrafter(recipe.drafter, switch, factor))


def slow_runner(runner: Runner, switch: Switch, factor: float, *, several: bool = False) -> Runner:
    return cast(Runner, SlowRunner(runner, switch, factor, several=several))
