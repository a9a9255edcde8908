"""Tables whose features name tokens, and drafters that show hidden states: what rules for the length of a draft read."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from draftwood.controllers.stopping.predicted_length import EMBEDDING
from draftwood.core.forward import ForwardInput, ForwardOutput
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.testing.exact import Leaf, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel
from draftwood.trees.chain import Chain
from draftwood.verifiers.rejection import Rejection


class NamedTokens(TableModel):
    """A table whose embedding of a token is its number."""

    def forward(self, x: ForwardInput, *args: Any, **more: Any) -> ForwardOutput:
        output = TableModel.forward(self, x, *args, **more)
        return replace(output, features={**output.features, EMBEDDING: x.ids[:, None].double()})


@dataclass(frozen=True)
class Telling(TableDrafter):
    """A table whose hidden state of a node is its token."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        def proceed(tree: TokenTree, frontier: Tensor, above: Any, own: Tensor) -> Tensor:
            parent = tree.parents.gather(1, frontier.clamp_min(0)).clamp_min(0)
            shown = tree.tokens.gather(1, parent)[..., None].double() if tree.num_nodes > 1 else None
            return limit.proceed(tree, frontier, shown, own)

        return TableDrafter.propose(self, state, rnd, base, replace(limit, proceed=proceed), policy)


def worlds(controller: Any, p: Conditional, q: Conditional, vocab_size: int, **more: Any) -> list[Leaf]:
    """All outcomes of requests whose chains have the length that a controller says, judged by rejection."""
    recipe = Recipe(drafter=Telling(q), policy=Chain(), verifier=Rejection(), controller=controller)
    return leaves(NamedTokens(vocab_size, p), lambda: recipe, **more)


def lengths_of(tree: TokenTree) -> list[int]:
    return tree.num_drafted().tolist()
