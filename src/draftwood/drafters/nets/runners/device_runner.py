"""A feature net on an accelerator: draft passes as rectangles of fixed sizes, each captured once and replayed."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.device import DeviceCache
from draftwood.cache.paged import PagedCache
from draftwood.core.forward import ForwardInput
from draftwood.core.host import put
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.refresh import refresh_net
from draftwood.drafters.nets.modules.layer import through
from draftwood.drafters.nets.runners.runner import FeatureNet, places
from draftwood.kernels.gpu.twins import Twins
from draftwood.models.rope import angles
from draftwood.runners.block_attention import BlockAttention, trusted
from draftwood.runners.cuda import CudaRunner, Rectangles
from draftwood.runners.rectangles import Attention, Buffers, flat_places

log = logging.getLogger("draftwood")

HEAD_WIDTHS = (16, 32, 64, 128, 256)  # that our kernels take


def operations_of(target: Runner) -> Twins | None:
    """The kernels that run the target's layers; None: stock operations do."""
    return target.operations() if isinstance(target, CudaRunner) else None


class DeviceRunner(FeatureNet, Rectangles):
    """Rows of the head are copied once for each choice of tokens. `rows`: by the address of the chosen tokens, which are
    kept so that it is not used again, the tokens and their rows."""

    def __init__(
        self,
        net: Any,
        target: Runner,
        ids: Int[Tensor, "W"] | None,
        cache: DeviceCache | None = None,
        rows: dict[int, tuple[Tensor | None, Tensor]] | None = None,
    ) -> None:
        FeatureNet.__init__(self, net, target, ids)
        Rectangles.__init__(self, cache, self.dtype, net.config.layer.sliding_window)
        self._rows = {} if rows is None else rows
        self._coarse = isinstance(cache, PagedCache)

    def open(self, slots: int, capacity: int) -> "DeviceRunner":
        device, found = self.target.info.device, self._operations()
        cache = (
            DeviceCache(self.cache_specs, slots=slots, capacity=capacity, device=device)
            if found is None
            else PagedCache(self.cache_specs, slots=slots, capacity=capacity, device=device, operations=found)
        )
        return DeviceRunner(self.net, self.target, self.ids, cache, self._rows)

    def _operations(self) -> Twins | None:
        """The target's kernels, where they run this net's attention too."""
        layer, found = self.net.config.layer, operations_of(self.target)
        if found is None or layer.sliding_window is not None or layer.head_dim not in HEAD_WIDTHS:
            return None

        def failed(why: str) -> None:
            log.warning("stock attention instead of our kernels for the draft head: %s", why)

        return trusted(found, self.cache_specs, layer.num_heads, self.target.info.device, failed)

    def attention(self, buffers: Buffers) -> Any:
        cache = self.cache
        if isinstance(cache, PagedCache):
            return BlockAttention(buffers, cache, self.net.config.layer.num_heads)
        return super().attention(buffers)

    @torch.inference_mode()
    def refresh(self, weights: Mapping[str, Tensor]) -> None:
        """In place, copied rows included: captured passes read the same addresses as before."""
        refresh_net(self.net, weights)
        if not self.net.own_head:
            return
        whole = self.net.lm_head.weight
        for asked, rows in self._rows.values():
            if rows is not whole and asked is not None:
                rows.copy_(whole[places(self.ids, asked)])

    @torch.inference_mode()
    def execute(
        self, x: ForwardInput, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "T d"], Float[Tensor, "U W"]]:
        rows = self.rows(only)
        scores = x.want.shape[0] > 0
        spans = self.spans(x)

        def run(buffers: Buffers, attention: Attention) -> tuple[Tensor, Tensor | None]:
            return self._scored(buffers, attention, rows if scores else None)

        (a, logits), size = self.rectangle(x, spans, (id(rows), scores), run)
        at = put(flat_places(spans, size, x.size), a.device)
        found = a.new_zeros(0, len(rows)) if logits is None else logits.index_select(0, at.index_select(0, x.want))
        return a.index_select(0, at), found

    def _scored(self, buffers: Buffers, attention: Attention, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the next tokens read, and logits of these rows of the head."""
        a, y = self._pass(buffers, attention)
        return a, None if rows is None else F.linear(y, rows)

    def _pass(self, buffers: Buffers, attention: Attention) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
        """What the next tokens read, and what the rows of the head multiply."""
        net = self.net
        assert buffers.hidden is not None
        e = self.target.embed(buffers.ids.flatten()).to(self.dtype)
        inner, residual = net.enter(e, buffers.hidden.flatten(0, 1).to(self.dtype))
        turned = angles(self._freq, buffers.positions.flatten(), self.dtype)
        a = through(net.layers, inner, residual, lambda i, layer, x: attention(i, *layer.project(x, *turned)))
        return net.forward_feature(a), net.read(a)

    def rows(self, only: Int[Tensor, "W"] | None) -> Float[Tensor, "W d"]:
        """What multiplies the net's output: its own head, or the target's rows, read off by unit vectors."""
        asked = self.ids if only is None else only
        key = 0 if asked is None else asked.data_ptr()
        if key not in self._rows:
            net = self.net
            if net.own_head:
                found = net.lm_head.weight if only is None else net.lm_head.weight[places(self.ids, only)]
            else:
                unit = torch.eye(self.target.info.hidden_size, device=self.target.info.device, dtype=self.dtype)
                found = self.target.head(unit, ids=asked, norm=False).T.contiguous()
            self._rows[key] = asked, found
        return self._rows[key][1]

    @torch.inference_mode()
    def best_chains(
        self,
        x: ForwardInput,
        temperature: list[float],
        steps: int,
        only: Int[Tensor, "W"] | None = None,
        least: float = 0.0,
        k: int = 1,
    ) -> tuple[Int[Tensor, "B steps k"], Float[Tensor, "B steps k"]] | None:
        """All steps in one captured pass: one token after another, each would wait for its launches."""
        if any(t != 1 for t in temperature):  # a captured pass cannot read them
            return None
        rows, spans = self.rows(only), self.spans(x)
        ids = self.ids if only is None else only

        def run(buffers: Buffers, attention: Attention) -> tuple[Tensor, Tensor]:
            lines, width = buffers.ids.shape
            slot, done, _, line, _ = buffers.meta
            last = line - 1 + width * torch.arange(lines, device=line.device)
            a, y = (out.index_select(0, last) for out in self._pass(buffers, attention))
            position = buffers.positions.flatten().index_select(0, last)
            size = replace(buffers.size, width=1, nodes=0)
            tokens: list[Tensor] = []
            probs: list[Tensor] = []
            for step in range(steps):
                # Each guess is staged as known text behind the one before it: nothing branches.
                logits = F.linear(y, rows).float()
                prob, column = logits.softmax(-1).topk(min(k, logits.shape[-1]), dim=-1)
                tokens.append(column if ids is None else ids[column])
                probs.append(prob)
                if step + 1 < steps:
                    meta = torch.stack([slot, done, line + step, line + step + 1, torch.ones_like(line)])
                    at = (position + step + 1)[:, None]
                    one = Buffers(size, tokens[-1][:, :1], at, at, meta, a[:, None])
                    a, y = self._pass(one, self.attention(one))
            return torch.stack(tokens, dim=1), torch.stack(probs, dim=1)

        (tokens, prob), _ = self.rectangle(x, spans, ("best_chains", steps, k, id(rows)), run, more=steps)
        return tokens[: len(spans)].clone(), prob[: len(spans)].clone()
