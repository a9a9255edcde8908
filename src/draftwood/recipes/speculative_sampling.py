"""Speculative sampling: a smaller model drafts a chain, rejection keeps a prefix of it (Leviathan et al., Chen et al.)."""

from functools import partial
from typing import Annotated, Literal

from draftwood import recipes
from draftwood.cache.dense import cache_for
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Cache, Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.features import MARGIN
from draftwood.errors import CompositionError, OptionError
from draftwood.models.backends.choose import like
from draftwood.models.loading.load import load
from draftwood.option_parsing import NotWith, OfDrafter, Size
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(title="Fast Inference from Transformers via Speculative Decoding", arxiv="2211.17192")


def build(
    target: Model,
    *,
    inner: OfDrafter[str] = "auto",
    draft: Annotated[OfDrafter[str | None], NotWith(("inner",))] = None,
    depth: Size = 3,
    verifier: Literal["rejection", "match"] = "rejection",
) -> Recipe:
    """`draft`: a model's name or path, or "first:N" for the target's own first N layers; without it `inner` drafts."""
    exact = verifier == "rejection"
    return Recipe(
        drafter=recipes.drafter(inner, target) if draft is None else small_model(draft, target),
        # Match ignores q, so its guesses may share the target's own uniforms and agree more often.
        policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
        verifier=Rejection() if exact else Match(),
        controller=Fixed(depth=depth),
    )


def small_model(draft: str, target: Model) -> DraftModel:
    """The drafter that runs a model of its own."""
    model = draft_model(draft, target)
    return DraftModel(model, partial(_cache, model))


def draft_model(draft: str, target: Model) -> Model:
    """The drafter's network; its vocabulary must be the target's."""
    if draft.startswith("first:"):
        count, cut = draft.removeprefix("first:"), getattr(target, "first_layers", None)
        if cut is None:
            raise OptionError(
                f"draft {draft!r}: {type(target).__name__} cannot run its first layers alone\n"
                "hint: draft=NAME, a model's name or path, or inner=eagle3:weights=FILE"
            )
        if not count.isdecimal() or not 0 < int(count) <= target.num_layers:
            raise OptionError(
                f"draft {draft!r}: cannot cut that from a target of {target.num_layers} layers\n"
                f"hint: draft=first:N with N from 1 to {target.num_layers}, or draft=NAME, a model's name or path"
            )
        return cut(int(count))
    model: Model = load(draft, dtype=like(target)).model
    if model.vocab_size != target.vocab_size:
        raise CompositionError(
            f"draft {draft!r} has a vocabulary of {model.vocab_size} tokens, the target one of {target.vocab_size}\n"
            "hint: draft=NAME, a model of the same family with the same tokenizer"
        )
    return model


def _cache(model: Model, slots: int) -> Cache:
    return cache_for(model, slots, model.max_positions + MARGIN)
