"""The target as teacher: it computes the features of each batch while training runs, so none are stored.

Features come from the target's own runner, so they are those that the drafter reads when it drafts.
"""

from time import perf_counter

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.host import host, on_host
from draftwood.core.host_tree import HostTree
from draftwood.core.protocols import Runner
from draftwood.core.score import KnownTokens, assemble_lists
from draftwood.core.train_plan import Shown
from draftwood.core.tree import TokenTree

_CHUNK, _WIDE = 512, 8192  # tokens of one pass on a CPU, and on an accelerator


class Teacher:
    """Computes a frozen model's features, embeddings and LM-head rows."""

    def __init__(self, target: Runner) -> None:
        self.target = target
        # By the address of `keep`, which is stored too, so that the address is not used again.
        self._rows: dict[int, tuple[Tensor | None, Tensor]] = {}

    @torch.no_grad()
    def show(
        self,
        ids: Int[Tensor, "B T"],
        answer: Bool[Tensor, "B T"],
        live: Bool[Tensor, "B T"],
        taps: frozenset[int],
        seed: int,
        prompt_share: float = 0.0,
    ) -> Shown:
        """One batch, given on the host; taps as in core.forward."""
        here = ids.to(self.target.info.device, non_blocking=True)
        features = read_features(self.target, ids, live, taps)
        return Shown(here, ids, answer, live, features, self.embed, self.rows, seed, prompt_share)

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        with torch.no_grad():
            return self.target.embed(ids)

    def rows(self, keep: Int[Tensor, "W"] | None) -> Float[Tensor, "W H"]:
        """LM-head rows as floats: its output for unit vectors. Cached, because every step uses the same ids."""
        key = 0 if keep is None else keep.data_ptr()
        if key not in self._rows:
            info = self.target.info
            unit = torch.eye(info.hidden_size, device=info.device, dtype=info.dtype)
            with torch.no_grad():
                ids = None if keep is None else keep.to(info.device)
                self._rows[key] = keep, self.target.head(unit, ids=ids, norm=False).T.contiguous()
        return self._rows[key][1]


def read_features(
    target: Runner, ids: Int[Tensor, "B T"], live: Bool[Tensor, "B T"], taps: frozenset[int]
) -> dict[int, Float[Tensor, "B T H"]]:
    """All sequences through the target's ordinary passes, each of a few hundred tokens (on an accelerator: thousands), of
    one sequence or several; padded positions stay zero."""
    (batch, length), device = ids.shape, target.info.device
    no_trees = HostTree.of(TokenTree.roots(torch.zeros(0, dtype=torch.int64)))
    texts: list[list[int]] = [text[:size] for text, size in zip(host(ids), host(live.sum(1)), strict=True)]
    runner, found = target.open(batch, length), dict[int, Tensor]()
    for slot, text in enumerate(texts):
        runner.admit(slot, text)
    for part in passes(texts, _CHUNK if on_host(device) else _WIDE):
        slots, sizes = [c.slot for c in part], [len(c.tokens) for c in part]
        runner.reserve(slots, sizes)
        output = runner.execute(assemble_lists(part, no_trees, device)[0], taps=taps)
        runner.commit(slots, [list(range(size)) for size in sizes], [c.tokens for c in part])
        for tap, y in output.features.items():
            whole = found.setdefault(tap, y.new_zeros(batch, length, y.shape[-1]))
            for c, piece in zip(part, y.split(sizes), strict=True):
                whole[c.slot, c.done : c.done + len(piece)] = piece
    return {tap: y.clone() for tap, y in found.items()}  # inference tensors cannot be used in autograd


def reading_seconds(target: Runner, tokens: int) -> float:
    """Seconds in which the target reads so many tokens, estimated from one pass of a few hundred."""
    length = max(1, min(tokens, _CHUNK, target.info.max_positions // 2))
    ids = torch.arange(length)[None].remainder(target.info.vocab_size)
    live = torch.ones(1, length, dtype=torch.bool)
    read_features(target, ids[:, :1], live[:, :1], frozenset({0}))  # the first pass loads libraries
    start = perf_counter()
    host(read_features(target, ids, live, frozenset({0}))[0][0, -1:])  # waits for the device
    return (perf_counter() - start) * tokens / length


def passes(texts: list[list[int]], most: int) -> list[list[KnownTokens]]:
    """Texts in passes of at most `most` tokens; a long one takes several, one after another."""
    found: list[list[KnownTokens]] = []
    room = 0
    for slot, text in enumerate(texts):
        at = 0
        while at < len(text):
            if not room:
                found.append([])
                room = most
            stop = min(at + room, len(text))
            found[-1].append(KnownTokens(slot, at, text[at:stop]))
            room, at = room - (stop - at), stop
    return found
