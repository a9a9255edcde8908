"""Speculative sampling: a smaller model drafts a chain, rejection keeps a prefix of it (Leviathan et al., Chen et al.)."""

from typing import Annotated, Literal

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.draft_model import DraftModel
from draftwood.errors import OptionError
from draftwood.models.backends.choose import like
from draftwood.models.loading.load import load
from draftwood.option_parsing import Factor, NotWith, OfDrafter, Size
from draftwood.runners.open import runner_of
from draftwood.runners.vocabulary import fitted
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Fast Inference from Transformers via Speculative Decoding",
    arxiv="2211.17192",
    claim="about 2x-3x",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    draft: Annotated[OfDrafter[str | None], NotWith(("inner",))] = None,
    depth: Size = 3,
    verifier: Literal["rejection", "match"] = "rejection",
    draft_temperature: Factor = 1.0,
) -> Recipe:
    """`draft`: a model's name or path, or "first:N" for the target's own first N layers; without it `inner` drafts.
    `draft_temperature`: times that of the request, of draws."""
    exact = verifier == "rejection"
    return Recipe(
        drafter=recipes.drafter(inner, target) if draft is None else small_model(draft, target),
        # Match ignores q, so its guesses may share the target's own uniforms and agree more often.
        policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
        verifier=Rejection() if exact else Match(),
        controller=Fixed(depth=depth),
        draft_temperature=draft_temperature,
    )


def small_model(draft: str, target: Runner) -> DraftModel:
    """The drafter that runs a model of its own."""
    return DraftModel(draft_model(draft, target))


def draft_model(draft: str, target: Runner) -> Runner:
    """The drafter's network; its vocabulary must be the target's, but for a few tokens at the end."""
    if draft.startswith("first:"):
        count = draft.removeprefix("first:")
        if not target.info.layer_ranges:
            raise OptionError(
                f"draft {draft!r}: {target.info.name or 'this target'} cannot run its first layers alone\n"
                "hint: draft=NAME, a model's name or path, or inner=eagle3:weights=FILE"
            )
        if not count.isdecimal() or not 0 < int(count) <= target.info.num_layers:
            raise OptionError(
                f"draft {draft!r}: cannot cut that from a target of {target.info.num_layers} layers\n"
                f"hint: draft=first:N with N from 1 to {target.info.num_layers}, or draft=NAME, a model's name or path"
            )
        return target.first_layers(int(count))
    model = runner_of(load(draft, dtype=like(target.info), device=target.info.device))
    return fitted(model, target, draft)
