"""Logits as a node's own past changes them: penalties, bias, bans and masks along the node's path.

All nodes of a sequence are processed together. Every option but a grammar changes few tokens, so only those are read and
written: the tokens of the text so far, which all nodes share, then the tokens of each node's own path.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.host import host, put
from draftwood.core.request import Request
from draftwood.core.sampling.params import Grammar, SamplingParams

Paths = Sequence[Sequence[int]]
NO_TOKEN = "no token is left to choose: grammar, bad words, min tokens and bias ban the whole vocabulary"


def adjust(
    logits: Float[Tensor, "K W"], request: Request, paths: Paths, ids: Int[Tensor, "W"] | None = None
) -> tuple[Float[Tensor, "K W"], dict[int, str]]:
    """Logits of K nodes after the request's text and each node's path, which holds the drafted tokens on the way to it;
    and the nodes that have no token left, with the reason.

    `ids` names the token of each column where the columns are only a part of the vocabulary; the options act on tokens,
    never on columns.
    """
    x, p, columns = logits.clone(), request.params, _Columns.of(request.vocab_size, ids, logits.device)
    failed: dict[int, str] = {}
    if p.grammar is not None:
        failed = _mask(x, p.grammar, [[*request.output, *path] for path in paths], ids)
    banned = [(k, token) for k, path in enumerate(paths) for token in _banned(request, path)]
    if banned:
        node, token = columns.known(put(banned, x.device)).unbind(1)
        x[node, columns.at(token)] = -torch.inf
    if p.logit_bias:
        tokens = columns.known(put(list(p.logit_bias), x.device)[:, None])[:, 0]
        bias = put([p.logit_bias[t] for t in host(tokens)], x.device, torch.float64)
        # A biased -inf stays banned: -inf + b == -inf.
        x[:, columns.at(tokens)] += bias.to(x.dtype)
    if p.counts_history:
        _penalise(x, request, paths, columns)
    if p.grammar is not None or banned or -torch.inf in p.logit_bias.values():
        left = host((x > -torch.inf).any(1))
        failed = {k: NO_TOKEN for k, some in enumerate(left) if not some} | failed
    return x, failed


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Where tokens stand."""

    of_token: Int[Tensor, "V"] | None  # -1: no column; None: every token's column is its id

    @staticmethod
    def of(vocab_size: int, ids: Int[Tensor, "W"] | None, device: torch.device) -> "_Columns":
        if ids is None:
            return _Columns(None)
        found = torch.full((vocab_size,), -1, dtype=torch.int64, device=device)
        return _Columns(found.index_copy_(0, ids, torch.arange(len(ids), device=device)))

    def at(self, token: Int[Tensor, "S"]) -> Int[Tensor, "S"]:
        return token if self.of_token is None else self.of_token[token]

    def known(self, entries: Int[Tensor, "S n"]) -> Int[Tensor, "s n"]:
        """The entries whose token, which stands last, has a column."""
        return entries if self.of_token is None else entries[self.of_token[entries[:, -1]] >= 0]


def _mask(
    x: Float[Tensor, "K W"], grammar: Grammar, texts: list[list[int]], ids: Int[Tensor, "W"] | None
) -> dict[int, str]:
    """What a grammar allows after each node's text, in place. It is the user's code: what goes wrong in it ends its own
    request, not the batch."""
    failed: dict[int, str] = {}
    for k, text in enumerate(texts):
        try:
            allowed = grammar(text).to(x.device)
            x[k] = x[k].masked_fill(~(allowed if ids is None else allowed[ids]), -torch.inf)
        except Exception as error:
            failed[k] = f"the grammar failed: {type(error).__name__}: {error}"
    return failed


def _penalise(x: Float[Tensor, "K W"], request: Request, paths: Paths, columns: _Columns) -> None:
    """Repetition, frequency and presence penalties, in place. Tokens of the paths are written after those of the text, from
    values that are not penalised yet: a token of both is penalised once, with all its occurrences."""
    p = request.params
    counts, seen = request.history(x.device)
    own = [(k, times, token) for k, path in enumerate(paths) for token, times in Counter(path).items()]
    node, times, token = columns.known(put(own, x.device).view(-1, 3)).unbind(1)
    penalised = _penalised(x[node, columns.at(token)], counts[token] + times, p)
    text = columns.known(seen[:, None])[:, 0]
    shared = columns.at(text)
    x[:, shared] = _penalised(x[:, shared], counts[text], p)
    x[node, columns.at(token)] = penalised


def _penalised(x: Float[Tensor, "*S"], counts: Float[Tensor, "*#S"], p: SamplingParams) -> Float[Tensor, "*S"]:
    """Tokens of the text, `counts` being how often the answer has them: those of the prompt alone have 0."""
    if p.repetition_penalty != 1.0:
        x = torch.where(x > 0, x / p.repetition_penalty, x * p.repetition_penalty)
    counts = counts.to(x.dtype)
    return x - p.frequency_penalty * counts - p.presence_penalty * (counts > 0).to(x.dtype)


def _banned(request: Request, path: Sequence[int]) -> list[int]:
    """Last tokens of the bad words whose other tokens end the text, and before `min_tokens` the tokens that end it."""
    p, found = request.params, list[int]()
    if p.bad_words:
        tail = request.known_tail(path, max(map(len, p.bad_words)) - 1)
        found = [w[-1] for w in p.bad_words if len(w) == 1 or tuple(tail[-(len(w) - 1) :]) == tuple(w[:-1])]
    return found + list(request.ends) if p.min_tokens > len(request.output) + len(path) else found
