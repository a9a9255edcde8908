"""A recurrent model of a few hundred weights: a state per slot and an entry per token, side by side in one cache.

    h' = tanh(A h + E[token])                           one state per slot
    c' = mean of D[token] over the path, decayed        one entry per token, read along the path
    logits = W [h', c']

A wrong parent, path or commit in either store shows as wrong logits. Every token is computed alone, in float64 and in the
same order, so its bits do not depend on what else is in the pass.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ALL, FINAL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan, Segment, logit_places
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Cache
from draftwood.errors import ModelError
from draftwood.runners.cpu import CpuRunner

HEADS, WIDTH = 2, 6
SIZE = HEADS * WIDTH
DECAY = 0.9  # of an entry's weight with every token behind it


class RecurrentModel:
    """Weights from a seed, large enough that distributions are neither flat nor certain."""

    cache_specs = (
        CacheSpec("h", HEADS, WIDTH, torch.float64, per_slot=True),
        CacheSpec("d", 1, SIZE, torch.float64),
    )

    def __init__(self, vocab_size: int = 23, seed: int = 0, max_positions: int = 4096) -> None:
        self.vocab_size, self.max_positions = vocab_size, max_positions
        noise = torch.Generator().manual_seed(seed)

        def drawn(scale: float, *shape: int) -> Tensor:
            return scale * torch.randn(*shape, generator=noise, dtype=torch.float64)

        self.mix = drawn(2.0 / SIZE**0.5, SIZE, SIZE)  # A: large enough that old tokens matter
        self.tokens = drawn(0.5, vocab_size, SIZE)  # E
        self.entries = drawn(1.0, vocab_size, SIZE)  # D
        self.out = drawn(1.0, vocab_size, 2 * SIZE)  # W

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            vocab_size=self.vocab_size,
            num_layers=1,
            hidden_size=2 * SIZE,
            max_positions=self.max_positions,
            dtype=torch.float64,
            layer_ranges=False,
            batch_invariant=True,
        )

    def runner(self, slots: int = 1, capacity: int = 64) -> CpuRunner:
        """The model with a cache of its own."""
        return CpuRunner(self).open(slots, capacity)

    def forward(
        self, x: ForwardInput, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL
    ) -> ForwardOutput:
        if layers != ALL:
            raise ModelError(f"a recurrent model has one layer, asked for: {layers}")
        hidden = torch.zeros(x.size, 2 * SIZE, dtype=torch.float64)
        columns = x.to_host()
        for s in cache.stage(x):
            state, staged = cache.state("h")[s.slot], cache.staged_states("h")[s.slot]
            entries = cache.store("d")[s.slot, 0]
            for i in range(s.start, s.stop):
                token, entry, parent = columns.ids[i], columns.entries[i], columns.parents[i]
                before = state if parent < 0 else staged[parent]
                h = torch.tanh(self.mix @ before.flatten() + self.tokens[token])
                staged[entry] = h.view(HEADS, WIDTH)
                entries[s.committed + entry] = self.entries[token]
                hidden[i] = torch.cat([h, _decayed(entries[self._path(s, i, entry)])])
        logits = (
            torch.stack([self.head(hidden[i]) for i in x.want.tolist()]) if len(x.want) else hidden[:0] @ self.out.T
        )
        return ForwardOutput(
            logits=logits,
            hidden=hidden,
            logits_index=logit_places(x.want, x.size),
            features={tap: hidden for tap in taps | {FINAL}},
            tokens=x,
        )

    @staticmethod
    def _path(s: Segment, place: int, entry: int) -> list[int]:
        """Places of the entries of a token's whole text, in order."""
        seen = [entry] if s.visible is None else s.visible[place - s.start].nonzero()[:, 0].tolist()
        return [*range(s.committed), *(s.committed + e for e in seen)]

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return torch.cat([self.tokens[ids], self.entries[ids]], dim=-1)

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        return hidden @ (self.out if ids is None else self.out[ids]).T


def _decayed(path: Float[Tensor, "n d"]) -> Float[Tensor, "d"]:
    weight = DECAY ** torch.arange(len(path) - 1, -1, -1, dtype=torch.float64)
    return (weight[:, None] * path).sum(0) / weight.sum()
