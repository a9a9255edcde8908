"""Dense datastores of a few texts, with hidden states that any test can compute: a fading sum of the tokens' vectors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftwood.core.model_info import ModelInfo
from draftwood.drafters.retrieval.stores.build import Piece
from draftwood.drafters.retrieval.stores.dense.build import build_dense
from draftwood.drafters.retrieval.stores.dense.store import DenseStore

HIDDEN = 12


def model_info(vocab_size: int = 8, **changed: Any) -> ModelInfo:
    known: dict[str, Any] = {
        "num_layers": 1,
        "hidden_size": HIDDEN,
        "max_positions": 4096,
        "fingerprint": "f00d",
        "backend": "float32",
    }
    return ModelInfo(vocab_size=vocab_size, **{**known, **changed})


def fading(texts: Sequence[Sequence[int] | np.ndarray], hidden_size: int = HIDDEN) -> list[np.ndarray]:
    """h[i] = 0.6 h[i - 1] + the vector of token i."""
    found: list[np.ndarray] = []
    for text in texts:
        h, rows = np.zeros(hidden_size), list[np.ndarray]()
        for token in text:
            h = 0.6 * h + np.random.default_rng(int(token)).standard_normal(hidden_size)
            rows.append(h)
        found.append(np.array(rows, dtype=np.float32))
    return found


def lengths(texts: Sequence[Sequence[int] | np.ndarray]) -> list[np.ndarray]:
    """The one feature of a table model: the length of the text so far."""
    return [np.arange(1, len(text) + 1, dtype=np.float32)[:, None] for text in texts]


def pieces_of(documents: Sequence[Sequence[int]]) -> list[Piece]:
    return [Piece(np.array(document, dtype=np.int64)) for document in documents]


def made_dense(path: Path, documents: Sequence[Sequence[int]], vocab_size: int = 8, **options: Any) -> DenseStore:
    info = options.pop("info", None) or model_info(vocab_size, dtype=torch.float32)
    build_dense(path, pieces_of(documents), options.pop("read", fading), info, **options)
    return DenseStore.open(path)
