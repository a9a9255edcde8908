"""What works on one row at a time: where each token writes and what it sees, norms, gates, rotation, entries that move.

A pass is a rectangle of sequences and tokens (runners/rectangles.py). Words: bits of the tree's nodes, 64 to a word; a
token's words are its ancestors and itself. Words of staged nodes stay in `trees`, for passes that add a level.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def placement_kernel(
    meta_ptr, parents_ptr, positions_ptr, table_ptr, trees_ptr, position_ptr, offset_ptr, seen_ptr, words_ptr,
    slot_ptr, done_ptr, begin_ptr, total_ptr, count_ptr, lines, width, room, max_blocks, most_position,
    max_nodes, BLOCK_STRIDE: tl.constexpr, HD: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    STORED: tl.constexpr, N: tl.constexpr, DOUBLINGS: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """One program a sequence. `meta`: slot, done, first, line, count of each. A token without room gets offset -1."""
    b = tl.program_id(0)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    slot, done = tl.load(meta_ptr + b), tl.load(meta_ptr + lines + b)
    first, line = tl.load(meta_ptr + 2 * lines + b), tl.load(meta_ptr + 3 * lines + b)
    count = tl.load(meta_ptr + 4 * lines + b)
    i = tl.arange(0, N)
    row, inside = b * width + i, i < width
    there = i < count
    place = done + first + i
    written = there & (place < room)
    block = tl.load(table_ptr + slot * max_blocks + place // BLOCK, mask=written, other=0)
    offset = block.to(tl.int64) * BLOCK_STRIDE + (place % BLOCK) * HD
    tl.store(offset_ptr + row, tl.where(written, offset, -1), mask=inside)
    position = tl.minimum(tl.load(positions_ptr + row, mask=there, other=0), most_position)
    tl.store(position_ptr + row, position.to(tl.int32), mask=inside)
    node = first + i - line  # number in the tree; negative: known text
    is_node = there & (node >= 0) & (node < 64 * WORDS)
    tl.store(seen_ptr + row, tl.where(node >= 0, done + line, place + 1).to(tl.int32), mask=inside)
    tl.store(slot_ptr + b, slot.to(tl.int32))
    tl.store(done_ptr + b, done.to(tl.int32))
    tl.store(begin_ptr + b, (done + line).to(tl.int32))
    tl.store(total_ptr + b, tl.minimum(done + first + count, room).to(tl.int32))
    tl.store(count_ptr + b, count.to(tl.int32))
    parent = tl.load(parents_ptr + row, mask=there, other=-1)
    local = parent - first  # the parent's place among these tokens; negative: it is from an earlier pass
    near = is_node & (parent >= line) & (local >= 0)
    above = (i[None, :] == i[:, None]) | ((i[None, :] == local[:, None]) & near[:, None])
    path = above.to(tl.float16)
    for _ in tl.static_range(DOUBLINGS):  # pyright: ignore[reportGeneralTypeIssues]  # each doubles the generations
        path = tl.minimum(tl.dot(path, path), 1.0).to(tl.float16)
    far = is_node & (parent >= line) & (local < 0)
    stored = trees_ptr + slot * max_nodes * STORED
    one = tl.full((N,), 1, tl.int64)
    for w in tl.static_range(WORDS):  # pyright: ignore[reportGeneralTypeIssues]  # unrolled by the compiler
        own = tl.where(is_node & (node // 64 == w), one << (node % 64), 0)
        own += tl.load(stored + (parent - line) * STORED + w, mask=far, other=0)
        word = tl.sum(tl.where(path > 0.5, own[None, :], 0), axis=1)  # their bits are disjoint
        tl.store(words_ptr + row * WORDS + w, word, mask=inside)
        tl.store(stored + node * STORED + w, word, mask=is_node)


@triton.jit
def entered_kernel(
    ids_ptr, given_ptr, table_ptr, x_ptr, squares_ptr, rows, H: tl.constexpr, WIDE: tl.constexpr, GIVEN: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """The residual before the first layer, from the embedding or given, and the sum of its squares. Zeros behind `rows`."""
    m = tl.program_id(0)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    d = tl.arange(0, WIDE)
    there = (d < H) & (m < rows)
    if GIVEN:
        x = tl.load(given_ptr + m * H + d, mask=there, other=0.0)
    else:
        token = tl.load(ids_ptr + m, mask=m < rows, other=0)
        x = tl.load(table_ptr + token * H + d, mask=there, other=0.0)
    x = x.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + m * H + d, x, mask=d < H)
    exact = x.to(tl.float32)
    tl.store(squares_ptr + m, tl.sum(exact * exact, axis=0))


@triton.jit
def squares_kernel(
    x_ptr, squares_ptr, H: tl.constexpr, WIDE: tl.constexpr, OVERLAPPED: tl.constexpr
):  # fmt: skip
    """The sum of each row's squares, one program a row: the same bits however many rows there are."""
    m, d = tl.program_id(0), tl.arange(0, WIDE)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    x = tl.load(x_ptr + m.to(tl.int64) * H + d, mask=d < H, other=0.0).to(tl.float32)
    tl.store(squares_ptr + m, tl.sum(x * x, axis=0))


@triton.jit
def normed_kernel(
    x_ptr, gain_ptr, out_ptr, eps, H: tl.constexpr, WIDE: tl.constexpr, GAIN: tl.constexpr, OVERLAPPED: tl.constexpr
):  # fmt: skip
    """RMS norm. GAIN: with its gain; else that is part of the matrix that comes next."""
    m = tl.program_id(0).to(tl.int64)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    d = tl.arange(0, WIDE)
    x = tl.load(x_ptr + m * H + d, mask=d < H, other=0.0).to(tl.float32)
    scaled = x * tl.rsqrt(tl.sum(x * x, axis=0) / H + eps)
    if GAIN:
        scaled = scaled * tl.load(gain_ptr + d, mask=d < H, other=0.0).to(tl.float32)
    tl.store(out_ptr + m * H + d, scaled.to(out_ptr.dtype.element_ty), mask=d < H)


@triton.jit
def turned_kernel(
    qkv_ptr, bias_ptr, q_gain_ptr, k_gain_ptr, angle_ptr, position_ptr, offset_ptr, q_ptr, key_ptr, value_ptr, rows, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
    NORM: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """For many tokens, whose product is a library's: norm and rotation of one head of a token, its entries in the cache."""
    m, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    if m >= rows:
        return
    j = tl.arange(0, HD // 2)
    start = qkv_ptr + m * ((HEADS + 2 * KV) * HD) + head * HD
    low, high = tl.load(start + j).to(tl.float32), tl.load(start + HD // 2 + j).to(tl.float32)
    kind = q_ptr.dtype.element_ty
    if BIAS:
        low = (low + tl.load(bias_ptr + head * HD + j)).to(kind).to(tl.float32)
        high = (high + tl.load(bias_ptr + head * HD + HD // 2 + j)).to(kind).to(tl.float32)
    if head < HEADS + KV:
        if NORM:
            scale = tl.rsqrt((tl.sum(low * low, axis=0) + tl.sum(high * high, axis=0)) / HD + eps)
            gain = q_gain_ptr
            if head >= HEADS:
                gain = k_gain_ptr
            low = (low * scale * tl.load(gain + j)).to(kind).to(tl.float32)
            high = (high * scale * tl.load(gain + HD // 2 + j)).to(kind).to(tl.float32)
        angle = angle_ptr + tl.load(position_ptr + m).to(tl.int64) * HD
        cos, sin = tl.load(angle + j), tl.load(angle + HD // 2 + j)
        turned = low * cos - high * sin
        high = high * cos + low * sin
        low = turned
    if head < HEADS:
        to = q_ptr + m * (HEADS * HD) + head * HD + j
        tl.store(to, low.to(kind))
        tl.store(to + HD // 2, high.to(kind))
    else:
        offset = tl.load(offset_ptr + m)
        if offset >= 0:
            if head < HEADS + KV:
                to = key_ptr + offset + (head - HEADS) * (BLOCK * HD) + j
                tl.store(to, low.to(kind))
                tl.store(to + HD // 2, high.to(kind))
            else:
                to = value_ptr + offset + (head - HEADS - KV) * (BLOCK * HD) + j
                tl.store(to, low.to(kind))
                tl.store(to + HD // 2, high.to(kind))


@triton.jit
def gate_kernel(
    both_ptr, out_ptr, UNITS: tl.constexpr, WIDE: tl.constexpr, OVERLAPPED: tl.constexpr
):  # fmt: skip
    """silu(gate) * up for many tokens."""
    m, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDE
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    u = at + tl.arange(0, WIDE)
    gate = tl.load(both_ptr + m * 2 * UNITS + u, mask=u < UNITS, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + m * 2 * UNITS + UNITS + u, mask=u < UNITS, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    mixed = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32) * up
    tl.store(out_ptr + m * UNITS + u, mixed.to(kind), mask=u < UNITS)


@triton.jit
def added_norm_kernel(
    x_ptr, y_ptr, sum_ptr, out_ptr, eps, H: tl.constexpr, WIDE: tl.constexpr, OVERLAPPED: tl.constexpr
):  # fmt: skip
    """For many tokens: x + y, and its RMS norm, whose gain is part of the matrix that comes next."""
    m = tl.program_id(0).to(tl.int64)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    d = tl.arange(0, WIDE)
    kind = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + m * H + d, mask=d < H, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + m * H + d, mask=d < H, other=0.0).to(tl.float32)
    total = (x + y).to(kind)
    tl.store(sum_ptr + m * H + d, total, mask=d < H)
    exact = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, axis=0) / H + eps)
    tl.store(out_ptr + m * H + d, (exact * scale).to(kind), mask=d < H)


@triton.jit
def moved_kernel(
    store_ptr, source_ptr, to_ptr, start_ptr, store_stride, HEADS: tl.constexpr, BLOCK: tl.constexpr, HD: tl.constexpr,
    WIDE: tl.constexpr, MOST: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Entries of one sequence, one head and one store move along its accepted path. All are read before one is written,
    because a place may be both left and taken."""
    b, head, store = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    first, stop = tl.load(start_ptr + b), tl.load(start_ptr + b + 1)
    i, d = first + tl.arange(0, MOST), tl.arange(0, WIDE)
    there = (i < stop)[:, None] & (d < HD)[None, :]
    source = tl.load(source_ptr + i, mask=i < stop, other=0)
    to = tl.load(to_ptr + i, mask=i < stop, other=0)
    own = store_ptr + store.to(tl.int64) * store_stride + head * (BLOCK * HD) + d[None, :]
    read = (source // BLOCK) * (HEADS * BLOCK * HD) + (source % BLOCK) * HD
    written = (to // BLOCK) * (HEADS * BLOCK * HD) + (to % BLOCK) * HD
    x = tl.load(own + read[:, None], mask=there, other=0.0)
    tl.debug_barrier()
    tl.store(own + written[:, None], x, mask=there)
