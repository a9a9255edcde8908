"""Which tokens a drafter's law covers: those the target writes most."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from draftwood.drafters.frequent import count_written
from draftwood.errors import OptionError
from draftwood.train.dialogues import Dialogue


def counts(dialogues: Iterable[Dialogue], vocab: int) -> np.ndarray:
    """How often the target wrote each token. [vocab]"""
    return count_written(dialogues, vocab)


def most_frequent(total: np.ndarray, rows: int, always: Sequence[int] = ()) -> Tensor:
    """Ids of the `rows` most frequent tokens, ascending; `always` (ends of turns) are among them. The lowest id first
    among equals."""
    if rows < 1:
        raise OptionError(f"rows cannot be {rows}\nhint: at least 1")
    order = np.argsort(-total, kind="stable")
    first = list(dict.fromkeys([*always, *order.tolist()]))[: min(rows, len(total))]
    return torch.tensor(sorted(first))


def coverage(total: np.ndarray, keep: Tensor) -> float:
    """Share of what was written that the kept tokens can say."""
    return float(total[keep.cpu().numpy()].sum() / max(total.sum(), 1))
