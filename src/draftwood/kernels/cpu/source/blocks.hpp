// The block types of packed weights: where a group of 16 rows keeps its bytes, and how they become whole numbers and scales.
// `models/backends/quantised_blocks/kinds.py` describes the same layout and writes it.
//
// A group is one stream of chunks. A chunk is a head with the scales, then 1, 2 or 8 blocks of 32 columns; the last chunk of a
// group may have fewer blocks. A block's bits above the fourth come before its low bits.
//
//   Q4_1, Q5_1           scale * level + minimum
//   Q4_0, Q5_0, Q8_0     scale * (level - offset); IQ4_NL: scale * table[level]
//   Q4_K, Q5_K           (d * scale) * level + (-dmin * minimum)      8 blocks share d and dmin, scales are whole numbers
//   IQ4_XS               (d * scale) * table[level]
//   Q6_K                 d * (scale * (level - 32))                   each half of a block has a whole scale
#pragma once
#include "activations.hpp"
#include "integers.hpp"

enum Kind : int32_t {  // numbered as in GGUF files
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20,
  IQ4_XS = 23, BF16 = 30
};
constexpr int INTEGERS[] = {Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS};

struct Layout { int blocks, head, block; };  // blocks of a chunk; bytes of its head and of a block, for 16 rows

constexpr Layout layout_of(int kind) {
  return kind == F32 ? Layout{1, 0, 2048}
       : kind == F16 || kind == BF16 ? Layout{1, 0, 1024}
       : kind == Q4_1 ? Layout{1, 64, 256}
       : kind == Q5_1 ? Layout{1, 64, 320}
       : kind == Q5_0 ? Layout{2, 64, 320}
       : kind == Q8_0 ? Layout{2, 64, 512}
       : kind == Q4_K ? Layout{8, 320, 256}
       : kind == Q5_K ? Layout{8, 320, 320}
       : kind == Q6_K ? Layout{8, 320, 384}
       : kind == IQ4_XS ? Layout{8, 192, 256}
       : Layout{2, 64, 256};  // Q4_0, IQ4_NL
}
constexpr size_t stream_bytes(int kind, int blocks) {
  return (size_t)((blocks + layout_of(kind).blocks - 1) / layout_of(kind).blocks) * layout_of(kind).head +
         (size_t)blocks * layout_of(kind).block;
}
constexpr bool is_float(int kind) { return kind == F32 || kind == F16 || kind == BF16; }
constexpr bool has_table(int kind) { return kind == IQ4_NL || kind == IQ4_XS; }
constexpr bool has_minimum(int kind) { return kind == Q4_1 || kind == Q5_1 || kind == Q4_K || kind == Q5_K; }
constexpr bool has_fifth(int kind) { return kind == Q5_0 || kind == Q5_1 || kind == Q5_K; }
// Levels above 63: twice the product of one with a byte does not fit into 16 bits.
constexpr bool is_wide(int kind) { return kind == Q8_0 || has_table(kind); }
// What is stored is 2^shift more than the level; -1: as much as the level.
constexpr int offset_shift(int kind) {
  return kind == Q4_0 ? 3 : kind == Q5_0 ? 4 : kind == Q6_K ? 5 : is_wide(kind) ? 7 : -1;
}

// Levels of IQ4_NL and IQ4_XS, plus 128.
alignas(16) static const uint8_t NONLINEAR[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

struct Matrix {
  const uint8_t* data;
  const float* bias;  // or null
  int32_t rows, columns, kind;
  const Matrix* rest;  // the rows below these, if they are of another kind, or null

  int groups() const { return (rows + LANES - 1) / LANES; }
  int blocks() const { return (columns + BLOCK - 1) / BLOCK; }
  size_t group_bytes() const { return stream_bytes(kind, blocks()); }
  int all_rows() const { return rows + (rest == nullptr ? 0 : rest->all_rows()); }
  bool has_floats() const { return is_float(kind) || (rest != nullptr && rest->has_floats()); }
};

template <int KIND> struct Chunk {  // of block b of a group
  static constexpr Layout L = layout_of(KIND);
  const uint8_t *head, *block;
  int index;  // of the block within the chunk

  Chunk(const uint8_t* group, int b)
      : head(group + (size_t)(b / L.blocks) * (L.head + L.blocks * L.block)), index(b % L.blocks) {
    block = head + L.head + index * L.block;
  }

  // Fetches what lies `ahead` bytes from here: a block, and the head before the first one. Groups follow one another in one
  // stream. Behind the last one this has no effect.
  void prefetch(size_t ahead) const {
#if defined(__GNUC__)
    const uint8_t* p = block + ahead;
    for (int i = 0; i < L.block; i += 64) __builtin_prefetch(p + i, 0, 3);
    if (index == 0)
      for (int i = 0; i < L.head; i += 64) __builtin_prefetch(p - L.head + i, 0, 3);
#endif
  }

  // w[v]: the levels of columns 4v..4v+3 as products take them.
  void load(W* w) const {
    load_stored(w);
    if (SIGNED && is_wide(KIND))
      for (int v = 0; v < 8; v++) w[v] = turned(w[v]);
  }

  // The same as they are stored.
  void load_stored(W* w) const {
    if (KIND == Q8_0) {
      for (int v = 0; v < 8; v++) w[v] = load_w(block + 64 * v);
      return;
    }
    const uint8_t* low = block + L.block - 256;
    for (int v = 0; v < 4; v++) {
      const W packed = load_w(low + 64 * v);
      w[v] = low_nibble(packed);
      w[v + 4] = high_nibble(packed);
    }
    if (has_table(KIND))
      for (int v = 0; v < 8; v++) w[v] = look_up(NONLINEAR, w[v]);
    if (has_fifth(KIND)) {
      const W a = load_w(block);
      w[0] = either(w[0], bits<4, 16>(a));
      w[1] = either(w[1], bits<3, 16>(a));
      w[2] = either(w[2], bits<2, 16>(a));
      w[3] = either(w[3], bits<1, 16>(a));
      w[4] = either(w[4], bits<0, 16>(a));
      w[5] = either(w[5], bits<-1, 16>(a));
      w[6] = either(w[6], bits<-2, 16>(a));
      w[7] = either(w[7], bits<-3, 16>(a));
    }
    if (KIND == Q6_K)
      for (int h = 0; h < 2; h++) {
        const W a = load_w(block + 64 * h);
        w[4 * h] = either(w[4 * h], bits<4, 48>(a));
        w[4 * h + 1] = either(w[4 * h + 1], bits<2, 48>(a));
        w[4 * h + 2] = either(w[4 * h + 2], bits<0, 48>(a));
        w[4 * h + 3] = either(w[4 * h + 3], bits<-2, 48>(a));
      }
  }

  F half(int i) const { return load_half((const uint16_t*)head + LANES * i); }
  // Of a level; of Q6_K: of a level times its whole scale.
  F scale() const {
    if (KIND == Q4_K || KIND == Q5_K || KIND == IQ4_XS) return half(0) * real_signed(head + 64 + LANES * index);
    return L.blocks == 2 ? half(index) : half(0);
  }
  F minimum() const {
    if (KIND == Q4_K || KIND == Q5_K) return half(1) * real_signed(head + 192 + LANES * index);
    return has_minimum(KIND) ? half(1) : set1(0.0f);
  }
  I whole_scale(int h) const { return load_signed(head + 64 + LANES * (2 * index + h)); }
};

// Row `id` of the weights as floats.
template <int KIND>
static void unpack_integers(const Matrix& m, int64_t id, float* y) {
  const uint8_t* group = m.data + (id / LANES) * m.group_bytes();
  const int r = (int)(id % LANES);
  constexpr int OFFSET = offset_shift(KIND) < 0 ? 0 : 1 << (offset_shift(KIND) < 0 ? 0 : offset_shift(KIND));
  for (int b = 0; b < m.blocks(); b++) {
    const Chunk<KIND> chunk(group, b);
    W w[8];
    uint8_t bytes[512];
    float scale[LANES], minimum[LANES];
    chunk.load_stored(w);
    for (int v = 0; v < 8; v++) store_w(bytes + 64 * v, w[v]);
    store(scale, chunk.scale());
    store(minimum, chunk.minimum());
    for (int c = 0; c < std::min(BLOCK, m.columns - b * BLOCK); c++) {
      const float level = (float)((int)bytes[64 * (c / 4) + 4 * r + c % 4] - OFFSET);
      const int8_t whole = (int8_t)chunk.head[64 + LANES * (2 * chunk.index + c / 16) + r];  // of Q6_K
      const float by = KIND == Q6_K ? scale[r] * (float)whole : scale[r];
      y[b * BLOCK + c] = has_minimum(KIND) ? by * level + minimum[r] : by * level;
    }
  }
}

// Sixteen weights of a column.
template <int KIND> static inline F load_weights(const uint8_t* p) {
  return KIND == F32 ? load((const float*)p) : KIND == F16 ? load_half((const uint16_t*)p) : load_bfloat((const uint16_t*)p);
}

template <int KIND>
static void unpack_floats(const Matrix& m, int64_t id, float* y) {
  const uint8_t* group = m.data + (id / LANES) * m.group_bytes();
  float t[LANES];
  for (int c = 0; c < m.columns; c++) {
    store(t, load_weights<KIND>(group + (size_t)c * (layout_of(KIND).block / BLOCK)));
    y[c] = t[id % LANES];
  }
}

static inline void unpack_row(const Matrix& m, int64_t id, float* y) {
  switch (m.kind) {
    case F32: return unpack_floats<F32>(m, id, y);
    case F16: return unpack_floats<F16>(m, id, y);
    case BF16: return unpack_floats<BF16>(m, id, y);
    case Q4_0: return unpack_integers<Q4_0>(m, id, y);
    case Q4_1: return unpack_integers<Q4_1>(m, id, y);
    case Q5_0: return unpack_integers<Q5_0>(m, id, y);
    case Q5_1: return unpack_integers<Q5_1>(m, id, y);
    case Q8_0: return unpack_integers<Q8_0>(m, id, y);
    case Q4_K: return unpack_integers<Q4_K>(m, id, y);
    case Q5_K: return unpack_integers<Q5_K>(m, id, y);
    case Q6_K: return unpack_integers<Q6_K>(m, id, y);
    case IQ4_NL: return unpack_integers<IQ4_NL>(m, id, y);
    case IQ4_XS: return unpack_integers<IQ4_XS>(m, id, y);
  }
}
