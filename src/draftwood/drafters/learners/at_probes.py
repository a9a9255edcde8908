"""Trains probes and their adapter: behind x_0 .. x_t, probe i learns the target's own distribution of x_{t+1+i}.

    loss = - sum_i decay^(i-1) mean_t sum_v p_{t+i}(v) log q_i(v)        p_{t+i}: given x_0 .. x_{t+i}

Only probes run through the layers, a branch of k behind each of a few positions. They attend to the text by keys and values
that are made again from the residuals of the target's ordinary pass, so ordinary tokens see no probe, and are run once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.forward import ALL, FINAL, Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.positions import imitate, taught
from draftwood.drafters.nets.modules.probes import ProbesNet
from draftwood.models.decoder import Attend, Decoder
from draftwood.train.objectives import inverse, shifted


@dataclass(frozen=True, slots=True, eq=False)
class AtProbes:
    """`target`: whose layers are differentiated through. `share`: of the positions that get a branch in a step. Where the
    net's vectors need no gradient, none is computed through the layers, and the adapter alone learns."""

    net: ProbesNet
    keep: Int[Tensor, "W"]
    target: Decoder
    share: float = 0.2
    decay: float = 0.8

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset({*range(len(self.target.layers)), FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"probes": [p for p in self.net.parameters() if p.requires_grad]}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        places = inverse(self.keep, self.net.config.layer.vocab_size)
        f, rows, stages = shown.features[FINAL], shown.rows(self.keep), self.net.config.stages
        indices = taught(shown, None, 2, self.share).every
        at = indices.to(f.device, non_blocking=True)
        root = shown.embed(shifted(shown.ids, 1).flatten()[at])
        y = self.net.read(self.behind(shown, indices), f.flatten(0, 1)[at], root)
        total, figures = torch.zeros((), device=f.device), {}
        for i in range(stages):
            counted = taught(shown, places, 2 + i).among(indices)
            loss, hits = imitate(y[:, i], rows, shifted(f, 1 + i).flatten(0, 1)[at], rows, counted)
            total = total + self.decay**i * loss
            figures |= {f"{name}{i}": hit for name, hit in hits.items()}
        yield "probes", total, figures

    def behind(self, shown: Shown, indices: Int[Tensor, "N"]) -> Float[Tensor, "N k H"]:
        """The target's final features of a branch behind each of these flat indices, which are on the host."""
        f = shown.features[FINAL]
        branches = _Branches.of(shown.ids.shape, indices, self.net.config.stages, self.target.config.sliding_window)
        with torch.set_grad_enabled(self.net.vectors.requires_grad):
            h = self.net.vectors.to(f.dtype).expand(len(indices), -1, -1).flatten(0, 1)
            attend = branches.attention(self.target, shown.features, f.device)
            ctx = self.target.angled(attend, branches.positions.to(f.device))
            _, found = self.target.run(h, ctx, frozenset({FINAL}), ALL)
        return found[FINAL].unflatten(0, (-1, self.net.config.stages))


@dataclass(frozen=True, slots=True, eq=False)
class _Branches:
    """Branches behind some positions of a batch, as a rectangle: a line for each text, as wide as the most branches of one.

    Columns of the mask are the positions of the text, then the probes of the line."""

    stages: int
    positions: Int[Tensor, "P"]  # of the probes, branch after branch
    rows: Int[Tensor, "P"]  # places in the rectangle
    width: int  # probes of a line
    mask: Bool[Tensor, "B 1 width columns"]

    @staticmethod
    def of(shape: torch.Size, indices: Int[Tensor, "N"], stages: int, window: int | None) -> "_Branches":
        """On the host, which knows where the branches begin."""
        batch, length = shape
        line, begin, order = indices // length, indices % length, torch.arange(stages)
        counts = torch.bincount(line, minlength=batch)
        by_line = line.argsort(stable=True)
        before = (counts.cumsum(0) - counts)[line[by_line]]
        rank = torch.empty_like(line).index_copy_(0, by_line, torch.arange(len(line)) - before)
        most = max(int(counts.max()), 1)
        starts = torch.zeros(
            batch, most, dtype=torch.int64
        )  # padding sees the first token, so that its softmax is finite
        starts[line, rank] = begin
        at = (starts[..., None] + 1 + order).flatten(1)  # [B, width]
        column, probe = torch.arange(length), torch.arange(most * stages)
        text = column <= starts.repeat_interleave(stages, dim=1)[..., None]
        if window is not None:
            text = text & (column > at[..., None] - window)
        own = (probe[:, None] // stages == probe // stages) & (probe <= probe[:, None])
        mask = torch.cat([text, own.expand(batch, -1, -1)], dim=2)[:, None]
        positions = (begin[:, None] + 1 + order).flatten()
        rows = ((line * most + rank)[:, None] * stages + order).flatten()
        return _Branches(stages, positions, rows, most * stages, mask)

    def attention(self, target: Decoder, residuals: dict[int, Float[Tensor, "B T H"]], device: torch.device) -> Attend:
        """Attention of the probes in every layer. `residuals`: of the text, before each layer."""
        batch, length = residuals[0].shape[:2]
        rows, mask = self.rows.to(device, non_blocking=True), self.mask.to(device, non_blocking=True)
        places = torch.arange(length, device=device).repeat(batch)

        def line(x: Float[Tensor, "P n d"]) -> Float[Tensor, "B n width d"]:
            whole = x.new_zeros(batch * self.width, *x.shape[1:]).index_copy(0, rows, x)
            return whole.unflatten(0, (batch, self.width)).transpose(1, 2)

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with torch.no_grad():
                text = target.keys_values(index, residuals[index].flatten(0, 1), places)
                old = [x.unflatten(0, (batch, length)).transpose(1, 2) for x in text]
            group = q.shape[1] // k.shape[1]
            keys, values = (
                torch.cat([x.to(q.dtype), line(new)], dim=2).repeat_interleave(group, dim=1)
                for x, new in zip(old, (k, v), strict=True)
            )
            mixed = F.scaled_dot_product_attention(line(q), keys, values, attn_mask=mask)
            return mixed.transpose(1, 2).flatten(0, 1)[rows].flatten(1)

        return attend
