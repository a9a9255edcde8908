"""Models with known distributions: a table instead of a network, behind the same protocol and the same cache.

The model reads its context out of the cache's entries, so a wrong commit, position or mask shows as a wrong distribution.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ALL, FINAL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan, logit_places
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Cache
from draftwood.runners.cpu import CpuRunner

Conditional = Callable[[tuple[int, ...]], Sequence[float]]
"""Text so far -> probabilities of the next token."""


class TableModel:
    """p(next | text) from a function; logits are its logarithms in float64. Its one feature is the length of the text."""

    cache_specs = (CacheSpec("ids", 1, 1, torch.int64),)

    def __init__(self, vocab_size: int, probs: Conditional, max_positions: int = 4096) -> None:
        self.vocab_size, self.probs, self.max_positions = vocab_size, probs, max_positions
        self._known: dict[tuple[int, ...], Tensor] = {}

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            vocab_size=self.vocab_size,
            num_layers=1,
            hidden_size=1,
            max_positions=self.max_positions,
            dtype=torch.float64,
            layer_ranges=False,
        )

    def runner(self, slots: int = 1, capacity: int = 64) -> CpuRunner:
        """The model with a cache of its own."""
        return CpuRunner(self).open(slots, capacity)

    def logits_after(self, text: tuple[int, ...]) -> Float[Tensor, "V"]:
        """log p(. | text)"""
        if text not in self._known:
            self._known[text] = torch.tensor(self.probs(text), dtype=torch.float64).log()
        return self._known[text]

    def forward(
        self, x: ForwardInput, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL
    ) -> ForwardOutput:
        texts: dict[int, tuple[int, ...]] = {}
        store = cache.store("ids")
        for s in cache.stage(x):
            place = s.committed + x.entries[s.start : s.stop]
            store[s.slot, 0, place, 0] = x.ids[s.start : s.stop]
            held = store[s.slot, 0, : s.committed + s.staged, 0].tolist()
            for i in range(s.start, s.stop):
                staged = held[s.committed :]
                if s.visible is not None:
                    staged = [t for t, seen in zip(staged, s.visible[i - s.start].tolist(), strict=True) if seen]
                texts[i] = (*held[: s.committed], *staged)
                if len(texts[i]) != int(x.positions[i]) + 1:
                    raise AssertionError(f"position {int(x.positions[i])} sees {len(texts[i])} tokens: {texts[i]}")
        length = torch.tensor([[float(len(texts.get(i, ())))] for i in range(x.size)], dtype=torch.float64)
        logits = [self.logits_after(texts[i]) for i in x.want.tolist()]
        return ForwardOutput(
            logits=torch.stack(logits) if logits else torch.zeros(0, self.vocab_size, dtype=torch.float64),
            hidden=length,
            logits_index=logit_places(x.want, x.size),
            features={tap: length for tap in taps | {FINAL}},
            tokens=x,
        )

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return ids[..., None].double()

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        raise TypeError("a table has no head: its distributions depend on the text, not on a hidden state")


def context_free(probs: Sequence[float]) -> Conditional:
    """The same distribution everywhere: the cards' fixtures."""
    return lambda text: probs


def random_probs(vocab_size: int, seed: int, *, sharpness: float = 1.0, order: int = 2) -> Conditional:
    """A distribution that depends on the last `order` tokens, fixed by the seed."""

    def probs(text: tuple[int, ...]) -> list[float]:
        place = hash((seed, vocab_size, text[-order:])) & 0x7FFFFFFFFFFFFFFF
        noise = torch.randn(vocab_size, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
        return torch.softmax(sharpness * noise, dim=0).tolist()

    return probs


def near(probs: Conditional, vocab_size: int, seed: int, mix: float) -> Conditional:
    """A draft of `probs`: mixed with another distribution, so that acceptance is about 1 - mix."""
    other = random_probs(vocab_size, seed)

    def mixed(text: tuple[int, ...]) -> list[float]:
        return [(1 - mix) * a + mix * b for a, b in zip(probs(text), other(text), strict=True)]

    return mixed


def joint(probs: Conditional, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> float:
    """Probability of a continuation under a distribution."""
    prob = 1.0
    for i, token in enumerate(tokens):
        prob *= probs(prompt + tokens[:i])[token]
    return prob
