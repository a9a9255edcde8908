"""Products of a few tokens with large matrices, together with what follows each of them in a layer.

    rotated    rms norm, query-key-value product, rotation; keys and values go into the cache
    gated      rms norm, gate and up product, silu(gate) * up
    added      product, added to the residual; sums of squares for the next norm
    scored     product with the LM head, the greatest logit of each tile

With so few tokens a product takes as long as reading its matrix, so every program reads rows of the matrix once, all tokens
at once, in fp32 sums. Norms: the gain is part of the matrix, and the scale of a token, which every output of it shares, is
multiplied behind the sums. A pair of rows that belong together (the halves of a rotation, gate and up) are neighbours in a
program's tile; the matrix keeps its order.

`BM` tokens (16, 32 or 64: buffers are as long, rows that hold no token compute what nobody reads), tiles of `BN` rows of the
matrix and `BK` columns at a time.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def sums(
    x_ptr, w_ptr, rows, first, K: tl.constexpr, PART: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, MATRIX_FIRST: tl.constexpr,
):  # fmt: skip
    """[BN, BM]: these rows of the matrix times all tokens, over `PART` columns from `first` on."""
    k = first + tl.arange(0, BK)
    w = w_ptr + rows.to(tl.int64)[:, None] * K + k[None, :]
    x = x_ptr + tl.arange(0, BM)[:, None] * K + k[None, :]
    if MATRIX_FIRST:
        acc = tl.zeros((BN, BM), tl.float32)
    else:
        acc = tl.zeros((BM, BN), tl.float32)
    for _ in tl.range(0, PART, BK):
        tile = tl.load(w, eviction_policy="evict_first")
        tokens = tl.load(x)
        if MATRIX_FIRST:
            acc = tl.dot(tile, tl.trans(tokens), acc)
        else:
            acc = tl.dot(tokens, tl.trans(tile), acc)
        w += BK
        x += BK
    if not MATRIX_FIRST:
        acc = tl.trans(acc)
    return acc


@triton.jit
def halves(acc, BN: tl.constexpr, BM: tl.constexpr):
    """Even and odd rows of [BN, BM]."""
    return tl.split(tl.permute(tl.reshape(acc, (BN // 2, 2, BM)), (0, 2, 1)))


@triton.jit
def scale_of(squares_ptr, count, eps, WIDTH: tl.constexpr, COUNT: tl.constexpr, BM: tl.constexpr):
    """[BM]: 1 / rms of each token, from `count` partial sums of its squares; `COUNT`: the next power of two."""
    m, t = tl.arange(0, BM), tl.arange(0, COUNT)
    part = tl.load(squares_ptr + m[:, None] * count + t[None, :], mask=(t < count)[None, :], other=0.0)
    return tl.rsqrt(tl.sum(part, axis=1) / WIDTH + eps)


@triton.jit
def rotated_kernel(
    x_ptr, w_ptr, bias_ptr, q_gain_ptr, k_gain_ptr, squares_ptr, num_squares, eps, angle_ptr, position_ptr, offset_ptr,
    q_ptr, key_ptr, value_ptr, num_rows, K: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr,
    BLOCK: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, NUM_SQUARES: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, MATRIX_FIRST: tl.constexpr, EARLY: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """q [BM, HEADS * HD]; keys and values at the offset of each token, where that is not negative. NORM: of each head of q
    and k; then a tile is a head."""
    start = tl.program_id(0) * BN
    head = start // HD
    n, m = tl.arange(0, BN), tl.arange(0, BM)
    within = (start % HD) // 2
    rows = head * HD + within + n // 2 + (n % 2) * (HD // 2)
    if OVERLAPPED:
        if EARLY:
            gdc_launch_dependents()
        gdc_wait()
    acc = sums(x_ptr, w_ptr, rows, 0, K, K, BM, BN, BK, MATRIX_FIRST)
    if OVERLAPPED and not EARLY:
        gdc_launch_dependents()
    acc = acc * scale_of(squares_ptr, num_squares, eps, K, NUM_SQUARES, BM)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + rows)[:, None].to(tl.float32)
    low, high = halves(acc, BN, BM)
    kind = q_ptr.dtype.element_ty
    low, high = low.to(kind).to(tl.float32), high.to(kind).to(tl.float32)
    j = within + tl.arange(0, BN // 2)
    if head < HEADS + KV:
        if NORM:
            rms = tl.rsqrt((tl.sum(low * low, axis=0) + tl.sum(high * high, axis=0)) / HD + eps)
            is_q = head < HEADS
            low_gain = tl.where(is_q, tl.load(q_gain_ptr + j), tl.load(k_gain_ptr + j)).to(tl.float32)
            high_gain = tl.where(is_q, tl.load(q_gain_ptr + HD // 2 + j), tl.load(k_gain_ptr + HD // 2 + j))
            low = (low * rms[None, :] * low_gain[:, None]).to(kind).to(tl.float32)
            high = (high * rms[None, :] * high_gain.to(tl.float32)[:, None]).to(kind).to(tl.float32)
        position = tl.load(position_ptr + m, mask=m < num_rows, other=0).to(tl.int64)
        cos = tl.load(angle_ptr + position[None, :] * HD + j[:, None])
        sin = tl.load(angle_ptr + position[None, :] * HD + HD // 2 + j[:, None])
        turned = low * cos - high * sin
        high = high * cos + low * sin
        low = turned
    if head < HEADS:
        to = q_ptr + m[None, :] * (HEADS * HD) + head * HD + j[:, None]
        tl.store(to, low.to(kind))
        tl.store(to + HD // 2, high.to(kind))
    else:
        offset = tl.load(offset_ptr + m, mask=m < num_rows, other=-1)[None, :]
        written = tl.broadcast_to(offset >= 0, (BN // 2, BM))
        if head < HEADS + KV:
            to = key_ptr + offset + (head - HEADS) * (BLOCK * HD) + j[:, None]
            tl.store(to, low.to(kind), mask=written)
            tl.store(to + HD // 2, high.to(kind), mask=written)
        else:
            to = value_ptr + offset + (head - HEADS - KV) * (BLOCK * HD) + j[:, None]
            tl.store(to, low.to(kind), mask=written)
            tl.store(to + HD // 2, high.to(kind), mask=written)


@triton.jit
def gated_kernel(
    x_ptr, w_ptr, squares_ptr, num_squares, eps, out_ptr, K: tl.constexpr, UNITS: tl.constexpr,
    NUM_SQUARES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MATRIX_FIRST: tl.constexpr,
    EARLY: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """out [BM, UNITS]: silu(gate) * up. The matrix holds all gates, then all ups."""
    n, m = tl.arange(0, BN), tl.arange(0, BM)
    first = tl.program_id(0) * (BN // 2)
    rows = first + n // 2 + (n % 2) * UNITS
    if OVERLAPPED:
        if EARLY:
            gdc_launch_dependents()
        gdc_wait()
    acc = sums(x_ptr, w_ptr, rows, 0, K, K, BM, BN, BK, MATRIX_FIRST)
    if OVERLAPPED and not EARLY:
        gdc_launch_dependents()
    acc = acc * scale_of(squares_ptr, num_squares, eps, K, NUM_SQUARES, BM)[None, :]
    gate, up = halves(acc, BN, BM)
    kind = out_ptr.dtype.element_ty
    gate, up = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
    mixed = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32) * up
    unit = first + tl.arange(0, BN // 2)
    tl.store(out_ptr + m[None, :] * UNITS + unit[:, None], mixed.to(kind))


@triton.jit
def added_kernel(
    x_ptr, w_ptr, residual_ptr, out_ptr, squares_ptr, part_ptr, arrived_ptr, K: tl.constexpr, N: tl.constexpr,
    SPLIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MATRIX_FIRST: tl.constexpr,
    EARLY: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """out [BM, N] = residual + product; squares [BM, N / BN]: sums of squares of its tiles. Several programs share the
    columns of one tile; the last that arrives adds their sums, always in the same order."""
    pid, part = tl.program_id(0), tl.program_id(1)
    n, m = tl.arange(0, BN), tl.arange(0, BM)
    if OVERLAPPED:
        if EARLY:
            gdc_launch_dependents()
        gdc_wait()
    acc = sums(x_ptr, w_ptr, pid * BN + n, part * (K // SPLIT), K, K // SPLIT, BM, BN, BK, MATRIX_FIRST)
    if OVERLAPPED and not EARLY:
        gdc_launch_dependents()
    if SPLIT > 1:
        own = part_ptr + pid * (SPLIT * BN * BM) + n[:, None] * BM + m[None, :]
        tl.store(own + part * (BN * BM), acc)
        tl.debug_barrier()
        if tl.atomic_add(arrived_ptr + pid, 1, sem="acq_rel") < SPLIT - 1:
            return
        acc = tl.zeros((BN, BM), tl.float32)
        for s in tl.static_range(SPLIT):  # pyright: ignore[reportGeneralTypeIssues]  # unrolled by the compiler
            acc += tl.load(own + s * (BN * BM), cache_modifier=".cg")
        tl.store(arrived_ptr + pid, 0)
    kind = out_ptr.dtype.element_ty
    at = m[None, :] * N + pid * BN + n[:, None]
    total = (acc.to(kind).to(tl.float32) + tl.load(residual_ptr + at).to(tl.float32)).to(kind)
    tl.store(out_ptr + at, total)
    exact = total.to(tl.float32)
    tl.store(squares_ptr + m * (N // BN) + pid, tl.sum(exact * exact, axis=0))


@triton.jit
def scored_kernel(
    x_ptr, w_ptr, logits_ptr, best_ptr, place_ptr, K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, MATRIX_FIRST: tl.constexpr, EARLY: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """logits [BM, N]; of each tile the greatest logit and its place, [BM, tiles]: NaN where the tile holds one."""
    pid, tiles = tl.program_id(0), tl.num_programs(0)
    n, m = pid * BN + tl.arange(0, BN), tl.arange(0, BM)
    if OVERLAPPED:
        if EARLY:
            gdc_launch_dependents()
        gdc_wait()
    inside = n < N
    acc = sums(x_ptr, w_ptr, tl.minimum(n, N - 1), 0, K, K, BM, BN, BK, MATRIX_FIRST)
    if OVERLAPPED and not EARLY:
        gdc_launch_dependents()
    rounded = acc.to(logits_ptr.dtype.element_ty)
    tl.store(logits_ptr + m[None, :].to(tl.int64) * N + n[:, None], rounded, mask=inside[:, None])
    value = rounded.to(tl.float32)
    broken = tl.max((value != value).to(tl.int32), axis=0) > 0
    value = tl.where(inside[:, None] & (value == value), value, float("-inf"))
    greatest = tl.max(value, axis=0)
    place = tl.min(tl.where(value == greatest[None, :], n[:, None], N), axis=0)
    tl.store(best_ptr + m * tiles + pid, tl.where(broken, float("nan"), greatest))
    tl.store(place_ptr + m * tiles + pid, place)


@triton.jit
def best_kernel(
    best_ptr, place_ptr, out_ptr, tiles, TILES: tl.constexpr, OVERLAPPED: tl.constexpr
):  # fmt: skip
    """The place of each token's greatest logit, the first among equals; -1 where it is not a finite number."""
    m = tl.program_id(0)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    t = tl.arange(0, TILES)
    value = tl.load(best_ptr + m * tiles + t, mask=t < tiles, other=float("-inf"))
    place = tl.load(place_ptr + m * tiles + t, mask=t < tiles, other=2147483647)
    broken = tl.max((value != value).to(tl.int32), axis=0) > 0
    greatest = tl.max(tl.where(value == value, value, float("-inf")), axis=0)
    found = tl.min(tl.where(value == greatest, place, 2147483647), axis=0)
    usable = (greatest > float("-inf")) & (greatest < float("inf")) & (not broken)
    tl.store(out_ptr + m, tl.where(usable, found, -1).to(tl.int64))
