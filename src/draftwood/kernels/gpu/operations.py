"""The kernels as functions of tensors: they choose tiles, make the outputs and launch. `Twins` (twins.py) has the same
methods in plain torch; a decoder runs with either.

Products take M rows, of which the first hold tokens: M is a bucket of 16, 32 or 64, or, in the batch-invariant mode, several
times 64. Rows that hold none compute what nobody reads.
"""

from dataclasses import dataclass, field, replace
from math import e as EULER
from math import log2
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.errors import EngineError
from draftwood.kernels.gpu import attention as attention_kernels
from draftwood.kernels.gpu import products as product_kernels
from draftwood.kernels.gpu import rows as row_kernels
from draftwood.kernels.gpu.arguments import STORED_WORDS, Heads, Placement, power_of_two
from draftwood.kernels.gpu.launch import overlapped
from draftwood.kernels.gpu.tiles import (
    FEWEST,
    MOST,
    Tiles,
    attention_tiles,
    invariant_attention_tiles,
    tiles_for,
)
from draftwood.kernels.gpu.twins import Twins, check_moves

MOST_MOVES = 128  # entries of one sequence that one program moves
ARRIVALS = 4096  # tiles of a product whose columns are split
GATE_WIDE = 1024
# By Triton's types a kernel takes tensors and constexprs of its own; a launch takes torch's and plain numbers.
attention: Any = attention_kernels
products: Any = product_kernels
rows: Any = row_kernels


def _arrivals() -> dict[torch.device, Tensor]:
    return {}


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """`invariant`: a row's result has the same bits whatever else is in the pass."""

    invariant: bool = False
    _arrived: dict[torch.device, Tensor] = field(default_factory=_arrivals)

    def bucket(self, num_rows: int) -> int:
        """Rows that a pass of so many tokens has, with those that hold none."""
        if num_rows > MOST:
            return -(-num_rows // MOST) * MOST if self.invariant else num_rows
        return FEWEST if num_rows <= FEWEST else power_of_two(num_rows)

    def few(self, num_rows: int) -> bool:
        """Whether products are fused with their neighbours. With more rows a library's are faster, not batch-invariant."""
        return self.invariant or num_rows <= MOST

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
        lines, width = parents.shape
        if width > MOST:  # prompts: one program would not hold the table of who follows whom
            wide = Twins().placement(
                meta, parents, positions, table, trees, room=room, words=words, most_position=most_position, heads=heads
            )
            return self._with_paths(wide)
        new = table.new_empty
        at = Placement(
            lines,
            width,
            position=new(lines * width),
            offset=new(lines * width, dtype=torch.int64),
            seen=new(lines * width),
            words=new(lines * width, words, dtype=torch.int64),
            slot=new(lines),
            done=new(lines),
            begin=new(lines),
            total=new(lines),
            count=new(lines),
        )
        n = max(FEWEST, power_of_two(width))
        rows.placement_kernel[(lines,)](
            meta, parents, positions, table, trees, at.position, at.offset, at.seen, at.words, at.slot, at.done, at.begin,
            at.total, at.count, lines, width, room, table.shape[1], most_position, trees.shape[1],
            BLOCK_STRIDE=heads.block_stride, HD=heads.head_dim, BLOCK=heads.block, WORDS=words, STORED=STORED_WORDS, N=n,
            DOUBLINGS=n.bit_length() - 1, num_warps=4, **self._how(),
        )  # fmt: skip
        return self._with_paths(at)

    def _with_paths(self, at: Placement) -> Placement:
        if not self.invariant:
            return at
        words = at.words.shape[1]
        path, depth = at.seen.new_empty(at.rows, 64 * words), torch.empty_like(at.seen)
        attention.paths_kernel[(at.rows,)](at.words, path, depth, WORDS=words, num_warps=1, **self._how())
        return replace(at, path=path, depth=depth)

    def entered(
        self, source: Tensor, embedding: Float[Tensor, "V H"], num_rows: int, given: bool
    ) -> tuple[Float[Tensor, "M H"], Float[Tensor, "M 1"]]:
        """The residual before the first layer, and sums of its squares. `source`: token ids, or if `given` the residual."""
        hidden = embedding.shape[1]
        x = embedding.new_empty(num_rows, hidden)
        squares = embedding.new_empty(num_rows, 1, dtype=torch.float32)
        rows.entered_kernel[(num_rows,)](
            source, source, embedding, x, squares, source.shape[0], H=hidden, WIDE=power_of_two(hidden), GIVEN=given,
            num_warps=4, **self._how(),
        )  # fmt: skip
        return x, squares

    def squares(self, x: Float[Tensor, "M H"]) -> Float[Tensor, "M 1"]:
        found = x.new_empty(x.shape[0], 1, dtype=torch.float32)
        rows.squares_kernel[(x.shape[0],)](
            x, found, H=x.shape[1], WIDE=power_of_two(x.shape[1]), num_warps=4, **self._how()
        )
        return found

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
        """RMS norm, product, norm of heads (`gains` of q and k), rotation; keys and values go into the cache."""
        num_rows = x.shape[0]
        if self.invariant and gains is not None and num_rows < MOST:
            # The norm of a head adds over a tile, in an order that may depend on its number of rows.
            x, squares = (F.pad(each, (0, 0, 0, MOST - num_rows)) for each in (x, squares))
        q = x.new_empty(x.shape[0], heads.heads * heads.head_dim)
        count = squares.shape[1]
        for start, m in self._tiles(x.shape[0]):
            t = self._chosen("rotated", weight, m, heads.head_dim, gains is not None)
            products.rotated_kernel[(weight.shape[0] // t.bn,)](
                x[start:], weight, bias, *((None, None) if gains is None else gains), squares[start:], count, eps, angles,
                at.position[start:], at.offset[start:], q[start:], keys, values, max(at.rows - start, 0), K=x.shape[1],
                HEADS=heads.heads, KV=heads.kv_heads, HD=heads.head_dim, BLOCK=heads.block, BIAS=bias is not None,
                NORM=gains is not None, NUM_SQUARES=power_of_two(count), BM=m, **self._product(t),
            )  # fmt: skip
        return q[:num_rows]

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
        """What follows the product in `rotated`, for many tokens."""
        q = qkv.new_empty(qkv.shape[0], heads.heads * heads.head_dim)
        rows.turned_kernel[(qkv.shape[0], heads.heads + 2 * heads.kv_heads)](
            qkv, bias, *((None, None) if gains is None else gains), angles, at.position, at.offset, q, keys, values,
            at.rows, eps, HEADS=heads.heads, KV=heads.kv_heads, HD=heads.head_dim, BLOCK=heads.block,
            BIAS=bias is not None, NORM=gains is not None, num_warps=1, **self._how(),
        )  # fmt: skip
        return q

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
        """`context`: columns of the longest sequence at most."""
        group, hd = heads.group, heads.head_dim
        if self.invariant:
            t = invariant_attention_tiles(at.width, group)
        else:
            t = attention_tiles(at.lines, at.width, group, context)
        parts, tiles = _parts(context, t.part), _parts(at.width * group, t.rows)
        out = torch.empty_like(q)
        slabs = at.lines * heads.kv_heads * tiles * parts if parts > 1 or self.invariant else 1
        mixed = q.new_empty(slabs * t.rows, hd, dtype=torch.float32)
        sums = q.new_empty(slabs, 2 * t.rows, dtype=torch.float32)
        scale = hd**-0.5 * log2(EULER)
        shared: dict[str, Any] = {"KV": heads.kv_heads, "GROUP": group, "HD": hd, "BMQ": t.rows, "SPLIT": t.part}
        words = at.words.shape[1]
        attention.attention_kernel[(heads.kv_heads * tiles, parts, at.lines)](
            q, keys, values, table, at.slot, at.done, at.begin, at.total, at.count, at.seen, at.words, out, mixed, sums,
            at.width, table.shape[1], scale, parts, tiles, BLOCK=heads.block, WORDS=words, BKV=t.columns,
            INVARIANT=self.invariant, num_warps=t.warps, num_stages=t.stages, **shared, **self._how(),
        )  # fmt: skip
        if self.invariant:
            attention.own_path_kernel[(at.rows, heads.kv_heads)](
                q, keys, values, table, at.slot, at.done, at.begin, at.total, at.count, at.seen, at.path, at.depth,
                mixed, sums, out, at.width, table.shape[1], scale, parts, tiles, BLOCK=heads.block, WORDS=words,
                ROWS=max(16, power_of_two(group)), BKV=t.columns, num_warps=4, **shared, **self._how(),
            )  # fmt: skip
        elif parts > 1:
            attention.join_kernel[(at.rows, heads.heads)](
                mixed, sums, at.total, at.count, out, at.width, parts, tiles, PARTS=power_of_two(parts), num_warps=4,
                **shared, **self._how(),
            )  # fmt: skip
        return out

    def added(
        self, x: Float[Tensor, "M K"], weight: Float[Tensor, "N K"], residual: Float[Tensor, "M N"]
    ) -> tuple[Float[Tensor, "M N"], Float[Tensor, "M n"]]:
        """The residual and a product; sums of squares of the result, in parts."""
        n, k = weight.shape
        out = torch.empty_like(residual)
        squares = residual
        for start, m in self._tiles(x.shape[0]):
            t = self._chosen("added", weight, m, n)
            if start == 0:
                squares = x.new_empty(x.shape[0], n // t.bn, dtype=torch.float32)
            parts = x.new_empty(t.split * n * m if t.split > 1 else 1, dtype=torch.float32)
            products.added_kernel[(n // t.bn, t.split)](
                x[start:], weight, residual[start:], out[start:], squares[start:], parts, self._arrivals_on(x.device), K=k,
                N=n, SPLIT=t.split, BM=m, **self._product(t),
            )  # fmt: skip
        return out, self.squares(out) if self.invariant else squares

    def gated(
        self, x: Float[Tensor, "M H"], squares: Float[Tensor, "M n"], weight: Float[Tensor, "2*I H"], eps: float
    ) -> Float[Tensor, "M I"]:
        """RMS norm, product, silu(gate) * up. The matrix holds all gates, then all ups."""
        units, count = weight.shape[0] // 2, squares.shape[1]
        out = x.new_empty(x.shape[0], units)
        for start, m in self._tiles(x.shape[0]):
            t = self._chosen("gated", weight, m, 2 * units)
            products.gated_kernel[(2 * units // t.bn,)](
                x[start:], weight, squares[start:], count, eps, out[start:], K=x.shape[1], UNITS=units,
                NUM_SQUARES=power_of_two(count), BM=m, **self._product(t),
            )  # fmt: skip
        return out

    def gate(self, both: Float[Tensor, "M 2*I"]) -> Float[Tensor, "M I"]:
        """What follows the product in `gated`, for many tokens."""
        units = both.shape[1] // 2
        out = both.new_empty(both.shape[0], units)
        rows.gate_kernel[(both.shape[0], _parts(units, GATE_WIDE))](
            both, out, UNITS=units, WIDE=GATE_WIDE, num_warps=4, **self._how()
        )
        return out

    def normed(self, x: Float[Tensor, "M H"], gain: Float[Tensor, "H"] | None, eps: float) -> Float[Tensor, "M H"]:
        """RMS norm; without a gain where that is part of the next matrix."""
        out, hidden = torch.empty_like(x), x.shape[1]
        rows.normed_kernel[(x.shape[0],)](
            x, gain, out, eps, H=hidden, WIDE=power_of_two(hidden), GAIN=gain is not None, num_warps=4, **self._how()
        )
        return out

    def added_norm(
        self, x: Float[Tensor, "M H"], y: Float[Tensor, "M H"], eps: float
    ) -> tuple[Float[Tensor, "M H"], Float[Tensor, "M H"]]:
        """x + y, and its RMS norm without a gain, for many tokens."""
        total, out, hidden = torch.empty_like(x), torch.empty_like(x), x.shape[1]
        rows.added_norm_kernel[(x.shape[0],)](
            x, y, total, out, eps, H=hidden, WIDE=power_of_two(hidden), num_warps=4, **self._how()
        )
        return total, out

    def scored(
        self, x: Float[Tensor, "M H"], weight: Float[Tensor, "V H"]
    ) -> tuple[Float[Tensor, "M V"], Int[Tensor, "M"]]:
        """Logits, and the place of the greatest, the first among equals; -1 where that is no finite number."""
        vocab, hidden = weight.shape
        logits = x.new_empty(x.shape[0], vocab)
        best = x.new_empty(x.shape[0], dtype=torch.int64)
        for start, m in self._tiles(x.shape[0]):
            t = self._chosen("scored", weight, m)
            tiles = _parts(vocab, t.bn)
            value = x.new_empty(m, tiles, dtype=torch.float32)
            place = x.new_empty(m, tiles, dtype=torch.int32)
            products.scored_kernel[(tiles,)](
                x[start:], weight, logits[start:], value, place, K=hidden, N=vocab, BM=m, **self._product(t)
            )
            products.best_kernel[(m,)](
                value, place, best[start:], tiles, TILES=power_of_two(tiles), num_warps=4, **self._how()
            )
        return logits, best

    def moved(
        self,
        store: Float[Tensor, "stores blocks kv block d"],
        source: Int[Tensor, "n"],
        to: Int[Tensor, "n"],
        starts: Int[Tensor, "B+1"],
        most: int,
    ) -> None:
        """Entries move along accepted paths. Places count entries: block * entries of a block + entry. `starts`: the first
        move of each sequence, then the number of all; `most`: moves of one sequence at most."""
        check_moves(store)
        if most > MOST_MOVES:
            return Twins().moved(store, source, to, starts, most)
        stores, _, kv, block, d = store.shape
        rows.moved_kernel[(starts.shape[0] - 1, kv, stores)](
            store, source, to, starts, store.stride(0), HEADS=kv, BLOCK=block, HD=d, WIDE=power_of_two(d),
            MOST=power_of_two(most), num_warps=4, **self._how(),
        )  # fmt: skip

    def _tiles(self, num_rows: int) -> list[tuple[int, int]]:
        """(first row, rows) of each launch."""
        return [(start, min(MOST, num_rows - start)) for start in range(0, num_rows, MOST)]

    def _chosen(self, kind: str, weight: Tensor, m: int, unit: int = 0, whole: bool = False) -> Tiles:
        # Batch-invariant: one division of the columns for every number of rows.
        tokens = MOST if self.invariant else m
        found = tiles_for(kind, weight.shape[1], weight.shape[0], tokens, unit, whole)
        if found is None:
            raise EngineError(
                f"no tile divides the {kind} product of {tuple(weight.shape)}\nhint: use stock operations"
            )
        return found

    def _product(self, t: Tiles) -> dict[str, Any]:
        return {
            "BN": t.bn,
            "BK": t.bk,
            "MATRIX_FIRST": t.matrix_first,
            "EARLY": t.early,
            "num_warps": t.warps,
            "num_stages": t.stages,
            **self._how(),
        }

    def _how(self) -> dict[str, Any]:
        # Fused multiply-adds are chosen by the compiler, for each tile anew.
        return overlapped() | ({"enable_fp_fusion": False} if self.invariant else {})

    def _arrivals_on(self, device: torch.device) -> Tensor:
        if device not in self._arrived:
            self._arrived[device] = torch.zeros(ARRIVALS, dtype=torch.int32, device=device)
        return self._arrived[device]


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)
