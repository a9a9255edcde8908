"""Attention of a ragged batch of trees over a cache in blocks.

    columns of a sequence   0 ............ begin .......... total
                            seen by all    by ancestors     not there yet

A token attends to the first `seen` columns, and behind `begin` to those whose bits are set in its words (rows.py). Tokens of
one sequence and the query heads that share a KV head are the rows of one tile, so keys are read once for all of
them. The columns are divided into parts of `SPLIT`, so that a single sequence fills the chip; `join_kernel` joins the parts.
Lengths are read from device memory: a captured launch serves every length that its grid covers.

Batch-invariant: tiles of columns lie at absolute multiples, `attention_kernel` folds only those that are wholly committed,
and `own_path_kernel` continues each token's own fold over its path in logical order, parts in order. So a token's sums are
the same whether its prefix is committed, staged in a line, or a path of a tree.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def folded(q, keys, values, visible, high, low_sum, acc, scale, MASKED: tl.constexpr, INVARIANT: tl.constexpr):
    """The running maximum, sum and mix of each row with one more tile of columns."""
    score = tl.dot(q, tl.trans(keys)) * scale
    if MASKED:
        score = tl.where(visible, score, float("-inf"))
    higher = tl.maximum(high, tl.max(score, axis=1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing so far
    weight = tl.exp2(score - base[:, None])
    old = tl.exp2(high - base)
    rounded = weight.to(values.dtype)
    if INVARIANT:
        # A product with ones adds in the order of the matrix instruction, whatever the tile; tl.sum does not.
        ones = tl.full((keys.shape[0], 16), 1.0, values.dtype)
        start = tl.broadcast_to((low_sum * old)[:, None], (q.shape[0], 16))
        low_sum = tl.max(tl.dot(rounded, ones, start), axis=1)
    else:
        low_sum = low_sum * old + tl.sum(weight, axis=1)
    acc = tl.dot(rounded, values, acc * old[:, None])
    return higher, low_sum, acc


@triton.jit
def attention_kernel(
    q_ptr, key_ptr, value_ptr, table_ptr, slot_ptr, done_ptr, begin_ptr, total_ptr, count_ptr, seen_ptr, words_ptr, out_ptr,
    mixed_ptr, sums_ptr, width, max_blocks, scale, parts, tiles,
    KV: tl.constexpr, GROUP: tl.constexpr, HD: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    BMQ: tl.constexpr, BKV: tl.constexpr, SPLIT: tl.constexpr, INVARIANT: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Grid: KV heads x tiles of rows, parts of the columns, sequences. A sequence of one part is written at once; the others
    leave a mix, its maximum and its sum for each part."""
    head, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    part, b = tl.program_id(1), tl.program_id(2)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    count, total, begin = tl.load(count_ptr + b), tl.load(total_ptr + b), tl.load(begin_ptr + b)
    if INVARIANT:
        total = tl.load(done_ptr + b) // BKV * BKV
    first = part * SPLIT
    if (first >= total) | (tile * BMQ >= count * GROUP):
        return
    r = tile * BMQ + tl.arange(0, BMQ)
    there = r // GROUP < count
    row = b * width + tl.minimum(r // GROUP, count - 1)
    d = tl.arange(0, HD)
    to = row * (KV * GROUP * HD) + (head * GROUP + r % GROUP) * HD
    q = tl.load(q_ptr + to[:, None] + d[None, :])
    seen = tl.load(seen_ptr + row)
    high = tl.full((BMQ,), float("-inf"), tl.float32)
    low_sum = tl.zeros((BMQ,), tl.float32)
    acc = tl.zeros((BMQ, HD), tl.float32)
    table = table_ptr + tl.load(slot_ptr + b).to(tl.int64) * max_blocks
    key_ptr += head * (BLOCK * HD)
    value_ptr += head * (BLOCK * HD)
    whole = tl.min(seen, axis=0) // BKV * BKV
    # Rows of known text alone see nothing behind themselves; a row of the tree may see all of it.
    last = tl.where(tl.max(seen, axis=0) >= begin, total, tl.minimum(total, tl.max(seen, axis=0)))
    stop = tl.minimum(first + SPLIT, last)
    for at in tl.range(first, tl.minimum(stop, whole), BKV):
        j = at + tl.arange(0, BKV)
        block = tl.load(table + j // BLOCK).to(tl.int64)
        place = block * (KV * BLOCK * HD) + (j % BLOCK) * HD
        keys = tl.load(key_ptr + place[:, None] + d[None, :])
        values = tl.load(value_ptr + place[:, None] + d[None, :])
        high, low_sum, acc = folded(q, keys, values, there, high, low_sum, acc, scale, False, INVARIANT)
    if not INVARIANT:
        for at in tl.range(tl.maximum(first, whole), stop, BKV):
            j = at + tl.arange(0, BKV)
            exists = j < total
            block = tl.load(table + j // BLOCK, mask=exists, other=0).to(tl.int64)
            place = block * (KV * BLOCK * HD) + (j % BLOCK) * HD
            keys = tl.load(key_ptr + place[:, None] + d[None, :], mask=exists[:, None], other=0.0)
            values = tl.load(value_ptr + place[:, None] + d[None, :], mask=exists[:, None], other=0.0)
            behind = j - begin
            near = tl.maximum(behind, 0)
            if WORDS == 1:
                word = tl.load(words_ptr + row)[:, None]
            else:
                which = tl.minimum(near // 64, WORDS - 1)
                word = tl.load(words_ptr + (row * WORDS)[:, None] + which[None, :])
            bit = (word >> (near % 64).to(tl.int64)[None, :]) & 1
            inside = (behind >= 0) & (behind < 64 * WORDS)
            visible = (j[None, :] < seen[:, None]) | (inside[None, :] & (bit == 1))
            visible = visible & exists[None, :]
            high, low_sum, acc = folded(q, keys, values, visible, high, low_sum, acc, scale, True, INVARIANT)
    if (total <= SPLIT) & (not INVARIANT):
        safe = tl.where(low_sum > 0, low_sum, 1.0)
        found = (acc / safe[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + to[:, None] + d[None, :], found, mask=there[:, None])
    else:
        own = ((b * KV + head) * tiles + tile) * parts + part
        rows = tl.arange(0, BMQ)
        tl.store(mixed_ptr + (own.to(tl.int64) * BMQ + rows)[:, None] * HD + d[None, :], acc)
        tl.store(sums_ptr + own * (2 * BMQ) + rows, high)
        tl.store(sums_ptr + own * (2 * BMQ) + BMQ + rows, low_sum)


@triton.jit
def join_kernel(
    mixed_ptr, sums_ptr, total_ptr, count_ptr, out_ptr, width, parts, tiles, KV: tl.constexpr, GROUP: tl.constexpr,
    HD: tl.constexpr, BMQ: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """The parts of each token and query head as one."""
    row, query_head = tl.program_id(0), tl.program_id(1)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    b, i = row // width, row % width
    total = tl.load(total_ptr + b)
    if (i >= tl.load(count_ptr + b)) | (total <= SPLIT):
        return
    r = i * GROUP + query_head % GROUP
    own = ((b * KV + query_head // GROUP) * tiles + r // BMQ) * parts
    at, p, d = r % BMQ, tl.arange(0, PARTS), tl.arange(0, HD)
    there = p < tl.cdiv(total, SPLIT)
    high = tl.load(sums_ptr + (own + p) * (2 * BMQ) + at, mask=there, other=float("-inf"))
    low_sum = tl.load(sums_ptr + (own + p) * (2 * BMQ) + BMQ + at, mask=there, other=0.0)
    place = ((own + p).to(tl.int64) * BMQ + at)[:, None] * HD + d[None, :]
    mixed = tl.load(mixed_ptr + place, mask=there[:, None], other=0.0)
    weight = tl.exp2(high - tl.max(high, axis=0))
    found = tl.sum(mixed * weight[:, None], axis=0) / tl.sum(weight * low_sum, axis=0)
    tl.store(out_ptr + row * (KV * GROUP * HD) + query_head * HD + d, found.to(out_ptr.dtype.element_ty))


@triton.jit
def paths_kernel(
    words_ptr, path_ptr, depth_ptr, WORDS: tl.constexpr, OVERLAPPED: tl.constexpr
):  # fmt: skip
    """path [R, 64 * WORDS]: the nodes on each token's path, from the top; depth [R]: how many. Numbers below 64 * WORDS."""
    row, bits = tl.program_id(0), tl.arange(0, 64)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    depth = 0
    for w in tl.static_range(WORDS):  # pyright: ignore[reportGeneralTypeIssues]  # unrolled by the compiler
        word = tl.load(words_ptr + row * WORDS + w)
        own = ((word >> bits.to(tl.int64)) & 1).to(tl.int32)
        rank = depth + tl.cumsum(own, axis=0) - 1
        tl.store(path_ptr + row * (64 * WORDS) + rank, w * 64 + bits, mask=own == 1)
        depth += tl.sum(own, axis=0)
    tl.store(depth_ptr + row, depth)


@triton.jit
def own_path_kernel(
    q_ptr, key_ptr, value_ptr, table_ptr, slot_ptr, done_ptr, begin_ptr, total_ptr, count_ptr, seen_ptr, path_ptr, depth_ptr,
    mixed_ptr, sums_ptr, out_ptr, width, max_blocks, scale, parts, tiles, KV: tl.constexpr, GROUP: tl.constexpr,
    HD: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, BMQ: tl.constexpr, BKV: tl.constexpr,
    SPLIT: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Batch-invariant: the parts of committed tiles folded in order, then the token's own columns in logical order."""
    row, head = tl.program_id(0), tl.program_id(1)
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
    b, i = row // width, row % width
    if i >= tl.load(count_ptr + b):
        return
    full = tl.load(done_ptr + b) // BKV * BKV
    begin, room = tl.load(begin_ptr + b), tl.load(total_ptr + b)
    depth = tl.load(depth_ptr + row)
    columns = tl.minimum(tl.load(seen_ptr + row), begin) + depth
    g, d = tl.arange(0, ROWS), tl.arange(0, HD)
    there = g < GROUP
    r = i * GROUP + tl.minimum(g, GROUP - 1)
    at = r % BMQ
    own = ((b * KV + head) * tiles + r // BMQ) * parts
    to = row * (KV * GROUP * HD) + (head * GROUP + tl.minimum(g, GROUP - 1)) * HD
    q = tl.load(q_ptr + to[:, None] + d[None, :])
    table = table_ptr + tl.load(slot_ptr + b).to(tl.int64) * max_blocks
    high = tl.full((ROWS,), float("-inf"), tl.float32)
    low_sum = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, HD), tl.float32)
    for s in tl.range(0, tl.cdiv(columns, SPLIT)):
        stored = s * SPLIT < full
        part_high = tl.load(sums_ptr + (own + s) * (2 * BMQ) + at, mask=there & stored, other=float("-inf"))
        part_sum = tl.load(sums_ptr + (own + s) * (2 * BMQ) + BMQ + at, mask=there & stored, other=0.0)
        slab = ((own + s).to(tl.int64) * BMQ + at)[:, None] * HD + d[None, :]
        part_mix = tl.load(mixed_ptr + slab, mask=(there & stored)[:, None], other=0.0)
        for first in tl.range(tl.maximum(full, s * SPLIT), tl.minimum(columns, (s + 1) * SPLIT), BKV):
            j = first + tl.arange(0, BKV)
            exists = j < columns
            node = tl.load(path_ptr + row * (64 * WORDS) + j - begin, mask=exists & (j >= begin), other=0)
            column = tl.where(j >= begin, begin + node, j)
            exists = exists & (column < room)
            block = tl.load(table + column // BLOCK, mask=exists, other=0).to(tl.int64)
            place = block * (KV * BLOCK * HD) + head * (BLOCK * HD) + (column % BLOCK) * HD
            keys = tl.load(key_ptr + place[:, None] + d[None, :], mask=exists[:, None], other=0.0)
            values = tl.load(value_ptr + place[:, None] + d[None, :], mask=exists[:, None], other=0.0)
            part_high, part_sum, part_mix = folded(
                q, keys, values, tl.broadcast_to(exists[None, :], (ROWS, BKV)), part_high, part_sum, part_mix, scale,
                True, True,
            )  # fmt: skip
        higher = tl.maximum(high, part_high)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        before, now = tl.exp2(high - base), tl.exp2(part_high - base)
        low_sum = low_sum * before + part_sum * now
        acc = acc * before[:, None] + part_mix * now[:, None]
        high = higher
    safe = tl.where(low_sum > 0, low_sum, 1.0)
    found = (acc / safe[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + to[:, None] + d[None, :], found, mask=there[:, None])
