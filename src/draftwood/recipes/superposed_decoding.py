"""Superposed Decoding: k drafts for one draft pass per token, verified as one tree."""

from pathlib import Path
from typing import Annotated

from draftwood import recipes
from draftwood.controllers.estimates.acceptance import DEPTHS
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.sized import Sized
from draftwood.core.protocols import LengthController, Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.retrieval.datastore import open_store
from draftwood.drafters.superposed.drafter import Superposed
from draftwood.drafters.superposed.ngrams import StoreCounts
from draftwood.drafters.superposed.superposition import Superposition
from draftwood.errors import CompositionError
from draftwood.option_parsing import Count, OfDrafter, Range, Size
from draftwood.sizing.choose_size import Asked, choice, timed
from draftwood.sizing.shipped_acceptance import load_acceptance
from draftwood.sizing.trials import trials
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Superposed Decoding: Multiple Generations from a Single Autoregressive Inference Pass",
    arxiv="2405.18400",
    claim="2.44x for k >= 3",
)
PROFILE = "fast_draft"  # whose acceptance the choice begins with: trees of the same draft model


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    k: OfDrafter[Count] = 3,
    depth: Size | None = None,
    nodes: Size | None = None,
    candidates: OfDrafter[Count | None] = None,
    temperature: OfDrafter[Annotated[float, Range(1e-3)] | None] = None,
    alpha: OfDrafter[Annotated[float, Range(0, 0.99)]] = 0.54,
    store: OfDrafter[Path | None] = None,
) -> Recipe:
    """`inner`: the recipe whose draft model is used. `depth`, `nodes`: of the tree; those not given are chosen for this
    machine. `store`: a datastore whose n-grams are counted; without one those of the request's own text are."""
    model = recipes.drafter(inner, target)
    if not isinstance(model, DraftModel):
        raise CompositionError(
            f"superposed drafts come from a draft model, {type(model).__name__} is none\n"
            "hint: inner=fast_draft, or inner=speculative_sampling:draft=NAME"
        )
    counts = None if store is None else StoreCounts(open_store(store, target))
    drafter = Superposed(model, Superposition(k, candidates, temperature, alpha), counts)
    controller, notes = _sized(drafter, target, inner, depth, nodes)
    return Recipe(drafter=drafter, policy=BestFirst(), verifier=Match(), controller=controller, notes=notes)


def _sized(
    drafter: Superposed, target: Runner, inner: str, depth: int | None, nodes: int | None
) -> tuple[LengthController, tuple[str, ...]]:
    """How large the tree may be, and a note for the banner where that was chosen."""
    if 0 in (depth, nodes) or (depth is not None and nodes is not None):
        return Fixed(depth or 0, nodes or 0), ()
    sizes, k = Asked(depth, None, nodes).sizes(max(DEPTHS)), drafter.superposition.k
    # A chain needs no superposition, and below two levels there is none: the first pass reads the root alone.
    trees = tuple((d, n) for d, n in sizes if nodes is not None or 1 < d < n <= k * d)
    parts = Recipe(drafter=drafter, policy=BestFirst(), verifier=Match(), controller=Fixed(0))
    costs = timed(trials(target, parts, f"superposed {inner} {drafter.superposition} {drafter.counts}"))
    acceptance, found = load_acceptance(PROFILE, target), trees or sizes
    note = choice(acceptance, found, costs).note("superposed_decoding", target)
    return Sized(acceptance, found, costs), (note,)
