"""RASD: retrieved continuations beside a head's draft, in one tree that one pass checks."""

from pathlib import Path

from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine.fuse import Fuse
from draftwood.drafters.combine.route import Route
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.drafters.retrieval.datastore import Datastore, open_store
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.sizing.choose_route import HEAD, arm_and_costs, beam_and_children
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="RASD: Retrieval-Augmented Speculative Decoding",
    arxiv="2503.03434",
    claim="best on DocQA, summary, code",
)

MOST = 32


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    store: OfDrafter[Path | None] = None,
    depth: Size = 8,
    beam: Count = 10,
    nodes: Size | None = None,
    retrieved: Size = 16,
) -> Recipe:
    """`nodes`: always so many of the head; by default as many as pay. `retrieved`: at most so many beside them. `store`: a
    file that `draftwood datastore build` wrote, to retrieve from besides the text itself."""
    model = feature_drafter(load_head(weights, target, HEAD, HEAD), target)
    texts = (NGram(),) if store is None else (NGram(), Datastore(open_store(store, target)))
    if nodes is not None:
        return Recipe(
            drafter=Fuse((model, *texts), retrieved, prune=True),
            policy=BestFirst(beam),
            verifier=Match(),
            controller=Fixed(depth, nodes + retrieved),
        )
    arm, times = arm_and_costs(target, model, weights)
    return Recipe(
        drafter=Route(texts, model, arm, (depth, retrieved), fuse=True),
        policy=BestFirst(*beam_and_children(target)),
        verifier=Match(),
        controller=Priced(depth, max(MOST, arm.nodes), times),
    )
