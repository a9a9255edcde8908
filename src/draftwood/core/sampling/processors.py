"""Logits as one node's own past changes them: penalties, bias, bans and masks along the node's path.

Runs for visited nodes of requests that asked for such options, and for nobody else.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.request import Request
from draftwood.core.sampling.params import Grammar
from draftwood.errors import OptionError


def adjust(
    logits: Float[Tensor, "V"], request: Request, path: Sequence[int], ids: Sequence[int] | None = None
) -> Float[Tensor, "W"]:
    """One row of logits after the request's history and `path`, the drafted tokens on the way to this node.

    `ids` names the token of each column where the row is only a part of the vocabulary; the options act on tokens,
    never on columns.
    """
    if ids is not None:
        whole = logits.new_full((request.vocab_size,), -torch.inf)  # a token without a column cannot be what is left
        whole[ids] = logits
        return adjust(whole, request, path)[ids]
    p = request.params
    x = logits.clone()
    if p.grammar is not None:
        x = _mask(x, p.grammar, [*request.output, *path])
    if p.bad_words:
        x[_banned(p.bad_words, request.known_tail(path, max(map(len, p.bad_words)) - 1))] = -torch.inf
    if p.min_tokens > len(request.output) + len(path):
        x[list(request.ends)] = -torch.inf
    if p.logit_bias:
        # A biased -inf stays banned: -inf + b == -inf.
        x[list(p.logit_bias)] += torch.tensor(list(p.logit_bias.values()), dtype=x.dtype, device=x.device)
    if p.counts_history:
        x = _penalise(x, request, path)
    if not torch.isfinite(x).any():
        raise OptionError(
            "no token is left to choose: grammar, bad words, min tokens and bias ban the whole vocabulary"
        )
    return x


def _penalise(x: Float[Tensor, "V"], request: Request, path: Sequence[int]) -> Float[Tensor, "V"]:
    counts, prompt = request.history(x.device)
    if path:
        extra = torch.tensor(path, device=x.device)
        counts = counts.index_add(0, extra, torch.ones_like(extra, dtype=counts.dtype))
    p = request.params
    if p.repetition_penalty != 1.0:
        seen = prompt | (counts > 0)
        x = torch.where(seen, torch.where(x > 0, x / p.repetition_penalty, x * p.repetition_penalty), x)
    counts = counts.to(x.dtype)
    return x - p.frequency_penalty * counts - p.presence_penalty * (counts > 0).to(x.dtype)


def _mask(x: Float[Tensor, "V"], grammar: Grammar, tokens: Sequence[int]) -> Float[Tensor, "V"]:
    """A grammar is the user's code: what goes wrong in it ends its own request, not the batch."""
    try:
        return x.masked_fill(~grammar(tokens).to(x.device), -torch.inf)
    except Exception as error:
        raise OptionError(f"the grammar failed: {type(error).__name__}: {error}") from error


def _banned(words: Sequence[Sequence[int]], tail: Sequence[int]) -> list[int]:
    """Last tokens of the words whose other tokens end the text."""
    return [w[-1] for w in words if len(w) == 1 or tuple(tail[-(len(w) - 1) :]) == tuple(w[:-1])]
