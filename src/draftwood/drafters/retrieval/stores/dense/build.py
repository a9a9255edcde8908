"""Building a dense datastore: the target reads every text, and the hidden state before each token is that token's key.

    text      x0  x1  x2  x3  x4        key of place 1: the hidden state after x0, which produced x1
    keys          h0  h1  h2            a key needs a token behind the one it produced: what is drafted begins there

The projection is fitted to the first hidden states, as many as fit in memory.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Float

from draftwood.core.model_info import ModelInfo
from draftwood.drafters.retrieval.stores.build import Piece
from draftwood.drafters.retrieval.stores.container import DENSE, HEAD
from draftwood.drafters.retrieval.stores.dense.format import MOST_TOKENS, DenseInfo, backend_of, write_ends
from draftwood.drafters.retrieval.stores.dense.neighbours import graph_of
from draftwood.drafters.retrieval.stores.dense.projection import DIMS, Projection
from draftwood.drafters.retrieval.stores.dense.store import DenseStore
from draftwood.drafters.retrieval.stores.dense.windows import Window, windows
from draftwood.drafters.retrieval.stores.writing import replacing
from draftwood.errors import OptionError, StoreError, need_at_least

WINDOW = 1024  # tokens of a text that the target reads at once
TOGETHER = 8  # windows handed over at once
FITTED = 1 << 27  # numbers of hidden states that the projection is fitted to: half a gigabyte

Reader = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
"""The hidden states after the final norm of some texts: one [T, H] each."""
Progress = Callable[[str, int, int], None]


def build_dense(
    path: Path,
    pieces: Sequence[Piece],
    read: Reader,
    target: ModelInfo,
    *,
    window: int = WINDOW,
    dims: int = DIMS,
    fitted: int = FITTED,
    progress: Progress = lambda stage, done, total: None,
) -> DenseInfo:
    """Writes the store of this target. `progress(stage, done, total)`: in tokens read, then in keys. OSError of the output
    becomes a StoreError; errors of `pieces` and `read` pass through."""
    need_at_least("datastore", window=(window, 2), dims=(dims, 1))
    if not target.fingerprint:
        raise OptionError("a dense datastore belongs to a model that was loaded by name\nhint: load the target by name")
    size = min(window, target.max_positions)
    made = DenseInfo(target.vocab_size, target.hidden_size, target.fingerprint, backend_of(target), target.name)
    with replacing(path, DENSE) as (file, partial):
        file.write(bytes(HEAD.size))
        found, digest = _Keys(made, dims, max(fitted // target.hidden_size, 1)), hashlib.sha256()
        done, total = 0, sum(len(piece.ids) for piece in pieces)
        for group in _groups(windows(pieces, size)):
            progress("reading texts", done, total)
            for each, hidden in zip(group, read([each.ids for each in group]), strict=True):
                tokens = found.take(each, hidden).tobytes()
                digest.update(tokens)
                file.write(tokens)
                done += len(each.ids)
        info = _write_sections(file, found, digest.hexdigest(), progress)
        write_ends(file, info)
        file.flush()
        DenseStore.open(partial)  # as any reader would, so that what is about to be published is known to open
    return info


def _groups(found: Iterator[Window]) -> Iterator[list[Window]]:
    while group := list(islice(found, TOGETHER)):
        yield group


class _Keys:
    """Keys and places so far. Hidden states are kept as they are until the projection is fitted to them."""

    def __init__(self, info: DenseInfo, dims: int, fitted: int) -> None:
        self.info, self.dims, self.fitted = info, min(dims, info.hidden_size), fitted
        self.size = self.documents = self.num_waiting = 0
        self.waiting: list[np.ndarray] = []
        self.keys: list[np.ndarray] = []
        self.places: list[np.ndarray] = []
        self.projection: Projection | None = None

    def take(self, window: Window, hidden: Float[np.ndarray, "T H"]) -> np.ndarray:
        """The tokens to write for this window: its spans, a separator after each that ends."""
        info, written = self.info, list[np.ndarray]()
        ids, dtype = window.ids, f"<u{info.width}"
        if len(ids) and (int(ids.max()) >= info.vocab_size or int(ids.min()) < 0):
            raise ValueError(f"token ids outside a vocabulary of {info.vocab_size}")
        for start, stop, ends in window.spans:
            first = max(start, 1)  # nothing produced the first token of a window
            last = stop - 1 if ends else stop  # the last token of a text has nothing behind it
            if first < last:
                self._add(hidden[first - 1 : last - 1])
                self.places.append(np.arange(self.size + first - start, self.size + last - start))
            written.append(ids[start:stop].astype(dtype))
            if ends:
                written.append(np.array([info.separator], dtype))
            self.size += stop - start + ends
            self.documents += ends
        if self.size > MOST_TOKENS:
            raise OptionError(f"the texts have more than {MOST_TOKENS} tokens\nhint: build several stores")
        return np.concatenate(written)

    def _add(self, hidden: Float[np.ndarray, "N H"]) -> None:
        if not np.isfinite(hidden).all():
            raise StoreError("the target's hidden states are not finite\nhint: another --dtype")
        if self.projection is not None:
            self.keys.append(self.projection.keys(hidden))
            return
        self.waiting.append(hidden.astype(np.float32))
        self.num_waiting += len(hidden)
        if self.num_waiting >= self.fitted:
            self.fit()

    def fit(self) -> Projection:
        """The projection. Fitted once; then waiting hidden states become keys."""
        if self.projection is None:
            if not self.waiting:
                raise OptionError(
                    "no text has three tokens, so there is nothing to look up and draft\nhint: longer texts"
                )
            self.projection = Projection.fit(np.concatenate(self.waiting), self.dims)
            self.keys = [self.projection.keys(hidden) for hidden in self.waiting]
            self.waiting = []
        return self.projection


def _write_sections(file: BinaryIO, found: _Keys, tokens: str, progress: Progress) -> DenseInfo:
    """Everything behind the tokens, whose digest is `tokens`."""
    projection, keys = found.fit(), np.concatenate(found.keys)
    graph, made_by = graph_of(keys, lambda done, total: progress("indexing", done, total))
    info = replace(
        found.info,
        dims=found.dims,
        num_documents=found.documents,
        size=found.size,
        num_keys=len(keys),
        graph_bytes=len(graph),
        graph=made_by,
    )
    sections: dict[str, bytes | bytearray] = {
        "mean": projection.mean.astype("<f4").tobytes(),
        "deviation": projection.deviation.astype("<f4").tobytes(),
        "matrix": projection.matrix.astype("<f4").tobytes(),
        "places": np.concatenate(found.places).astype("<u4").tobytes(),
        "keys": keys.astype("<f2").tobytes(),
        "graph": graph,
    }
    for name, data in sections.items():
        start, _ = info.sections()[name]
        file.write(bytes(start - file.tell()))
        file.write(data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sections.items()}
    return replace(info, sha256={"tokens": tokens} | digests)
