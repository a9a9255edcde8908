"""A best-first tree whose size is asked for, published, or chosen for this target on this machine."""

import logging
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from draftwood.controllers.by_temperature import ByTemperature
from draftwood.controllers.costs.cost import CostModel
from draftwood.controllers.estimates.acceptance import DEPTHS, NODES, Acceptance, Outlook, Size
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.sized import PLAIN, Sized, best_size, gains
from draftwood.controllers.stopping.learned_stop import LearnedStop
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Drafter, Runner
from draftwood.core.recipe import Recipe
from draftwood.core.verdict import Times
from draftwood.sizing.remembered import remembered
from draftwood.sizing.shipped_acceptance import load_acceptance
from draftwood.sizing.trials import trials
from draftwood.trees.best_first import BestFirst
from draftwood.trees.best_shape import Topology, expected, positional
from draftwood.trees.chain import Chain
from draftwood.trees.shaped import Shaped
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match

CHAINS: tuple[Size, ...] = ((0, 0), (1, 1), (3, 3), (5, 5))  # of draws, timed at temperature 1
TEMPERATURES = 0.5, 0.8, 1.0  # for which the length of such a chain is chosen
CLEARLY = 1.03  # times plain decoding's speed: timed rounds are few, and this choice is never corrected
SLOWER = 1.0  # of plain decoding; what is expected to be slower is warned of. Times vary, and 0.9 must not pass unsaid

log = logging.getLogger("draftwood")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user fixed of a tree; None is left to choose. `size` "paper": `published` in its place."""

    depth: int | None
    beam: int | None
    nodes: int | None
    size: Literal["auto", "paper"] = "auto"

    def or_published(self, depth: int, beam: int, nodes: int) -> "Asked":
        """The published numbers where none were asked for."""
        mine = self.depth, self.beam, self.nodes
        depth, beam, nodes = (a if b is None else b for a, b in zip((depth, beam, nodes), mine, strict=True))
        return Asked(depth, beam, nodes)

    def sizes(self, deepest: int) -> tuple[Size, ...]:
        """Candidates of at most `deepest` levels: chains, and trees of more nodes than levels."""
        depths = [d for d in DEPTHS if d <= deepest] if self.depth is None else [self.depth]
        if self.nodes is not None:
            return tuple((d, self.nodes) for d in depths if self.depth is not None or d <= self.nodes)
        chains = tuple((d, d) for d in depths)
        return chains if self.beam == 1 else (*chains, *((d, n) for d in depths for n in NODES if n > d))


@dataclass(frozen=True, slots=True)
class Choice:
    """A size and how many times as fast as plain decoding it is expected to be, one sequence at a time."""

    size: Size
    gain: float

    def note(self, name: str, target: Runner, beam: int | None = None) -> str:
        """For the banner. A size that is expected to be slower than plain decoding is also logged as a warning."""
        if self.size == PLAIN:
            return f"plain decoding, no draft pays here (chosen for {backend_of(target)})"
        text = (
            f"{said(self.size, beam)} (chosen for {backend_of(target)}; expected speed {self.gain:.2f}x plain decoding)"
        )
        if self.gain < SLOWER:
            log.warning("%s: %s; plain decoding is faster here: recipe=autoregressive", name, text)
        return text


@dataclass(frozen=True, slots=True)
class TreeSize:
    """How large a best-first tree may grow: what its policy and its controller need, and what the banner says of it."""

    beam: int | None
    controller: Fixed | Sized | ByTemperature
    notes: tuple[str, ...]


def tree_size(
    name: str,
    target: Runner,
    drafter: Drafter,
    weights: str,
    asked: Asked,
    *,
    published: tuple[int, int, int],
    deepest: int = max(DEPTHS),
    profile: str | None = None,
    drawn: bool = False,
) -> TreeSize:
    """`weights`: which ones the drafter runs, as the user named them. `published`: depth, beam and nodes. `deepest`: levels
    that the drafter can draft. `profile`: the recipe whose measured acceptance is where the choice begins. `drawn`: sampled
    requests draft chains of draws."""
    fixed = asked.or_published(*published) if asked.size == "paper" else asked
    if 0 in (fixed.depth, fixed.nodes) or (fixed.depth is not None and fixed.nodes is not None):
        size = min(fixed.depth or 0, deepest), fixed.nodes or 0
        whole = asked.size == "paper" and (asked.depth, asked.beam, asked.nodes) == (None, None, None)
        return TreeSize(
            fixed.beam, Fixed(*size), (f"{said(size, fixed.beam)} ({'as published' if whole else 'fixed'})",)
        )
    acceptance = load_acceptance(profile or name, target)
    sizes = fixed.sizes(deepest)
    recipe = Recipe(drafter=drafter, policy=BestFirst(fixed.beam), verifier=Match(), controller=Fixed(0))
    cost_model = timed(trials(target, recipe, f"{name} {weights} {fixed.beam}"))
    note = choice(acceptance, sizes, cost_model).note(name, target, fixed.beam)
    sized = Sized(acceptance, sizes, cost_model)
    if not drawn:
        return TreeSize(fixed.beam, sized, (note,))
    depths = drawn_depths(name, target, drafter, weights, sizes)
    return TreeSize(fixed.beam, ByTemperature(sized, depths), (note, _said_of_draws(depths)))


def drawn_depths(
    name: str, target: Runner, drafter: Drafter, weights: str, sizes: tuple[Size, ...]
) -> tuple[tuple[float, int], ...]:
    """Up to each of some temperatures the length of a chain of draws that is expected to be the fastest, by timed rounds; 0
    where none is clearly faster than plain decoding. It is kept for this target and backend, because the text of a seed
    depends on it."""
    chains = tuple(size for size in sizes if size[1] <= size[0])

    def find() -> list[int]:
        recipe = Recipe(drafter=drafter, policy=Chain(), verifier=Block(), controller=Fixed(0))
        cost_model = timed(trials(target, recipe, f"{name} {weights} drawn", CHAINS, temperature=1.0))
        outlook = Outlook.of(load_acceptance(name, target, drawn=True), chains)
        found = [gains(chains, outlook.accepted(t, 0.0), cost_model) for t in TEMPERATURES]
        return [chains[int(each.argmax())][0] if each.max() >= CLEARLY else 0 for each in found]

    def read(found: Any) -> list[int]:
        depths = {0, *(depth for depth, _ in chains)}
        if not isinstance(found, list) or len(found) != len(TEMPERATURES) or not depths.issuperset(found):  # pyright: ignore[reportUnknownArgumentType]
            raise ValueError(f"no lengths: {found!r}")
        return [int(each) for each in found]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

    if not chains:
        return ((TEMPERATURES[-1], 0),)
    key = f"{backend_of(target)} {name} {weights} drawn {chains}"
    return tuple(zip(TEMPERATURES, remembered(target, "drawn", key, read, find), strict=True))


def _said_of_draws(depths: tuple[tuple[float, int], ...]) -> str:
    each = ", ".join(f"{'plain decoding' if not d else f'a chain of {d}'} at {t:g}" for t, d in depths)
    return f"sampled: {each} (draws, by the block rule; verifier=match: a seed gives plain decoding's text)"


def choice(acceptance: Acceptance, sizes: tuple[Size, ...], cost_model: CostModel, temperature: float = 0.0) -> Choice:
    """The best of these sizes for one sequence, by timed rounds."""
    found = gains(sizes, Outlook.of(acceptance, sizes).accepted(temperature, 0.0), cost_model)
    best = best_size(sizes, found)
    return Choice(best, 1.0 if best == PLAIN else float(found[sizes.index(best)]))


def fixed_tree(
    acceptance: tuple[float, ...], target: Runner, drafter: Drafter, key: str, nodes: int | None, depth: int | None
) -> tuple[Topology, Choice]:
    """The fixed tree that is expected to emit most tokens a second, by the acceptance of siblings and by timed rounds of the
    drafter; even where plain decoding would be faster."""
    recipe = Recipe(drafter=drafter, policy=BestFirst(), verifier=Match(), controller=Fixed(0))
    cost_model = timed(trials(target, recipe, key))
    found: dict[Size, tuple[Topology, float]] = {}
    for most in DEPTHS if depth is None else (depth,):
        for count in (1, *NODES) if nodes is None else (nodes,):
            tree = positional(acceptance, count, most, "sequoia")
            levels = Shaped(tree).depth
            found.setdefault((levels, len(tree)), (tree, expected(tree, [acceptance] * max(levels, 1)) - 1))
    full = {size: each for size, each in found.items() if nodes in (None, size[1])} or found
    rates = gains(list(full), np.array([accepted for _, accepted in full.values()]), cost_model)
    size = list(full)[int(rates.argmax())]
    return full[size][0], Choice(size, float(rates.max()))


def timed(times: tuple[Times, ...]) -> CostModel:
    """The cost model after these rounds. They are a set, not a stream: none fades."""
    cost_model = CostModel(forget=1.0)
    for each in times:
        cost_model.observe(each)
    return cost_model


def worth(name: str, target: Runner, drafter: Drafter, weights: str = "auto") -> Choice:
    """What a drafter with a shipped acceptance profile is worth for this target on this machine, at the best size."""
    acceptance, sizes = load_acceptance(name, target), Asked(None, None, None).sizes(max(DEPTHS))
    recipe = Recipe(drafter=drafter, policy=BestFirst(), verifier=Match(), controller=Fixed(0))
    return choice(acceptance, sizes, timed(trials(target, recipe, f"{name} {weights} None")))


def gain(name: str, target: Runner, recipe: Recipe, temperature: float = 0.0) -> float | None:
    """How many times as fast as plain decoding a recipe with a tree of fixed size is expected to be; None: no fixed size.
    The recipe's own rounds are timed; the acceptance is that of a best-first tree of this size, drafted as `name` does."""
    fixed = recipe.controller
    if not isinstance(fixed, Fixed | LearnedStop) or not fixed.depth:
        return None
    size = fixed.depth, fixed.depth if fixed.nodes is None else fixed.nodes
    times = trials(target, recipe, f"{name} {recipe.policy} {recipe.verifier}", (PLAIN, size), temperature)
    if len(times) < 2:
        return None
    acceptance = load_acceptance(name, target, recipe.policy.draw is not Draw.GIVEN)
    accepted = float(Outlook.of(acceptance, (size,)).accepted(temperature, 0.0)[0])
    return (1 + accepted) * times[0].total / times[1].total


def said(size: Size, beam: int | None = None) -> str:
    depth, nodes = size
    if not depth or not nodes:
        return "plain decoding"
    chain = beam == 1 or (beam is None and nodes <= depth)
    return f"chain of {min(depth, nodes)}" if chain else f"tree of {nodes} nodes, depth {depth}"


def backend_of(target: Runner) -> str:
    """How the target runs, as banners say it."""
    return target.info.backend or "this model"
