"""Sampler: from logits to distributions and tokens, by the sampling options of each sequence.

Here, and nowhere else, is decided who computes a distribution: the backend's kernels, where it has any and they know the
options, or stock operations. The two differ in the last bits, so the options of a sequence decide about it, never those of
the others in the batch.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.forward import ForwardOutput
from draftwood.core.host import put
from draftwood.core.sampling.draft_probs import Aligned, DraftProbs
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.sampling.truncation import likeliest, top_k, top_p


class Sampler:
    """The sampling options of B sequences, made once per round."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device | str) -> None:
        self.params = tuple(params)
        self.device = device
        self.any_greedy = any(p.greedy for p in params)
        self.all_greedy = all(p.greedy for p in params)
        self._columns: dict[tuple[str, torch.dtype], Tensor] = {}

    @cached_property
    def sparse(self) -> bool:
        """Whether distributions hold few tokens: where the options of every sequence truncate, and on the host, where few
        tokens are cheap to find. One answer for the round, so that what was asked for at different times fits together."""
        return host.on_host(self.device) and all(p.greedy or p.top_k or p.top_p < 1 or p.min_p > 0 for p in self.params)

    @cached_property
    def _short(self) -> list[bool]:
        """Sequences whose truncated distributions kernels can make."""
        return [p.greedy or (not p.top_k and (p.top_p < 1 or p.min_p > 0)) for p in self.params]

    @cached_property
    def whole(self) -> list[bool]:
        """Sequences whose distributions are softmax(logits / temperature) and nothing else."""
        return [not (p.greedy or p.top_k or p.top_p < 1 or p.min_p > 0) for p in self.params]

    def take(self, sequences: Sequence[int]) -> "Sampler":
        """The options of some sequences, which may come several times."""
        if len(sequences) == len(self.params) and list(sequences) == list(range(len(self.params))):
            return self
        return Sampler([self.params[b] for b in sequences], self.device)

    def column(self, name: str, dtype: torch.dtype) -> Tensor:
        """One option of all sequences."""
        if (name, dtype) not in self._columns:
            self._columns[name, dtype] = put([getattr(p, name) for p in self.params], self.device, dtype)
        return self._columns[name, dtype]

    def greedy(self) -> Bool[Tensor, "B"]:
        return self.column("greedy", torch.bool)

    def temperature(self, factor: float = 1.0) -> list[float] | None:
        """What a ranked distribution divides its logits by, if no sequence truncates. `factor`: of a draft's temperature."""
        if any(p.top_k or p.top_p < 1 or p.min_p > 0 for p in self.params):
            return None
        return [1.0 if p.greedy else p.temperature * factor for p in self.params]

    def certain(self, probs: Float[Tensor, "B *S W"]) -> Float[Tensor, "B *S W"]:
        """The same distributions, of which greedy sequences take the best token alone. One of zeros stays as it is."""
        if not self.any_greedy:
            return probs
        sure = self.greedy().view(-1, *[1] * (probs.ndim - 1)) & (probs > 0).any(-1, keepdim=True)
        return torch.where(sure, _one_hot(probs), probs)

    # From the logits of a pass. Distribution i is that of row `at[i]` by the options of sequence `sequences[i]`.

    def probs(self, output: ForwardOutput, at: Int[Tensor, "R"], sequences: Sequence[int]) -> TokenProbs:
        """Packed if the round is `sparse`, else dense; dense also where a row of logits is no distribution."""
        own = self.take(sequences)
        found = own._by_kernels(output, at)
        if found is None:
            x = _rows(output.logits, at)
            found = own._packed(x) if self.sparse else None
            found = TokenProbs(own.dense(x[:, None])[:, 0], x.shape[1]) if found is None else found
        if self.sparse == (found.ids is not None):
            return found
        dense = found.dense()
        packed = likeliest(dense, torch.ones(len(dense), dtype=torch.float64)) if self.sparse else None
        return TokenProbs(dense, dense.shape[1]) if packed is None else packed

    def aligned(
        self,
        output: ForwardOutput,
        at: Int[Tensor, "R"],
        sequences: Sequence[int],
        tokens: Int[Tensor, "R C"],
        q: DraftProbs | None,
        q_index: Int[Tensor, "R"],
    ) -> Aligned | None:
        """By kernels, p and distributions of q over the same columns; `at` -1: none is asked for. None: they cannot."""
        kernels, vocab_size = output.kernels, output.logits.shape[1]
        if kernels is None or q is None or not q.kernels_read(vocab_size) or not all(self._short):
            return None
        own = self.take(sequences).params
        return kernels.aligned(output.logits, at, own, output.best, tokens, q.prob, q_index)

    def picked(self, output: ForwardOutput) -> list[bool]:
        """Which sequences' tokens kernels pick: from whole distributions as well, so that none has to be stored."""
        return [output.kernels is not None and not p.top_k for p in self.params]

    def pick(self, output: ForwardOutput, at: Int[Tensor, "B"], u: Float[Tensor, "B 3"]) -> Int[Tensor, "B"]:
        """A token of each sequence by kernels, from three uniforms; `at` -1: none is asked for. Only if all are `picked`."""
        assert output.kernels is not None
        return output.kernels.pick(output.logits, at, self.params, output.best, u)

    def _by_kernels(self, output: ForwardOutput, at: Int[Tensor, "R"]) -> TokenProbs | None:
        """All distributions, if kernels make some of them; ours are the options of each."""
        kernels = output.kernels
        if kernels is None or not any(self._short):
            return None
        if all(self._short):
            return kernels.probs(output.logits, at, self.params, output.best)
        short = [i for i, yes in enumerate(self._short) if yes]
        others = [i for i, yes in enumerate(self._short) if not yes]
        found = kernels.probs(output.logits, at[short], [self.params[i] for i in short], output.best)
        if found is None:
            return None
        probs = output.logits.new_empty(len(at), output.logits.shape[1])
        probs[short] = found.dense()
        probs[others] = self.take(others).dense(output.logits[at[others]][:, None])[:, 0]
        return TokenProbs(probs, probs.shape[1])

    def _packed(self, x: Float[Tensor, "R V"]) -> TokenProbs | None:
        """By stock operations. None: some row is no distribution."""
        x = x if x.dtype == torch.float64 else x.float()
        prob = _one_hot(x) if self.all_greedy else self._softmax(x[:, None])[:, 0]
        if self.any_greedy and not self.all_greedy:
            prob = torch.where(self.greedy()[:, None], _one_hot(x), prob)
        return likeliest(prob, self.column("top_p", torch.float64))

    # By stock operations alone: what drafts are drawn from.

    def drafted(self, logits: Float[Tensor, "B K W"], factor: float) -> Float[Tensor, "B K W"]:
        """A draft's logits where its temperature is `factor` times the request's; greedy sequences keep theirs."""
        if factor == 1 or self.all_greedy:
            return logits
        x = logits if logits.dtype == torch.float64 else logits.float()
        return x / torch.where(self.greedy(), 1.0, factor).to(x.dtype)[:, None, None]

    def dense(self, logits: Float[Tensor, "B K W"], ranked: bool = False) -> Float[Tensor, "B K W"]:
        """Probabilities after temperature and truncation; those of greedy sequences are one-hot. At least float32.

        `ranked`: greedy sequences keep the probabilities of temperature 1, for those who ask for the second best token.
        """
        x = logits if logits.dtype == torch.float64 else logits.float()
        if self.all_greedy and not ranked:
            return _one_hot(x)
        prob = self._softmax(x)
        if any(p.top_p < 1 for p in self.params):
            prob = top_p(prob, self.column("top_p", torch.float64))
        return torch.where(self.greedy()[:, None, None], _one_hot(x), prob) if self.any_greedy and not ranked else prob

    def _softmax(self, x: Float[Tensor, "B K W"]) -> Float[Tensor, "B K W"]:
        """Probabilities before top-p."""
        any_top_k, any_min_p = any(p.top_k for p in self.params), any(p.min_p > 0 for p in self.params)
        if not any_top_k and not any_min_p and all(p.greedy or p.temperature == 1 for p in self.params):
            return torch.softmax(x, dim=-1)
        temperature = self.column("temperature", x.dtype)[:, None, None]
        greedy = self.greedy()[:, None, None]
        # The best logit becomes 0 first, so that no temperature, however small, makes infinities that cancel.
        scaled = (x - x.amax(-1, keepdim=True)) / torch.where(greedy, torch.ones_like(temperature), temperature)
        if any_min_p:
            floor = self.column("min_p", x.dtype)[:, None, None]
            scaled = scaled.masked_fill(scaled < floor.log(), -torch.inf)
        if any_top_k:
            scaled = top_k(scaled, [p.top_k for p in self.params])
        return torch.softmax(scaled, dim=-1)


def best_of(x: Float[Tensor, "*S W"]) -> Int[Tensor, "*S"]:
    """The place of the greatest; -1 where some are not numbers, or none is finite."""
    value, place = x.max(-1)
    return torch.where(value.isfinite(), place, -1)


def _one_hot(x: Float[Tensor, "*S W"]) -> Float[Tensor, "*S W"]:
    """The best token alone; nothing where x is not numbers."""
    best = best_of(x)[..., None]
    return torch.zeros_like(x).scatter_(-1, best.clamp_min(0), (best >= 0).to(x.dtype))


def _rows(logits: Float[Tensor, "U V"], at: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
    """Some rows; where they lie one after another, without a copy."""
    listed: list[int] = host.host(at) if host.on_host(at.device) else []
    if listed and listed == list(range(listed[0], listed[0] + len(listed))):
        return logits[listed[0] : listed[0] + len(listed)]
    return logits[at]
