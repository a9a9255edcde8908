"""Exits: distributions of the next token after the target's first layers, for the nodes of one round's growing tree.

SharedExit    the target's own final norm and head: for targets that were trained for it
NetExit       a small net, with entries of its own for text alone
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.drafters.layers.first_layers import FirstLayers, NodePass
from draftwood.drafters.on_features.feature_text import FeatureText, TextState


class SharedExit:
    """The target's head on the hidden states after some layers."""

    def __init__(self, layers: FirstLayers, ids: Int[Tensor, "W"] | None) -> None:
        self.layers, self.ids = layers, ids

    def logits(self, tree: TokenTree, first: int) -> Float[Tensor, "B K W"]:
        return self.layers.target.head(self.layers.upto(tree)[:, first:], ids=self.ids)


class NetExit:
    """A net behind the same. Its entries of drafted tokens stand as those of the target do, behind the pairs of known text
    that it has not run so far. `counts`: how many those are, by slot."""

    def __init__(
        self,
        text: FeatureText,
        state: TextState,
        rnd: Round,
        layers: FirstLayers,
        counts: dict[int, int],
        only: Int[Tensor, "W"] | None,
    ) -> None:
        self.text, self.state, self.rnd, self.layers = text, state, rnd, layers
        self.counts, self.only = counts, only
        self.ids = text.model.ids if only is None else only
        self._done = [state.runner.length(slot) for slot in rnd.host_slots]
        self._behind = [counts[slot] for slot in rnd.host_slots]
        self._have = 0  # columns that were run

    def logits(self, tree: TokenTree, first: int) -> Float[Tensor, "B K W"]:
        hidden, found = self.layers.upto(tree), list[Tensor]()
        if not self._have:
            roots = self.text.chains(self.state, self.counts, roots=hidden[:, :1])
            found += [self.state.runner.execute(roots, self.only)[1][:, None]][first:]
            self._have = 1
        if tree.num_nodes > self._have:
            found.append(self._run(tree, hidden, max(first, self._have)))
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def _run(self, tree: TokenTree, hidden: Float[Tensor, "B N H"], first: int) -> Float[Tensor, "B K W"]:
        """The columns that were not run so far; logits from `first` on."""
        start, self._have = self._have, tree.num_nodes
        nodes = NodePass.over(tree, start, self.rnd, self._done, self._behind, first)
        found = self.state.runner.execute(nodes.starting_from(hidden[:, start:]), self.only)[1]
        return nodes.spread_wanted(found, tree.num_nodes - first)

    def keep(self) -> None:
        """Entries behind guesses go, those of known text stay."""
        if self._have:
            self.text.keep_pairs(self.state, self.counts)
