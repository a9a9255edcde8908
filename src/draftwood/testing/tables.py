"""Models with known laws: a table instead of a network, behind the same protocol and the same cache.

The model reads its context out of the cache's rows, so a wrong commit, position or mask shows as a wrong law.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.passes import ALL, FINAL, LayerPlan, RowSpec, Seen, Tokens, logit_places
from draftwood.core.protocols import Cache

Law = Callable[[tuple[int, ...]], Sequence[float]]
"""Text so far -> probabilities of the next token."""


class TableModel:
    """p(next | text) from a function; logits are its logarithms in float64. Its one feature is the length of the text."""

    def __init__(self, vocab: int, law: Law, max_positions: int = 4096) -> None:
        self._vocab, self.law, self._max_positions = vocab, law, max_positions
        self._known: dict[tuple[int, ...], Tensor] = {}

    @property
    def vocab(self) -> int:
        return self._vocab

    @property
    def num_layers(self) -> int:
        return 1

    @property
    def max_positions(self) -> int:
        return self._max_positions

    @property
    def row_specs(self) -> tuple[RowSpec, ...]:
        return (RowSpec("ids", 1, 1, torch.int64),)

    def make_cache(self, slots: int, capacity: int = 64, max_rows: int | None = None) -> DenseCache:
        return DenseCache(self.row_specs, slots=slots, capacity=capacity, max_rows=max_rows)

    def row(self, text: tuple[int, ...]) -> Float[Tensor, "V"]:
        """log p(. | text)"""
        if text not in self._known:
            self._known[text] = torch.tensor(self.law(text), dtype=torch.float64).log()
        return self._known[text]

    def forward(self, x: Tokens, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> Seen:
        texts: dict[int, tuple[int, ...]] = {}
        store = cache.store("ids")
        for s in cache.stage(x):
            place = s.committed + x.rows[s.start : s.stop]
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
        logits = [self.row(texts[i]) for i in x.want.tolist()]
        return Seen(
            logits=torch.stack(logits) if logits else torch.zeros(0, self.vocab, dtype=torch.float64),
            hidden=length,
            at=logit_places(x.want, x.size),
            features={tap: length for tap in taps | {FINAL}},
            tokens=x,
        )

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return ids[..., None].double()

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        raise TypeError("a table has no head: its laws depend on the text, not on a hidden state")


def context_free(law: Sequence[float]) -> Law:
    """The same law everywhere: the cards' fixtures."""
    return lambda text: law


def random_law(vocab: int, seed: int, *, sharpness: float = 1.0, order: int = 2) -> Law:
    """A law that depends on the last `order` tokens, fixed by the seed."""

    def law(text: tuple[int, ...]) -> list[float]:
        place = hash((seed, vocab, text[-order:])) & 0x7FFFFFFFFFFFFFFF
        noise = torch.randn(vocab, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
        return torch.softmax(sharpness * noise, dim=0).tolist()

    return law


def near(law: Law, vocab: int, seed: int, mix: float) -> Law:
    """A draft of `law`: mixed with another law, so that acceptance is about 1 - mix."""
    other = random_law(vocab, seed)

    def mixed(text: tuple[int, ...]) -> list[float]:
        return [(1 - mix) * a + mix * b for a, b in zip(law(text), other(text), strict=True)]

    return mixed


def joint(law: Law, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> float:
    """Probability of a continuation under a law."""
    prob = 1.0
    for i, token in enumerate(tokens):
        prob *= law(prompt + tokens[:i])[token]
    return prob
