"""A draft vocabulary in the format of EAGLE-3.

d2t   integers [V_d], offsets: column i is token i + d2t[i]
t2d   booleans [V]: whether a token has a column
"""

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.errors import WeightsError
from draftwood.train.formats.conversion import Conversion
from draftwood.train.formats.files import Found


def read_ids(found: Found, rows: int, vocab_size: int, conversion: Conversion) -> Int[Tensor, "W"] | None:
    """Token of each column, or None for the whole vocabulary. WeightsError if d2t and t2d disagree."""
    d2t, t2d = found.tensors.get("d2t"), found.tensors.get("t2d")
    if d2t is None:
        if rows != vocab_size:
            raise WeightsError(f"{found.where}: {rows} of {vocab_size} tokens have columns, but d2t is missing")
        return None
    if d2t.dtype.is_floating_point or d2t.dtype is torch.bool:
        raise WeightsError(f"{found.where}: d2t has type {d2t.dtype}, it should hold integers")
    ids = torch.arange(rows) + d2t.long()
    bad = (ids < 0) | (ids >= vocab_size)
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        raise WeightsError(
            f"{found.where}: d2t sends column {at} to token {int(ids[at])}, out of range: there are {vocab_size}\n"
            "hint: d2t holds offsets, token = column + d2t[column]"
        )
    tokens, counts = ids.unique(return_counts=True)
    if len(tokens) != rows:
        twice = int(tokens[counts > 1][0])
        raise WeightsError(
            f"{found.where}: d2t sends two columns to token {twice}\n"
            "hint: d2t holds offsets, token = column + d2t[column]"
        )
    if t2d is None:
        conversion.note("vocabulary: t2d is missing; d2t is used")
    elif not torch.equal(t2d.bool().nonzero().flatten(), tokens):
        kept = t2d.bool().nonzero().flatten()
        odd = int(torch.cat([kept[~torch.isin(kept, tokens)], tokens[~torch.isin(tokens, kept)]])[0])
        raise WeightsError(f"{found.where}: t2d and d2t disagree, for example about token {odd}")
    if rows == vocab_size and torch.equal(ids, torch.arange(vocab_size)):
        return None
    return ids


def write_ids(ids: Int[Tensor, "W"] | None, vocab_size: int) -> tuple[dict[str, Tensor], Int[Tensor, "W"] | None]:
    """(d2t and t2d, order of the LM-head rows): readers of t2d expect sorted tokens."""
    if ids is None:
        return {}, None
    order = ids.argsort()
    tokens = ids[order].long()
    if len(tokens) == vocab_size:
        return {}, order
    keep = torch.zeros(vocab_size, dtype=torch.bool)
    keep[tokens] = True
    return {"d2t": tokens - torch.arange(len(tokens)), "t2d": keep}, order
