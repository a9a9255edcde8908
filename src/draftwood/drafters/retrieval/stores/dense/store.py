"""DenseStore: an open dense datastore. Memory-mapped and read-only, so processes share its pages.

Opening compares the length of the file, the checksums of its ends, of the projection and of the graph, which is followed
unchecked, and looks at some keys. `check` reads everything. Damage that neither has seen cannot lead out of the file.
"""

import hashlib
import mmap
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float, Integer

from draftwood.core.model_info import ModelInfo
from draftwood.drafters.retrieval.stores.container import BLOCK, DENSE, damaged, mapped, need_whole
from draftwood.drafters.retrieval.stores.dense.format import SECTIONS, DenseInfo, backend_of, read_info
from draftwood.drafters.retrieval.stores.dense.neighbours import EveryKey, Neighbours, open_graph
from draftwood.drafters.retrieval.stores.dense.projection import Projection
from draftwood.errors import StoreError

SAMPLES = 256  # keys that are looked at when a store is opened
FOLLOWED = ("mean", "deviation", "matrix", "graph")  # sections whose checksums are compared then


@dataclass(frozen=True, slots=True, eq=False)
class DenseStore:
    path: Path
    info: DenseInfo
    projection: Projection = field(repr=False)
    tokens: Integer[np.ndarray, "T"] = field(repr=False)
    places: Integer[np.ndarray, "K"] = field(repr=False)
    keys: Float[np.ndarray, "K D"] = field(repr=False)
    neighbours: Neighbours = field(repr=False)
    data: mmap.mmap = field(repr=False)

    @staticmethod
    def open(path: Path | str) -> "DenseStore":
        """StoreError says what is wrong with the file."""
        path = Path(path)
        info, data = mapped(path, DENSE, read_info)
        at = info.sections()

        def section(name: str, dtype: str) -> np.ndarray:
            start, size = at[name]
            return np.frombuffer(data, dtype, size // np.dtype(dtype).itemsize, start)

        _compare(path, info, data, FOLLOWED)
        keys = section("keys", "<f2").reshape(info.num_keys, info.dims)
        start, size = at["graph"]
        store = DenseStore(
            path,
            info,
            Projection(
                section("mean", "<f4"),
                section("deviation", "<f4"),
                section("matrix", "<f4").reshape(info.hidden_size, info.dims),
            ),
            section("tokens", f"<u{info.width}"),
            section("places", "<u4"),
            keys,
            open_graph(memoryview(data)[start : start + size], keys) if size else EveryKey(keys),
            data,
        )
        store._look_at_some()
        return store

    def need_target(self, target: ModelInfo) -> None:
        """StoreError if the hidden states are another model's, or the same model's computed otherwise."""
        ours, theirs = (self.info.target, self.info.backend), (target.fingerprint, backend_of(target))
        if ours == theirs and self.info.hidden_size == target.hidden_size:
            return
        named = f" ({self.info.model})" if self.info.model else ""
        what = "another model" if self.info.target != target.fingerprint else "another backend"
        raise StoreError(
            f"datastore {self.path} holds hidden states of {what}: {' on '.join(ours)}{named}; the target is "
            f"{' on '.join(theirs)}\nhint: build one for this target, with the same --dtype: `{DENSE.make}`"
        )

    def nearest(
        self, hidden: Float[np.ndarray, "B H"], count: int
    ) -> tuple[Integer[np.ndarray, "B count"], Float[np.ndarray, "B count"]]:
        """Where the tokens stand that the most similar hidden states produced, most similar first, with their cosines; -1
        where there are no more. StoreError if the file was cut while it is open."""
        need_whole(self.path, self.data)
        numbers, near = self.neighbours.search(self.projection.keys(hidden), count)
        places = self.places[np.maximum(numbers, 0)].astype(np.int64)
        return np.where((numbers >= 0) & (places < self.info.size), places, -1), near

    def check(self) -> None:
        """StoreError names the first section whose bytes do not match their checksum. Reads the whole file."""
        need_whole(self.path, self.data)
        _compare(self.path, self.info, self.data, SECTIONS)

    def _look_at_some(self) -> None:
        some = np.linspace(0, self.info.num_keys - 1, SAMPLES).astype(np.int64)
        places = self.places[some].astype(np.int64)
        if int(places.max()) >= self.info.size or int(self.tokens[places].max()) >= self.info.separator:
            raise damaged(self.path, "a key leads to no token")
        if not np.isfinite(self.keys[some]).all():
            raise damaged(self.path, "a key is not a number")


def digest_of(data: mmap.mmap, start: int, size: int) -> str:
    """SHA-256 of some bytes, read in pieces."""
    digest = hashlib.sha256()
    for at in range(start, start + size, BLOCK):
        digest.update(data[at : min(at + BLOCK, start + size)])
    return digest.hexdigest()


def _compare(path: Path, info: DenseInfo, data: mmap.mmap, names: tuple[str, ...]) -> None:
    at = info.sections()
    for name in names:
        if digest_of(data, *at[name]) != info.sha256[name]:
            raise damaged(path, f"the section {name} does not match its checksum")
