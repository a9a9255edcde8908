"""Superposition: how k drafts read one pass. The weights of their embeddings, and the scores of the next tokens.

input          sum over drafts of g_i E[last token of draft i], g = softmax(log P(draft))      one position, one KV entry
log s_i(v)     (1 - alpha) log p(v) + alpha log r_i(v)       p of the pass, r_i of the n-grams behind draft i
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardInput, HostInput
from draftwood.core.host import host, put
from draftwood.core.protocols import Runner
from draftwood.core.sampling.truncation import top
from draftwood.drafters.superposed.beam import Beam, Ranked
from draftwood.drafters.superposed.ngrams import LONGEST, Counts, mixture
from draftwood.errors import OptionError, need_at_least

UNKNOWN = -200.0  # log score of a token where the n-grams rule out all of a draft's candidates, as published
Tail = Callable[[Sequence[int], int], list[int]]
"""The last tokens of the text followed by these: so many."""


@dataclass(frozen=True, slots=True)
class Superposition:
    """`k` drafts; `candidates` tokens are kept of each distribution, at a `temperature`. None: the published number for 3 or
    10 drafts, and between them what lies between. `alpha`: the weight of the n-grams."""

    k: int = 3
    candidates: int | None = None
    temperature: float | None = None
    alpha: float = 0.54

    def __post_init__(self) -> None:
        need_at_least("superposition", k=(self.k, 1))
        if self.candidates is not None:
            need_at_least("superposition", candidates=(self.candidates, self.k))
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise OptionError(f"superposition: temperature cannot be {self.temperature!r}\nhint: above 0, such as 0.06")
        if not 0 <= self.alpha < 1:
            raise OptionError(f"superposition: alpha cannot be {self.alpha!r}\nhint: from 0 to less than 1")

    @property
    def kept(self) -> int:
        return 3 * self.k if self.candidates is None else self.candidates

    @property
    def pass_temperature(self) -> float:
        """The temperature of the pass."""
        return 0.06 * (1 + min(max(self.k - 3, 0), 7) / 7) if self.temperature is None else self.temperature

    def begin(self) -> Beam:
        return Beam(self.k)

    def advanced(
        self,
        beam: Beam,
        found: Sequence[Ranked],
        counts: Counts | None,
        tail: Tail,
        ended: Callable[[Sequence[int]], bool],
    ) -> Beam:
        """One token more. `found`: for each draft the best tokens of the pass."""
        kept = self.kept if beam.alive[0].tokens else max(self.kept, 2 * self.k)
        best = [each.first(kept) for each in found]
        return beam.advance(best, self.gains(beam, best, counts, tail), ended)

    def gains(self, beam: Beam, ranked: Sequence[Ranked], counts: Counts | None, tail: Tail) -> list[list[float]]:
        """log s of each candidate of each draft."""
        logp = [each.tempered(self.pass_temperature) for each in ranked]
        if not self.alpha or counts is None or not beam.alive[0].tokens:  # the first tokens have one distribution
            return logp
        known = [
            mixture(counts, tail(draft.tokens, LONGEST + len(draft.tokens)), each.tokens, len(draft.tokens))
            for draft, each in zip(beam.alive, ranked, strict=True)
        ]
        if not any(any(r) for r, _ in known):
            return logp
        if counts.small:
            return [self._backed_off(own, *each) for own, each in zip(logp, known, strict=True)]
        return [self._filtered(own, r) for own, (r, _) in zip(logp, known, strict=True)]

    def _filtered(self, logp: list[float], r: list[float]) -> list[float]:
        """What never followed the draft drops out; a draft that would lose every candidate falls behind all others."""
        a = self.alpha
        if not any(r):
            return [(1 - a) * p + UNKNOWN for p in logp]
        return [(1 - a) * p + a * math.log(x) if x else -math.inf for p, x in zip(logp, r, strict=True)]

    def _backed_off(self, logp: list[float], r: list[float], known: float) -> list[float]:
        """The weight of contexts that do not occur is the model's own."""
        a = self.alpha
        mixed = [x + (1 - known) * math.exp(p) for p, x in zip(logp, r, strict=True)]
        return [(1 - a) * p + a * math.log(x) if x else p for p, x in zip(logp, mixed, strict=True)]


def ranked(logits: Float[Tensor, "R W"], count: int, ids: Int[Tensor, "W"] | None = None) -> list[Ranked]:
    """The best tokens of each distribution, in one host read. `ids`: the token of each column. Banned ones are left out."""
    x = logits if logits.dtype == torch.float64 else logits.float()
    value, column = top(x, min(count, x.shape[-1]))
    token = column if ids is None else ids[column]
    # By way of a softmax, which is one operation: the others of a logsumexp wake all threads for a few thousand numbers.
    total = value[:, :1] - x.softmax(-1).gather(1, column[:, :1]).log()
    rows = host(torch.cat([value.double(), token.double(), total.double()], dim=-1))
    found: list[Ranked] = []
    for row in rows:
        size = len(row) // 2
        kept = [i for i, logit in enumerate(row[:size]) if math.isfinite(logit)]
        found.append(Ranked([int(row[size + i]) for i in kept], [row[i] for i in kept], row[-1]))
    return found


def mixed_input(
    runner: Runner, beams: Sequence[Beam], slots: list[int], entries: list[int], positions: list[int]
) -> ForwardInput:
    """One token for each slot, behind the staged entry before it (-1: the committed text), that enters the first layer as
    the superposed embedding of its beam."""
    device = runner.info.device
    shares = [beam.weights() for beam in beams]
    wide = max(map(len, shares))
    # Padded with weights of 0, so that one sum serves all: it is exact where a beam has one token.
    ids = [[*share, *[0] * (wide - len(share))] for share in shares]
    weights = [[*share.values(), *[0.0] * (wide - len(share))] for share in shares]
    embedded = runner.embed(put(ids, device))
    hidden = (embedded * put(weights, device, torch.float64).to(embedded.dtype)[..., None]).sum(1)
    first = [max(share, key=lambda token: share[token]) for share in shares]  # for the record: no layer reads it
    columns = HostInput(first, slots, entries, [entry - 1 for entry in entries])
    return ForwardInput.of(columns, positions, list(range(len(beams))), device, hidden)
