"""p and q at one node of each sequence, over the columns that a rule can tell apart."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.proposal import Proposal
from draftwood.core.sampling.draft_probs import Aligned
from draftwood.core.scored import Scored
from draftwood.verifiers.family import Family


def node_probs(
    proposal: Proposal,
    target: Scored,
    here: Family,
    where: Bool[Tensor, "B"] | None = None,
    sequences: Int[Tensor, "B"] | None = None,
) -> Aligned:
    """At the node of each family, where asked; the columns are those of its drawn children. `sequences`: whose they are, if
    not all have one."""
    indices = proposal.q_indices()
    index = indices.gather(1, here.node[:, None])[:, 0] if sequences is None else indices[sequences, here.node]
    drawn = torch.where(here.copies > 0, here.token, target.vocab_size)
    return target.aligned(here.node, sequences, where, proposal.q, index, drawn)
