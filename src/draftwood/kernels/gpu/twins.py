"""The twins of `Operations`: the same methods in plain torch, for tests, for passes too wide for a kernel, and for devices
and dtypes without kernels. Rounded in the same places, added in another order."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.errors import EngineError
from draftwood.kernels.gpu.arguments import Heads, Placement


def check_moves(store: Tensor) -> None:
    if not store.is_contiguous():
        raise EngineError(f"entries of a store of strides {store.stride()} cannot move\nhint: a contiguous tensor")


def bits_of(words: Int[Tensor, "*S W"]) -> Tensor:
    """[*S, 64 * W] truth values."""
    return ((words[..., None] >> torch.arange(64, device=words.device)) & 1).flatten(-2) == 1


def words_of(bits: Tensor, count: int) -> Int[Tensor, "*S W"]:
    """The inverse, with zeros behind."""
    padded = F.pad(bits.to(torch.int64), (0, 64 * count - bits.shape[-1]))
    return (padded.unflatten(-1, (count, 64)) << torch.arange(64, device=bits.device)).sum(-1)


@dataclass(frozen=True, slots=True)
class Twins:
    """`invariant` is accepted and kept: plain torch promises nothing about bits."""

    invariant: bool = False

    def bucket(self, num_rows: int) -> int:
        return num_rows

    def few(self, num_rows: int) -> bool:
        return num_rows <= 64

    def placement(
        self,
        meta: Int[Tensor, "5 B"],
        parents: Int[Tensor, "B W"],
        positions: Int[Tensor, "B W"],
        table: Int[Tensor, "slots blocks"],
        trees: Int[Tensor, "slots nodes stored"],
        *,
        room: int,
        words: int,
        most_position: int,
        heads: Heads,
    ) -> Placement:
        slot, done, first, line, count = meta
        lines, width = parents.shape
        i = torch.arange(width, device=meta.device)
        there = i < count[:, None]
        place = done[:, None] + first[:, None] + i
        written = there & (place < room)
        block = table[slot[:, None], torch.where(written, place, 0) // heads.block].long()
        offset = block * heads.block_stride + place % heads.block * heads.head_dim
        node = first[:, None] + i - line[:, None]
        most = min(64 * words, trees.shape[1])
        is_node = there & (node >= 0) & (node < most)
        seen = torch.where(node >= 0, (done + line)[:, None], place + 1)
        below = (parents >= line[:, None]) & is_node
        # Rows of `above` are in the order of the tree, so that a token's ancestors are found from its parent's.
        held = bits_of(trees[slot, :, :words])[:, :most, :most]  # [B, node, ancestor]
        own = torch.where(is_node, node, most)  # the last row takes what is no node
        held = F.pad(held, (0, 1, 0, 1))
        link = torch.zeros(lines, most + 1, most + 1, dtype=torch.bool, device=meta.device)
        b = torch.arange(lines, device=meta.device)[:, None]
        link[b, own, own] = True
        parent = torch.where(below, (parents - line[:, None]).clamp(0, most), own)
        link[b, own, parent] = True
        earlier = torch.ones(lines, most + 1, dtype=torch.bool, device=meta.device)
        earlier[b, own] = False
        link = torch.where(earlier[..., None], held, link).to(torch.float32)  # earlier passes know their whole paths
        for _ in range(max(most, 1).bit_length()):
            link = (link @ link).clamp_max_(1.0)
        found = words_of(link[b, own][..., :most] > 0, words) * is_node[..., None]
        # Nothing is chosen by a mask of truth values: a device would have to tell the host how many there are.
        stored = F.pad(trees[slot, :most, :words], (0, 0, 0, 1))
        stored.scatter_(1, own[..., None].expand(-1, -1, words), found)
        trees[slot, :most, :words] = stored[:, :most]
        return Placement(
            lines,
            width,
            position=torch.where(there, positions, 0).clamp_max(most_position).int().flatten(),
            offset=torch.where(written, offset, -1).flatten(),
            seen=seen.int().flatten(),
            words=found.flatten(0, 1),
            slot=slot.int(),
            done=done.int(),
            begin=(done + line).int(),
            total=(done + first + count).clamp_max(room).int(),
            count=count.int(),
        )

    def entered(
        self, source: Tensor, embedding: Float[Tensor, "V H"], num_rows: int, given: bool
    ) -> tuple[Float[Tensor, "M H"], Float[Tensor, "M 1"]]:
        x = (source if given else F.embedding(source, embedding)).to(embedding.dtype)
        x = F.pad(x, (0, 0, 0, num_rows - x.shape[0]))
        return x, self.squares(x)

    def squares(self, x: Float[Tensor, "M H"]) -> Float[Tensor, "M 1"]:
        return _exact(x).square().sum(-1, keepdim=True)

    def rotated(
        self,
        x: Float[Tensor, "M H"],
        squares: Float[Tensor, "M n"],
        weight: Float[Tensor, "N H"],
        bias: Float[Tensor, "N"] | None,
        gains: tuple[Tensor, Tensor] | None,
        eps: float,
        angles: Float[Tensor, "P d"],
        at: Placement,
        keys: Float[Tensor, "blocks kv block d"],
        values: Float[Tensor, "blocks kv block d"],
        heads: Heads,
    ) -> Float[Tensor, "M Q"]:
        qkv = _exact(x) @ _exact(weight).T * _scale(squares, x.shape[1], eps)
        if bias is not None:
            qkv = qkv + bias
        return self.turned(qkv.to(x.dtype), None, gains, eps, angles, at, keys, values, heads)

    def turned(
        self,
        qkv: Float[Tensor, "M N"],
        bias: Float[Tensor, "N"] | None,
        gains: tuple[Tensor, Tensor] | None,
        eps: float,
        angles: Float[Tensor, "P d"],
        at: Placement,
        keys: Float[Tensor, "blocks kv block d"],
        values: Float[Tensor, "blocks kv block d"],
        heads: Heads,
    ) -> Float[Tensor, "M Q"]:
        rows, kind, turning = at.rows, qkv.dtype, heads.heads + heads.kv_heads
        qkv = qkv if bias is None else (qkv + bias).to(kind)
        each = _exact(qkv.view(-1, turning + heads.kv_heads, heads.head_dim))
        qk, v = each[:rows, :turning], each[:rows, turning:].to(kind)
        if gains is not None:
            scale = _scale(qk.square().sum(-1, keepdim=True), heads.head_dim, eps)
            gain = torch.cat([gains[0].expand(heads.heads, -1), gains[1].expand(heads.kv_heads, -1)])
            qk = _exact((qk * scale * gain).to(kind))
        cos, sin = angles[at.position.long()].chunk(2, dim=-1)
        low, high = qk.chunk(2, dim=-1)
        cos, sin = cos[:, None], sin[:, None]
        qk = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(kind)
        written = (at.offset >= 0)[:, None, None]  # others write back what is there; block 0 belongs to no text
        place = (at.offset.clamp_min(0) // heads.head_dim)[:, None]
        place = place + torch.arange(heads.kv_heads, device=qkv.device) * heads.block
        for store, new in ((keys, qk[:, heads.heads :]), (values, v)):
            flat = store.view(-1, heads.head_dim)
            flat[place] = torch.where(written, new, flat[place])
        return F.pad(qk[:, : heads.heads].flatten(1), (0, 0, 0, qkv.shape[0] - rows))

    def attended(
        self,
        q: Float[Tensor, "M Q"],
        keys: Float[Tensor, "blocks kv block d"],
        values: Float[Tensor, "blocks kv block d"],
        table: Int[Tensor, "slots blocks"],
        at: Placement,
        heads: Heads,
        context: int,
    ) -> Float[Tensor, "M Q"]:
        blocks = table[at.slot.long(), : -(-context // heads.block)].long()
        k, v = (_exact(x[blocks].transpose(1, 2).flatten(2, 3)) for x in (keys, values))  # [B, kv, columns, d]
        column = torch.arange(k.shape[2], device=q.device)
        behind = column - at.begin[:, None]
        marked = bits_of(at.words).view(at.lines, at.width, -1)
        inside = (behind >= 0) & (behind < marked.shape[-1])
        near = behind.clamp(0, marked.shape[-1] - 1)[:, None].expand(-1, at.width, -1)
        visible = marked.gather(2, near) & inside[:, None]
        visible = visible | (column < at.seen.view(at.lines, at.width, 1))
        visible = visible & (column < at.total[:, None, None])
        query = _exact(q[: at.rows]).view(at.lines, at.width, heads.kv_heads, heads.group, heads.head_dim)
        score = torch.einsum("bwhgd,bhcd->bhgwc", query, k) * heads.head_dim**-0.5
        score = score.masked_fill(~visible[:, None, None], -torch.inf)
        weights = torch.softmax(score, dim=-1).nan_to_num(0.0)  # rows of padding see nothing
        mixed = torch.einsum("bhgwc,bhcd->bwhgd", weights, v).reshape(at.rows, -1).to(q.dtype)
        return F.pad(mixed, (0, 0, 0, q.shape[0] - at.rows))

    def added(
        self, x: Float[Tensor, "M K"], weight: Float[Tensor, "N K"], residual: Float[Tensor, "M N"]
    ) -> tuple[Float[Tensor, "M N"], Float[Tensor, "M n"]]:
        product = (_exact(x) @ _exact(weight).T).to(x.dtype)
        total = (_exact(product) + residual).to(x.dtype)
        return total, self.squares(total)

    def gated(
        self, x: Float[Tensor, "M H"], squares: Float[Tensor, "M n"], weight: Float[Tensor, "2*I H"], eps: float
    ) -> Float[Tensor, "M I"]:
        return self.gate((_exact(x) @ _exact(weight).T * _scale(squares, x.shape[1], eps)).to(x.dtype))

    def gate(self, both: Float[Tensor, "M 2*I"]) -> Float[Tensor, "M I"]:
        gate, up = _exact(both).chunk(2, dim=-1)
        return (_exact(F.silu(gate).to(both.dtype)) * up).to(both.dtype)

    def normed(self, x: Float[Tensor, "M H"], gain: Float[Tensor, "H"] | None, eps: float) -> Float[Tensor, "M H"]:
        scaled = _exact(x) * _scale(self.squares(x), x.shape[1], eps)
        return (scaled if gain is None else scaled * gain).to(x.dtype)

    def added_norm(
        self, x: Float[Tensor, "M H"], y: Float[Tensor, "M H"], eps: float
    ) -> tuple[Float[Tensor, "M H"], Float[Tensor, "M H"]]:
        total = (_exact(x) + y).to(x.dtype)
        return total, self.normed(total, None, eps)

    def scored(
        self, x: Float[Tensor, "M H"], weight: Float[Tensor, "V H"]
    ) -> tuple[Float[Tensor, "M V"], Int[Tensor, "M"]]:
        logits = (_exact(x) @ _exact(weight).T).to(x.dtype)
        value, best = logits.max(dim=-1)
        return logits, torch.where(value.isfinite(), best, -1)

    def moved(
        self,
        store: Float[Tensor, "stores blocks kv block d"],
        source: Int[Tensor, "n"],
        to: Int[Tensor, "n"],
        starts: Int[Tensor, "B+1"],
        most: int,
    ) -> None:
        check_moves(store)
        block = store.shape[3]
        store[:, to // block, :, to % block] = store[:, source // block, :, source % block]


def _exact(x: Tensor) -> Tensor:
    """In at least 32 bits."""
    return x if x.dtype == torch.float64 else x.float()


def _scale(squares: Float[Tensor, "*S n"], width: int, eps: float) -> Float[Tensor, "*S 1"]:
    """1 / rms."""
    return (squares.sum(-1, keepdim=True) / width + eps).rsqrt()
