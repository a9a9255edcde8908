"""The target as teacher: it computes the features of each batch while training runs, so none are stored.

Features come from the target's own runner, so a drafter learns from the very numbers that it will draft for.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardInput, HostInput
from draftwood.core.host import host, on_host
from draftwood.core.protocols import Runner
from draftwood.core.train_plan import Shown

_CHUNK, _WIDE = 512, 8192  # tokens of one pass on a CPU, and on an accelerator


class Teacher:
    """Computes a frozen model's features, embeddings and LM-head rows."""

    def __init__(self, target: Runner) -> None:
        self.target = target
        # By the address of `keep`, which is held so that it stays.
        self._rows: dict[int, tuple[Tensor | None, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        return self.target.info.device

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
        """LM-head rows as floats: its output for unit vectors. Cached, because every step asks for the same ids."""
        key = 0 if keep is None else keep.data_ptr()
        if key not in self._rows:
            info = self.target.info
            unit = torch.eye(info.hidden_size, device=info.device, dtype=info.dtype)
            with torch.no_grad():
                ids = None if keep is None else keep.to(self.device)
                self._rows[key] = keep, self.target.head(unit, ids=ids, norm=False).T.contiguous()
        return self._rows[key][1]


def read_features(
    target: Runner, ids: Int[Tensor, "B T"], live: Bool[Tensor, "B T"], taps: frozenset[int]
) -> dict[int, Float[Tensor, "B T H"]]:
    """All sequences through the target's ordinary passes, each of a few hundred tokens (on an accelerator: thousands), of
    one sequence or several; padded positions stay zero."""
    batch, length = ids.shape
    texts: list[list[int]] = [text[:size] for text, size in zip(host(ids), host(live.sum(1)), strict=True)]
    runner, found = target.open(batch, length), dict[int, Tensor]()
    for slot, text in enumerate(texts):
        runner.admit(slot, text)
    for part in passes(texts, _CHUNK if on_host(target.info.device) else _WIDE):
        runner.reserve([slot for slot, _, _ in part], [stop - start for _, start, stop in part])
        x = _forward_input(texts, part, target.info.device)
        output = runner.execute(x, taps=taps)
        sizes = [stop - start for _, start, stop in part]
        tokens = [texts[slot][start:stop] for slot, start, stop in part]
        runner.commit([slot for slot, _, _ in part], [list(range(size)) for size in sizes], tokens)
        for tap, y in output.features.items():
            whole = found.setdefault(tap, y.new_zeros(batch, length, y.shape[-1]))
            for (slot, start, stop), piece in zip(part, y.split(sizes), strict=True):
                whole[slot, start:stop] = piece
    return {tap: y.clone() for tap, y in found.items()}  # inference tensors cannot be used in autograd


Part = tuple[int, int, int]  # slot, first and last token


def passes(texts: list[list[int]], most: int) -> list[list[Part]]:
    """Texts in passes of at most `most` tokens; a long one takes several, one after another."""
    found: list[list[Part]] = []
    room = 0
    for slot, text in enumerate(texts):
        at = 0
        while at < len(text):
            if not room:
                found.append([])
                room = most
            stop = min(at + room, len(text))
            found[-1].append((slot, at, stop))
            room, at = room - (stop - at), stop
    return found


def _forward_input(texts: list[list[int]], part: list[Part], device: torch.device) -> ForwardInput:
    lists, positions = HostInput([], [], [], []), list[int]()
    for slot, start, stop in part:
        lists.ids.extend(texts[slot][start:stop])
        lists.slots.extend([slot] * (stop - start))
        lists.entries.extend(range(stop - start))
        lists.parents.extend(range(-1, stop - start - 1))
        positions += range(start, stop)
    return ForwardInput.of(lists, positions, [], device)
