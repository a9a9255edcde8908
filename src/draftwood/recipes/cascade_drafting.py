"""Cascade speculative drafting: models review copies from the text in one pass, and copies go on behind what they wrote."""

from typing import Annotated

from draftwood import recipes
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Drafter, Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine.arms import ConfidentChain
from draftwood.drafters.combine.cascade import Cascade
from draftwood.drafters.combine.route import Route
from draftwood.drafters.nets.files.find import ships
from draftwood.drafters.retrieval.max_gram import MaxGram
from draftwood.option_parsing import Count, OfDrafter, OnlyWith, Range, Size
from draftwood.recipes.speculative_sampling import small_model
from draftwood.sizing.choose_route import draft_costs
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Cascade Speculative Drafting for Even Faster LLM Inference",
    arxiv="2312.11462",
    claim="+72 % over plain speculation",
)

PUBLISHED = 5, 5, 10  # tokens of the first model, of the second one (published for larger ones: 14), and of copies
MOST = 3, 3, 6  # where only what pays is drafted
COPY = 10  # tokens of a copy that no model begins


def build(
    target: Runner,
    *,
    inner: OfDrafter[str | None] = None,
    draft: OfDrafter[str | None] = None,
    first: OfDrafter[Size | None] = None,
    second: Annotated[OfDrafter[Size | None], OnlyWith("draft")] = None,
    then: OfDrafter[Size | None] = None,
    copied: OfDrafter[Size] = 10,
    min_match: OfDrafter[Count] = 2,
    lenience: OfDrafter[Annotated[float, Range(1)]] = 2.0,
) -> Recipe:
    """`inner`: the model that reviews copies; `draft`: a larger one before it, a model's name or "first:N". `first`,
    `second`, `then`: tokens of the first model, of the second one, and of copies behind them. With none of the three: as
    many as pay, round by round."""
    inner, copier = inner or _small(target), MaxGram(min_match)
    models: tuple[Drafter, ...] = (recipes.drafter(inner, target),)
    models = models if draft is None else (small_model(draft, target), *models)
    sizes = first, second, then
    fixed = sizes != (None, None, None)
    usual = PUBLISHED if fixed else MOST
    one, two, rest = (given if size is None else size for size, given in zip(sizes, usual, strict=True))
    counts = ((one, rest), (0, copied)) if draft is None else ((one, two, rest), (0, 1, copied), (0, 0, copied))
    cascade, most = Cascade(models, counts, lenience, copier), sum(counts[0])
    policy, rule, who = Chain(Draw.GIVEN), Match(), f"drafter: {draft or inner}, then copies"
    if fixed:
        notes = (who, f"chain of {most}, whether it pays or not; without first, second and then: what pays")
        return Recipe(drafter=cascade, policy=policy, verifier=rule, controller=Fixed(most), notes=notes)
    deepest = max(most, COPY)
    times = draft_costs(target, cascade, f"cascade {inner} {draft} {counts} {min_match} {lenience}")
    return Recipe(
        drafter=Route((copier,), cascade, ConfidentChain(most, passes=most - rest), (COPY, COPY)),
        policy=policy,
        verifier=rule,
        controller=Priced(deepest, deepest, times),
        notes=(f"{who}; copies alone or plain decoding where that pays more",),
    )


def _small(target: Runner) -> str:
    """The small model that ships for a target, else its first third of layers."""
    if ships("language", target):
        return "fast_draft"
    return f"speculative_sampling:draft=first:{max(1, target.info.num_layers // 3)}"
