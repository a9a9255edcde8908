"""The part of the Runner protocol that the cache answers: the slots of the engine are the slots of the cache."""

from collections.abc import Callable, Hashable, Sequence

from jaxtyping import Int, Shaped
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.protocols import Saved
from draftwood.errors import EngineError


class WithCache:
    """A runner with its cache. A runner that was not opened has none, and computes only embeddings and heads."""

    def __init__(self, cache: DenseCache | None) -> None:
        self._cache = cache

    @property
    def cache(self) -> DenseCache:
        if self._cache is None:
            raise EngineError(f"{type(self).__name__} has no cache\nhint: runner.open(slots, capacity) gives it one")
        return self._cache

    def prefer(self, tokens: Sequence[int], free: Sequence[int], before: Sequence[int] = ()) -> int:
        return self.cache.prefer(tokens, free, before)

    def admit(self, slot: int, tokens: Sequence[int], most: int | None = None, before: Sequence[int] = ()) -> int:
        return self.cache.admit(slot, tokens, most, before)

    def present(self, tokens: Sequence[int], before: Sequence[int] = ()) -> tuple[int, int]:
        return self.cache.present(tokens, before)

    def save(self, slot: int) -> Saved | None:
        return self.cache.save(slot)

    def restore(self, slot: int, saved: Saved, tokens: Sequence[int], most: int | None = None) -> int:
        return self.cache.restore(slot, saved, tokens, most)

    def length(self, slot: int) -> int:
        return self.cache.length(slot)

    def reserve(self, slots: Sequence[int], extra: Sequence[int]) -> None:
        self.cache.reserve(slots, extra)

    def commit(self, slots: Sequence[int], entries: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> None:
        self.cache.commit(slots, entries)

    def read_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"]
    ) -> Shaped[Tensor, "n heads width"]:
        return self.cache.read_pool(name, slots, entries)

    def write_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"], values: Shaped[Tensor, "n heads width"]
    ) -> None:
        self.cache.write_pool(name, slots, entries, values)

    def filled(self, slot: int, name: str, upto: int) -> None:
        self.cache.filled(slot, name, upto)

    def captured(
        self, key: Hashable, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        return function(*inputs)

    def free(self, slots: Sequence[int]) -> None:
        self.cache.free(slots)

    def forget(self) -> None:
        self.cache.forget()

    def check_integrity(self) -> None:
        self.cache.check_integrity()

    @property
    def spare(self) -> int | None:
        return self.cache.spare

    @property
    def capacity(self) -> int:
        return self.cache.capacity

    @property
    def max_cache_tokens(self) -> int:
        return self.cache.max_cache_tokens
