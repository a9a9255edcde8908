"""What lets the nodes of a batch compete: a corrected chance of each node, and what a round costs by their number.

Both come from finished rounds. The chance of a node is made from scores, which were known before its token was drawn, so
a choice by it cannot bias the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.host import put
from draftwood.core.tree import TokenTree

_SURE = 6.0  # log-odds beyond which a chance says nothing more


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """The chance c that a score gives a node below its parent, corrected for its drafter (S), its position (L; deeper ones
    are as the last) and its sequence:

        log-odds of the node = slope * log(c / (1 - c)) + offset
    """

    slope: Float[Tensor, "S"]
    offset: Float[Tensor, "B S L"]

    def take(self, sequences: Sequence[int]) -> "Correction":
        return Correction(self.slope, self.offset[put(sequences, self.offset.device)])

    def log_chances(self, tree: TokenTree, levels: int) -> Float[Tensor, "B N"]:
        """Of each node together with all nodes above it. No host read. It falls along a path, and siblings of one drafter
        keep their order."""
        parent, below = tree.parents.clamp_min(0), tree.parents >= 0
        gain = (tree.score - tree.score.gather(1, parent)).clamp_max(0.0)
        odds = (gain - (-torch.expm1(gain)).log()).nan_to_num(-_SURE, _SURE, -_SURE).clamp(-_SURE, _SURE)
        sources, positions = self.offset.shape[1:]
        source = tree.source.clamp(0, sources - 1)
        depth = torch.where(below, tree.depths(levels), 1).clamp(1, positions) - 1
        offset = self.offset.flatten(1).gather(1, source * positions + depth)
        own = torch.nn.functional.logsigmoid(self.slope[source] * odds + offset).to(tree.score.dtype)
        own = torch.where(below, own, 0.0)
        whole = own
        for _ in range(levels - 1):
            whole = own + torch.where(below, whole.gather(1, parent), 0.0)
        return whole


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """`seconds`: of a round by the drafted nodes of the whole batch, from none on, drafting included. `tokens`: what the
    round emits without them."""

    seconds: Float[Tensor, "C"]
    tokens: int
