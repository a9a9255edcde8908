"""The default: copies from the text, a trained head if one ships for the target, or nothing: what pays, round by round."""

from draftwood.controllers.costs.priced import Priced
from draftwood.core.host import on_host
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.retrieval.prediction import Prediction
from draftwood.option_parsing import Count, Size
from draftwood.sizing.choose_route import beam_and_children, drafter_and_costs
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(title="draftwood's default: of all drafts at hand the one that pays most, chosen in every round")

DEEPEST = 8  # levels that a head may draft


def build(target: Runner, *, depth: Count = 12, nodes: Size = 16) -> Recipe:
    """`depth`, `nodes`: of the largest copy from the text."""
    model, arm, times = drafter_and_costs(target)
    return Recipe(
        # Where a pass over more nodes costs hardly more, the best copies stand beside the head's draft.
        drafter=Route(
            (NGram(), Prediction(target.info.tokenizer)),
            model,
            arm,
            (depth, nodes),
            fuse=not on_host(target.info.device),
        ),
        policy=BestFirst(*beam_and_children(target)),
        verifier=Match(),
        controller=Priced(max(depth, DEEPEST), max(nodes, arm.nodes), times),
    )
