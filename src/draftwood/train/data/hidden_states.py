"""Hidden states of whole texts after the final norm, by the target's ordinary passes: those that its drafters read."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float

from draftwood.core.forward import FINAL
from draftwood.core.host import host_array
from draftwood.core.protocols import Runner
from draftwood.train.loop.teacher import read_features


def final_states(target: Runner) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """A function from texts to their hidden states, [T, H] each."""

    @torch.no_grad()
    def read(texts: Sequence[np.ndarray]) -> list[Float[np.ndarray, "T H"]]:
        sizes = [len(text) for text in texts]
        ids, live = (torch.zeros(len(texts), max(sizes), dtype=kind) for kind in (torch.int64, torch.bool))
        for b, text in enumerate(texts):
            ids[b, : len(text)] = torch.from_numpy(text.astype(np.int64))
            live[b, : len(text)] = True
        hidden = host_array(read_features(target, ids, live, frozenset({FINAL}))[FINAL])
        return [each[:size] for each, size in zip(hidden, sizes, strict=True)]

    return read
