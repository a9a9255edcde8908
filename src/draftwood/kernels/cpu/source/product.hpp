// Products of byte activations with packed weights. Sixteen weight rows and four columns make one vector, so sums need no
// shuffling. The sum over a block of 32 columns is an exact integer; blocks are added as floats in column order. The result
// of a token therefore does not depend on other tokens of the pass.
#pragma once
#include "pool.hpp"
#include "blocks.hpp"

constexpr int AHEAD = 4096;  // bytes that are prefetched before they are read

// The sum over the 16 columns of w[0..3].
template <int KIND> static inline I dot_half(const W* w, I start, const int8_t* x) {
#if defined(SPLIT_BYTES)
  if (is_wide(KIND)) {
    I hi = whole(0), lo = start;
    for (int c = 0; c < 4; c++) {
      hi = dot(hi, high_nibble(w[c]), quad(x + 4 * c));
      lo = dot(lo, low_nibble(w[c]), quad(x + 4 * c));
    }
    return shifted(hi, lo, 4);
  }
#endif
  for (int c = 0; c < 4; c++) start = dot(start, w[c], quad(x + 4 * c));
  return start;
}

// The sum over a block, in two chains, because each product waits for the one before it.
template <int KIND> static inline I dot_block(const W* w, I start, const int8_t* x) {
  return both(dot_half<KIND>(w, start, x), dot_half<KIND>(w + 4, whole(0), x + 16));
}

// What a sum begins with: less the offset of the levels, times the activations.
template <int KIND> static inline I begin(int less) {
  constexpr int SHIFT = SIGNED && is_wide(KIND) ? -1 : offset_shift(KIND);
  return SHIFT < 0 ? whole(0) : shifted<SHIFT < 0 ? 0 : SHIFT>(whole(less));
}

// The sum over a block for token t; `two`: it has a second digit.
template <int KIND> static inline I sum_block(const W* w, const Block& x, int t, bool two, I left, I right) {
  if (KIND == Q6_K) {
    I sums[2];
    for (int h = 0; h < 2; h++) {
      const I start = begin<KIND>(x.less(t, h));
      const I s = dot_half<KIND>(w + 4 * h, two ? whole(0) : start, x.hi[t] + 16 * h);
      sums[h] = two ? join(s, dot_half<KIND>(w + 4 * h, start, x.lo[t] + 16 * h)) : s;
    }
    return both(sums[0] * left, sums[1] * right);
  }
  const I start = begin<KIND>(x.less(t));
  if (two) return join(dot_block<KIND>(w, whole(0), x.hi[t]), dot_block<KIND>(w, start, x.lo[t]));
  return dot_block<KIND>(w, start, x.hi[t]);
}

// One group of weight rows for the NT tokens of a tile. two[b]: bit mask of the tokens with a second digit in block b.
template <int KIND, int NT>
static void tile(const Matrix& m, int group, const Block* x, int blocks, const uint32_t* two, F* out) {
  const uint8_t* data = m.data + group * stream_bytes(KIND, blocks);
  F acc[NT];  // not `out`, which would be written to memory first
  for (int t = 0; t < NT; t++) acc[t] = set1(0.0f);
  for (int b = 0; b < blocks; b++, x++) {
    const Chunk<KIND> chunk(data, b);
    chunk.prefetch(AHEAD);
    W w[8];
    chunk.load(w);
    const F scale = chunk.scale(), minimum = chunk.minimum();
    I left = whole(0), right = left;
    if (KIND == Q6_K) { left = chunk.whole_scale(0); right = chunk.whole_scale(1); }
    const uint32_t outliers = two[b];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
      const I s = sum_block<KIND>(w, *x, t, outliers >> t & 1, left, right);
      acc[t] = fma(real(s), scale * set1(x->factor(t)), acc[t]);
      if (has_minimum(KIND)) acc[t] = fma(minimum, set1(x->total(t)), acc[t]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < NT; t++) out[t] = acc[t];
}

// The same for weights that are floats, with activations as they are: x [NT][columns, padded to blocks]. Columns are added in
// order.
template <int KIND, int NT>
static void float_tile(const Matrix& m, int group, const float* x, F* out) {
  constexpr int BYTES = layout_of(KIND).block / BLOCK;  // of a column
  const uint8_t* p = m.data + group * m.group_bytes();
  const size_t stride = (size_t)m.blocks() * BLOCK;
  F acc[NT];
  for (int t = 0; t < NT; t++) acc[t] = set1(0.0f);
  for (size_t c = 0; c < stride; c++) {
#if defined(__GNUC__)
    if (c % (64 / BYTES + (BYTES == 64)) == 0) __builtin_prefetch(p + c * BYTES + AHEAD, 0, 3);
#endif
    const F w = load_weights<KIND>(p + c * BYTES);
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) acc[t] = fma(w, set1(x[t * stride + c]), acc[t]);
  }
  for (int t = 0; t < NT; t++) out[t] = acc[t];
}

// The same for any number of tokens, and for G groups of rows at once, which share what is loaded of the activations. With
// two groups there are more sums than registers, so they are in memory: in out [G][tokens].
template <int KIND, int G>
static void several(const Matrix& m, int group, const Block* x, int blocks, const uint32_t* two, int tokens, F* out) {
  const size_t size = stream_bytes(KIND, blocks);
  const uint8_t* data[G];
  for (int g = 0; g < G; g++) data[g] = m.data + (group + g) * size;
  F* acc[G];
  for (int g = 0; g < G; g++) acc[g] = out + g * tokens;
  for (int i = 0; i < G * tokens; i++) out[i] = set1(0.0f);
  for (int b = 0; b < blocks; b++, x++) {
    W w[G][8];
    F scale[G], minimum[G];
    I left[G], right[G];
    for (int g = 0; g < G; g++) {
      const Chunk<KIND> chunk(data[g], b);
      const bool over = (size_t)(chunk.block - data[g]) + AHEAD >= size;  // of this group: then what G groups on begins with
      chunk.prefetch(over ? AHEAD + (G - 1) * size : AHEAD);
      chunk.load(w[g]);
      scale[g] = chunk.scale();
      minimum[g] = chunk.minimum();
      if (KIND == Q6_K) { left[g] = chunk.whole_scale(0); right[g] = chunk.whole_scale(1); }
    }
    const uint32_t outliers = two[b];
    for (int t = 0; t < tokens; t++) {
      I s[G];
      if (outliers >> t & 1) {
        for (int g = 0; g < G; g++) s[g] = sum_block<KIND>(w[g], *x, t, true, left[g], right[g]);
      } else {
        const int8_t* hi = x->hi[t];
        I more[G];
        for (int g = 0; g < G; g++) {
          s[g] = begin<KIND>(KIND == Q6_K ? x->less(t, 0) : x->less(t));
          more[g] = KIND == Q6_K ? begin<KIND>(x->less(t, 1)) : whole(0);
        }
        for (int c = 0; c < 4; c++)
          for (int g = 0; g < G; g++) {
            s[g] = dot(s[g], w[g][c], quad(hi + 4 * c));
            more[g] = dot(more[g], w[g][c + 4], quad(hi + 16 + 4 * c));
          }
        for (int g = 0; g < G; g++)
          s[g] = KIND == Q6_K ? both(s[g] * left[g], more[g] * right[g]) : both(s[g], more[g]);
      }
      for (int g = 0; g < G; g++) {
        F sum = fma(real(s[g]), scale[g] * set1(x->factor(t)), acc[g][t]);
        if (has_minimum(KIND)) sum = fma(minimum[g], set1(x->total(t)), sum);
        acc[g][t] = sum;
      }
    }
  }
}

using Tile = void (*)(const Matrix&, int, const Block*, int, const uint32_t*, int, F*);
using FloatTile = void (*)(const Matrix&, int, const float*, F*);
struct Tiles { Tile one, two; };  // for one group of rows, and for two

#if defined(__AMX_INT8__)
#include "amx.hpp"
#else
static inline void tiles_begin(int) {}
static inline void tiles_end(int) {}
#endif

#if defined(__AVX512F__)
template <int KIND>
static void group_tile(const Matrix& m, int group, const Block* x, int blocks, const uint32_t* two, int tokens, F* out) {
#if defined(__AMX_INT8__)
  if (on_matrix_unit<KIND>(tokens)) return matrix_tile<KIND>(m, group, x, blocks, two, tokens, out);
#endif
  if (tokens == 1) return tile<KIND, 1>(m, group, x, blocks, two, out);
  several<KIND, 1>(m, group, x, blocks, two, tokens, out);
}
template <int KIND>
static void pair_tile(const Matrix& m, int group, const Block* x, int blocks, const uint32_t* two, int tokens, F* out) {
  bool apart = tokens == 1;
#if defined(__AMX_INT8__)
  apart |= on_matrix_unit<KIND>(tokens);
#endif
  if (!apart) return several<KIND, 2>(m, group, x, blocks, two, tokens, out);
  group_tile<KIND>(m, group, x, blocks, two, tokens, out);
  group_tile<KIND>(m, group + 1, x, blocks, two, tokens, out + tokens);
}
#else
template <int KIND>
static void group_tile(const Matrix& m, int group, const Block* x, int blocks, const uint32_t* two, int tokens, F* out) {
  switch (tokens) {
    case 1: return tile<KIND, 1>(m, group, x, blocks, two, out);
    case 2: return tile<KIND, 2>(m, group, x, blocks, two, out);
    case 3: return tile<KIND, 3>(m, group, x, blocks, two, out);
    default: return tile<KIND, 4>(m, group, x, blocks, two, out);
  }
}
template <int KIND>
static void pair_tile(const Matrix& m, int group, const Block* x, int blocks, const uint32_t* two, int tokens, F* out) {
  group_tile<KIND>(m, group, x, blocks, two, tokens, out);
  group_tile<KIND>(m, group + 1, x, blocks, two, tokens, out + tokens);
}
#endif

template <int KIND> static Tiles tiles_for() { return {group_tile<KIND>, pair_tile<KIND>}; }

static Tiles tiles_of(int kind) {
  switch (kind) {
    case Q4_0: return tiles_for<Q4_0>();
    case Q4_1: return tiles_for<Q4_1>();
    case Q5_0: return tiles_for<Q5_0>();
    case Q5_1: return tiles_for<Q5_1>();
    case Q4_K: return tiles_for<Q4_K>();
    case Q5_K: return tiles_for<Q5_K>();
    case Q6_K: return tiles_for<Q6_K>();
    case IQ4_NL: return tiles_for<IQ4_NL>();
    case IQ4_XS: return tiles_for<IQ4_XS>();
    default: return tiles_for<Q8_0>();
  }
}

// By the number of tokens, from 1.
template <int KIND, int... N> static const FloatTile* float_tiles(std::integer_sequence<int, N...>) {
  static const FloatTile all[] = {float_tile<KIND, N + 1>...};
  return all;
}
static const FloatTile* float_tiles_of(int kind) {
  using Counts = std::make_integer_sequence<int, TILE_TOKENS>;
  if (kind == F32) return float_tiles<F32>(Counts());
  return kind == F16 ? float_tiles<F16>(Counts()) : float_tiles<BF16>(Counts());
}

enum Use { SET, ADD };  // y = x W^T + b, or y += x W^T + b

static inline void emit(const Matrix& m, int group, F value, float* y, Use use) {
  const int at = group * LANES, n = m.rows - at;
  if (m.bias != nullptr) value = value + load_some(m.bias + at, n);
  if (use == ADD) value = load_some(y + at, n) + value;
  store_some(y + at, value, n);
}

// two[tile][block]: which tokens have a second digit there.
static inline void mark_outliers(const Activations& x, uint32_t* two) {
  for (int c = 0; c < x.cut.count; c++)
    for (int b = 0; b < x.blocks; b++) two[(size_t)c * x.blocks + b] = x.two(c, b);
}

struct Product {  // one of several that are computed together
  const Matrix* m;
  const Activations* x;
  float* y;  // [tokens][stride]
};

struct Part {  // of a product: rows of one kind
  const Matrix* m;
  const Activations* x;
  const uint32_t* two;
  float* y;
  int begin;  // groups of the parts before it
};

struct Room {  // memory of products
  Buffer flags;
  std::vector<Part> parts;
};

// How many pieces a product is divided into.
static inline int pieces_of(const Team& team, int groups) { return team.size == 1 ? 1 : std::min(groups, team.size * 4); }

// The sums of `count` groups and n tokens, as a tile returns them.
static inline void emit_tile(const Matrix& m, int group, int count, int n, const F* sums, float* y, size_t stride, Use use) {
  for (int g = group; g < group + count; g++)
    for (int t = 0; t < n; t++) emit(m, g, *sums++, y + t * stride, use);
}

constexpr size_t NEAR = 640 << 10;  // bytes of weights that stay in the second-level cache while many tiles pass

// Groups [from, to) of a part.
static inline void multiply_groups(const Part& p, int from, int to, int stride, Use use) {
  const Matrix& m = *p.m;
  const Activations& x = *p.x;
  alignas(64) F out[2 * TILE_TOKENS];
  if (is_float(m.kind)) {
    const FloatTile* tiles = float_tiles_of(m.kind);
    for (int g = from; g < to; g++)
      for (int c = 0; c < x.cut.count; c++) {
        const int n = x.tokens_in(c), first = c * x.cut.size;
        tiles[n - 1](m, g, x.floats + (size_t)first * x.blocks * BLOCK, out);
        emit_tile(m, g, 1, n, out, p.y + (size_t)first * stride, stride, use);
      }
    return;
  }
  const Tiles tiles = tiles_of(m.kind);
  const int few = x.cut.count == 1 ? to - from : std::max(2, (int)(NEAR / m.group_bytes()) & ~1);
  for (; from < to; from += few)
    for (int c = 0; c < x.cut.count; c++) {
      const int n = x.tokens_in(c), first = c * x.cut.size, end = std::min(from + few, to);
      for (int g = from; g < end; g += 2) {
        const int count = std::min(2, end - g);
        (count == 2 ? tiles.two : tiles.one)(m, g, x.tile(c), x.blocks, p.two + (size_t)c * x.blocks, n, out);
        emit_tile(m, g, count, n, out, p.y + (size_t)first * stride, stride, use);
      }
    }
}

// Products over as many tokens each: the threads divide their groups of rows as if they were one matrix's.
static inline void multiply_all(const Team& team, const Product* all, int count, Room& room, int stride, Use use) {
  size_t flags = 0;
  for (int j = 0; j < count; j++) flags += (size_t)all[j].x->cut.count * all[j].x->blocks;
  uint32_t* two = room.flags.get<uint32_t>(flags);
  room.parts.clear();
  int groups = 0;
  for (int j = 0; j < count; j++) {
    const Activations& x = *all[j].x;
    mark_outliers(x, two);
    float* y = all[j].y;
    for (const Matrix* m = all[j].m; m != nullptr; m = m->rest) {
      room.parts.push_back({m, &x, two, y, groups});
      groups += m->groups();
      y += m->rows;
    }
    two += (size_t)x.cut.count * x.blocks;
  }
  const int pieces = pieces_of(team, groups), size = all[0].x->cut.size;
  team.each(pieces, [&](int piece, int) {
    const int from = (int)((int64_t)groups * piece / pieces), to = (int)((int64_t)groups * (piece + 1) / pieces);
    tiles_begin(size);
    for (const Part& p : room.parts) {
      const int first = std::max(from - p.begin, 0), behind = std::min(to - p.begin, p.m->groups());
      if (first < behind) multiply_groups(p, first, behind, stride, use);
    }
    tiles_end(size);
  });
}

static inline void multiply(const Team& team, const Matrix& m, const Activations& x, Room& room, float* y, int stride,
                            Use use) {
  const Product one{&m, &x, y};
  multiply_all(team, &one, 1, room, stride, use);
}

// The rows of a matrix behind the first `rows`; `data` is null if they do not begin a group.
static inline Matrix behind(const Matrix& all, int rows) {
  Matrix m = all;
  for (; rows >= m.rows && m.rest != nullptr; m = *m.rest) rows -= m.rows;
  if (rows % LANES != 0) m.data = nullptr;
  if (m.data == nullptr) return m;
  m.data += rows / LANES * m.group_bytes();
  m.rows -= rows;
  if (m.bias != nullptr) m.bias += rows;
  return m;
}
