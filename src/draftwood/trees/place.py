"""Drawn nodes set where each sequence wants them: for trees that grow by different numbers of nodes.

A sequence numbers its nodes one after another, as it would alone: it asks for the same random numbers alone and in a batch.
"""

from dataclasses import fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.tree import SCORED, TokenTree


def place(
    tree: TokenTree,
    at: Int[Tensor, "B M"],
    live: Bool[Tensor, "B M"],
    *,
    parents: Int[Tensor, "B M"],
    tokens: Int[Tensor, "B M"],
    score: Float[Tensor, "B M"],
) -> TokenTree:
    """Nodes drawn one by one (copies 1), in dead columns or behind the others; entries that are not live are dropped. No
    sequence leaves a gap, so none needs more new columns than it has entries."""
    nodes = tree.num_nodes + live.shape[1]
    if host.on_host(live.device):  # only as many as the longest sequence needs
        last = int(torch.where(live, at, 0).max()) if live.numel() else 0
        nodes = max(tree.num_nodes, last + 1)
    wide = tree.resize(nodes + 1)  # the last column takes what is dropped
    to = torch.where(live, at, nodes)
    new = {
        "tokens": tokens,
        "parents": parents,
        "live": live,
        "role": torch.full_like(tokens, SCORED),
        "copies": torch.ones_like(tokens),
        "score": score.to(tree.score.dtype),
        "source": torch.zeros_like(tokens),
    }
    whole = {f.name: getattr(wide, f.name).scatter(1, to, new[f.name])[:, :nodes] for f in fields(tree)}
    return TokenTree(**whole)
