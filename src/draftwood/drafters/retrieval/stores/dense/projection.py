"""Projection: from a hidden state to a key. Building and looking up share it, because a key means nothing without it.

key = unit((h - mean) / deviation @ matrix)     the columns of `matrix` are the first principal components
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

DIMS = 64
_BLOCK = 1 << 14  # hidden states multiplied at a time


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    mean: Float[np.ndarray, "H"]
    deviation: Float[np.ndarray, "H"]
    matrix: Float[np.ndarray, "H D"]

    @staticmethod
    def fit(hidden: Float[np.ndarray, "N H"], dims: int = DIMS) -> "Projection":
        """To these hidden states. A dimension that never changes says nothing and counts as zero."""
        mean, deviation = hidden.mean(0, dtype=np.float64), hidden.std(0, dtype=np.float64)
        mean, deviation = mean.astype(np.float32), np.where(deviation > 0, deviation, 1.0).astype(np.float32)
        covariance = np.zeros((hidden.shape[1],) * 2)
        for at in range(0, len(hidden), _BLOCK):
            z = (hidden[at : at + _BLOCK] - mean) / deviation
            covariance += z.T @ z
        _, vectors = np.linalg.eigh(covariance / len(hidden))  # in rising order
        return Projection(mean, deviation, np.ascontiguousarray(vectors[:, ::-1][:, :dims], dtype=np.float32))

    def keys(self, hidden: Float[np.ndarray, "N H"]) -> Float[np.ndarray, "N D"]:
        """Unit vectors in half precision; zeros for a hidden state that is the mean itself."""
        keys = ((np.asarray(hidden, dtype=np.float32) - self.mean) / self.deviation) @ self.matrix
        size = np.linalg.norm(keys, axis=1, keepdims=True)
        return (keys / np.where(size > 0, size, 1.0)).astype(np.float16)
