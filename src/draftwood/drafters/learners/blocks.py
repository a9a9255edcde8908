"""Trains a block net: at random anchors it imitates the target's distributions of the next tokens, all in one pass.

    text     x_0 .. x_{a-1} | x_a   x_{a+1} .. x_{a+k}
    reads    c_0 .. c_{a-1}   x_a   m_1     .. m_k        c: fused features of the target
    learns                          p_{a+1} .. p_{a+k}    each given all tokens before it

    loss = sum_i decay^(i-1) mean_a (- sum_v p_{a+i}(v) log q_{a+i}(v))

The net has not read the tokens between the anchor and a position. The mean of the target's distributions over them is the
distribution that is to be learned, and each of them is an unbiased label of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.positions import imitate, taught
from draftwood.drafters.nets.modules.block import BlockNet
from draftwood.models.rope import angles, frequencies
from draftwood.train.objectives import inverse, shifted

TOGETHER = 16  # anchors of a sequence whose attentions are one call


@dataclass(frozen=True, slots=True, eq=False)
class BlockLearner:
    """`share`: of the positions that are anchors in a step. `decay`: weight of each further token of a block."""

    net: BlockNet
    keep: Int[Tensor, "W"]  # ids of the draft vocabulary, ascending
    share: float = 0.5
    decay: float = 0.8

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset({*self.net.config.taps, FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"net": list(self.net.parameters())}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        places = inverse(self.keep, self.net.config.layer.vocab_size)
        teacher, rows = shown.features[FINAL], shown.rows(self.keep)
        anchors = self.anchors(shown)
        y = self.net.read(self.outputs(shown, anchors))
        at = anchors.to(teacher.device, non_blocking=True)
        total, figures = torch.zeros((), device=teacher.device), {}
        for i in range(self.net.config.stages):
            f = shifted(teacher, i).flatten(0, 1).index_select(0, at)
            counted = taught(shown, places, 1 + i).among(anchors)
            loss, hits = imitate(y[:, 1 + i], rows, f, rows, counted)
            total = total + self.decay**i * loss
            figures |= {f"{name}{i}": hit for name, hit in hits.items()}
        yield "net", total, figures

    def anchors(self, shown: Shown) -> Int[Tensor, "N"]:
        """Flat indices of the roots, rising. The first token of a text has no feature before it."""
        found = taught(shown, None, 1, self.share).every.sort().values
        return found[found % shown.text.shape[1] > 0]

    def outputs(self, shown: Shown, anchors: Int[Tensor, "N"]) -> Float[Tensor, "N n d"]:
        """What the net puts out for the blocks behind these anchors."""
        net, length, device = self.net, shown.ids.shape[1], shown.ids.device
        text = net.fuse([shown.features[tap] for tap in net.config.taps])
        freq = frequencies(net.config.layer).to(device)
        text_turns = angles(freq, torch.arange(length, device=device).repeat(len(text)), text.dtype)
        at = anchors.to(device, non_blocking=True)
        h = net.enter(shown.embed(shown.ids.flatten()[at]).to(text.dtype))
        size = h.shape[1]
        positions = (at % length)[:, None] + torch.arange(size, device=device)
        turns = angles(freq, positions.flatten(), text.dtype)
        groups = self._groups(anchors, length)
        for i in range(len(net.layers)):
            _, k, v = (x.unflatten(0, text.shape[:2]) for x in net.project(i, text.flatten(0, 1), *text_turns))
            own = [x.unflatten(0, (-1, size)) for x in net.project(i, h.flatten(0, 1), *turns)]
            parts: list[Tensor] = []
            for b, first, stop, reach in groups:
                q, own_k, own_v = (x[first:stop] for x in own)
                before = (at[first:stop] % length)[:, None] > torch.arange(reach, device=device)
                parts.append(_attention(q, k[b, :reach], v[b, :reach], own_k, own_v, before))
            mixed = torch.cat(parts) if parts else h.new_zeros(0, size, own[0].shape[2] * own[0].shape[3])
            h = net.tail(i, h, mixed)
        return h

    @staticmethod
    def _groups(anchors: Int[Tensor, "N"], length: int) -> list[tuple[int, int, int, int]]:
        """Anchors that attend together: (sequence, first and last of them, tokens of text that the last one reads)."""
        found: list[tuple[int, int, int, int]] = []
        sequences: list[int] = (anchors // length).tolist()
        places: list[int] = (anchors % length).tolist()
        for n, (b, place) in enumerate(zip(sequences, places, strict=True)):
            if found and found[-1][0] == b and n - found[-1][1] < TOGETHER:
                found[-1] = b, found[-1][1], n + 1, place
            else:
                found.append((b, n, n + 1, place))
        return found


def _attention(
    q: Float[Tensor, "A n heads d"],
    k: Float[Tensor, "T kv d"],
    v: Float[Tensor, "T kv d"],
    own_k: Float[Tensor, "A n kv d"],
    own_v: Float[Tensor, "A n kv d"],
    before: Tensor,
) -> Float[Tensor, "A n heads*d"]:
    """Each block attends to the text that `before` [A T] marks, and to all of itself."""
    anchors, size, heads, _ = q.shape
    group = heads // k.shape[1]
    block = torch.eye(anchors, dtype=torch.bool, device=q.device).repeat_interleave(size, dim=1)
    mask = torch.cat([before, block], dim=1).repeat_interleave(size, dim=0)
    keys, values = (
        torch.cat([text, own.flatten(0, 1)]).transpose(0, 1).repeat_interleave(group, dim=0)[None]
        for text, own in ((k, own_k), (v, own_v))
    )
    mixed = F.scaled_dot_product_attention(q.flatten(0, 1).transpose(0, 1)[None], keys, values, attn_mask=mask)
    return mixed[0].transpose(0, 1).reshape(anchors, size, -1)
