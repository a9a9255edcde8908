"""EasySpec: layers of the draft model run in groups whose attentions read one input. Guesses are fuzzy, the cache is not."""

from typing import Annotated, Literal

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import LayerPlan
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.draft_model import DraftModel
from draftwood.errors import OptionError
from draftwood.option_parsing import OfDrafter, OnlyWith, Range, Size
from draftwood.recipes.speculative_sampling import draft_model
from draftwood.sizing.choose_route import what_pays
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="EasySpec: Layer-Parallel Speculative Decoding for Efficient Multi-GPU Utilization",
    arxiv="2502.02493",
    claim="4.17x peak, drafting 1.62x faster",
)
PUBLISHED = 4  # tokens of a draft
MOST = 4  # where only what pays is drafted


def build(
    target: Runner,
    *,
    draft: OfDrafter[str | None] = None,
    group: OfDrafter[Annotated[int, Range(1, 64)]] = 4,
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    verifier: Annotated[Literal["match", "rejection"], OnlyWith("size", "paper")] = "match",
) -> Recipe:
    """`draft`: a model's name or path, or "first:N" for the target's own first N layers, by default a third of them.
    `group`: layers whose attentions read one input; 1: the draft model as it is. `size=paper`: `depth` tokens in every
    round; by default as many as pay."""
    name = f"first:{max(1, target.info.num_layers // 3)}" if draft is None else draft
    model = draft_model(name, target)
    if not model.info.layer_ranges:
        raise OptionError(
            f"draft {name!r}: {model.info.name or 'this model'} runs all of its layers or none\nhint: draft=first:N"
        )
    plan = grouped(model.info.num_layers, group)
    drafter = DraftModel(model, plan=plan)
    told = f"drafter: {name}, {len(plan.together)} groups of up to {group} layers"
    if size == "paper":
        exact = verifier == "rejection"
        return Recipe(
            drafter=drafter,
            policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
            verifier=Rejection() if exact else Match(),
            controller=Fixed(PUBLISHED if depth is None else depth),
            notes=(f"{told}, in every round, whether it pays or not; size=auto drafts where it pays",),
        )
    return what_pays(target, drafter, f"grouped {name} {group}", MOST if depth is None else depth).recipe(told)


def grouped(num_layers: int, size: int) -> LayerPlan:
    """All layers but the first and the last in groups of `size`: those two suffer most from an input that is not theirs."""
    inner = range(1, num_layers - 1)
    groups = (inner[i : i + size] for i in range(0, len(inner), size))
    return LayerPlan(together=tuple(each for each in groups if len(each) > 1))
