// Products of byte activations with packed weights. Sixteen weight rows and four columns make one vector, so sums need no
// shuffling. The sum over a block of 32 columns is an exact integer; blocks are added as floats in column order. The result
// of a token therefore does not depend on other tokens of the pass.
//
// Packed: for every group of 16 weight rows, first the weights of all blocks, then their scales as halves.
//   kind 4  256 bytes a block: byte 4r + k of vector v holds column 4v + k (low nibble) and 16 + 4v + k (high nibble)
//           of row r; 16 scales, 16 minima. weight = scale * nibble + minimum
//   kind 8  512 bytes a block: byte 4r + k of vector v holds column 4v + k of row r, plus 128; 16 scales.
//           weight = scale * (byte - 128)
#pragma once
#include "pool.hpp"
#include "activations.hpp"

struct Matrix {
  const uint8_t* data;
  const float* bias;  // or null
  int32_t rows, columns, kind;

  int groups() const { return (rows + LANES - 1) / LANES; }
  int blocks() const { return (columns + BLOCK - 1) / BLOCK; }
  size_t weights_bytes() const { return (size_t)blocks() * (kind == 4 ? 256 : 512); }
  size_t group_bytes() const { return (weights_bytes() + (size_t)blocks() * (kind == 4 ? 64 : 32) + 63) / 64 * 64; }
};

#if defined(__AVX512VNNI__)
struct I { __m512i v; };
using W = __m512i;
static inline I whole(int x) { return {_mm512_set1_epi32(x)}; }
static inline I dot(I acc, W w, int x) { return {_mm512_dpbusd_epi32(acc.v, w, _mm512_set1_epi32(x))}; }
static inline I join(I hi, I lo) { return {_mm512_add_epi32(_mm512_slli_epi32(hi.v, 7), lo.v)}; }
static inline I plus(I a, int x) { return {_mm512_add_epi32(a.v, _mm512_set1_epi32(x))}; }
static inline I both(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline F real(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline W load_w(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline W low_nibble(W a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
static inline W high_nibble(W a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
#elif defined(__AVX2__)
struct I { __m256i a, b; };
struct W { __m256i a, b; };
static inline I whole(int x) { __m256i v = _mm256_set1_epi32(x); return {v, v}; }
#if defined(__AVXVNNI__)
static inline __m256i dot8(__m256i acc, __m256i w, __m256i x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }
#else
// Only for nibbles, or bytes split in nibbles: 2 * 15 * 127 fits in 16 bits, 2 * 255 * 127 would not.
static inline __m256i dot8(__m256i acc, __m256i w, __m256i x) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
#define SPLIT_BYTES 1
#endif
static inline I dot(I acc, W w, int x) {
  __m256i v = _mm256_set1_epi32(x);
  return {dot8(acc.a, w.a, v), dot8(acc.b, w.b, v)};
}
static inline I shifted(I hi, I lo, int bits) {
  return {_mm256_add_epi32(_mm256_slli_epi32(hi.a, bits), lo.a), _mm256_add_epi32(_mm256_slli_epi32(hi.b, bits), lo.b)};
}
static inline I join(I hi, I lo) { return shifted(hi, lo, 7); }
static inline I plus(I x, int y) {
  __m256i v = _mm256_set1_epi32(y);
  return {_mm256_add_epi32(x.a, v), _mm256_add_epi32(x.b, v)};
}
static inline I both(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
static inline F real(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline W load_w(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
static inline W low_nibble(W x) {
  __m256i m = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
static inline W high_nibble(W x) {
  return low_nibble({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)});
}
#else
struct I { int32_t v[LANES]; };
struct W { uint8_t v[64]; };
static inline I whole(int x) { I r; for (int i = 0; i < LANES; i++) r.v[i] = x; return r; }
static inline I dot(I acc, const W& w, int x) {
  int8_t b[4]; memcpy(b, &x, 4);
  for (int r = 0; r < LANES; r++)
    acc.v[r] += w.v[4 * r] * b[0] + w.v[4 * r + 1] * b[1] + w.v[4 * r + 2] * b[2] + w.v[4 * r + 3] * b[3];
  return acc;
}
static inline I join(I hi, I lo) { for (int i = 0; i < LANES; i++) hi.v[i] = hi.v[i] * 128 + lo.v[i]; return hi; }
static inline I plus(I a, int x) { for (int i = 0; i < LANES; i++) a.v[i] += x; return a; }
static inline I both(I a, I b) { for (int i = 0; i < LANES; i++) a.v[i] += b.v[i]; return a; }
static inline F real(I a) { F r; for (int i = 0; i < LANES; i++) r.v[i] = (float)a.v[i]; return r; }
static inline W load_w(const uint8_t* p) { W w; memcpy(w.v, p, 64); return w; }
static inline W low_nibble(W w) { for (auto& b : w.v) b &= 15; return w; }
static inline W high_nibble(W w) { for (auto& b : w.v) b >>= 4; return w; }
#endif

// Prefetches one block's share of a group, `ahead` bytes from here: weights and scales lie in one stream, which continues
// in the next group. Behind the last group the prefetch has no effect.
constexpr int AHEAD = 4096;
template <int KIND>
static inline void prefetch_block(const uint8_t* group, int block, size_t ahead) {
#if defined(__GNUC__)
  const uint8_t* p = group + (size_t)block * (KIND == 4 ? 320 : 544) + ahead;
  for (int i = 0; i < (KIND == 4 ? 5 : 9); i++) __builtin_prefetch(p + 64 * i, 0, 3);
#endif
}

static inline int quad(const int8_t* p) { int x; memcpy(&x, p, 4); return x; }

static inline I dot_block(const W* w, int kind, I start, const int8_t* x) {
#if defined(SPLIT_BYTES)
  if (kind == 8) {
    I hi = whole(0), lo = start;
    for (int c = 0; c < 8; c++) {
      hi = dot(hi, high_nibble(w[c]), quad(x + 4 * c));
      lo = dot(lo, low_nibble(w[c]), quad(x + 4 * c));
    }
    return shifted(hi, lo, 4);
  }
#endif
  (void)kind;
  I other = whole(0);  // two chains, because each product waits for the one before it
  for (int c = 0; c < 4; c++) {
    start = dot(start, w[c], quad(x + 4 * c));
    other = dot(other, w[c + 4], quad(x + 16 + 4 * c));
  }
  return both(start, other);
}

// One group of weight rows for the NT tokens of a tile. two[b]: bit mask of the tokens with a second digit in block b.
template <int KIND, int NT>
static void tile(const Matrix& m, int group, const Block* x, int blocks, const uint32_t* two, F* out) {
  const uint8_t* weights = m.data + group * m.group_bytes();
  const uint16_t* scales = (const uint16_t*)(weights + m.weights_bytes());
  F acc[NT];
#pragma GCC unroll 16  // sums stay in registers; a loop would clear an array in memory first
  for (int t = 0; t < NT; t++) acc[t] = set1(0.0f);
  for (int b = 0; b < blocks; b++, x++) {
    prefetch_block<KIND>(weights, b, AHEAD);
    W w[8];
    F scale, minimum = set1(0.0f);
    if (KIND == 4) {
      for (int v = 0; v < 4; v++) {
        W packed = load_w(weights + 256 * b + 64 * v);
        w[v] = low_nibble(packed);
        w[v + 4] = high_nibble(packed);
      }
      scale = load_half(scales + 32 * b);
      minimum = load_half(scales + 32 * b + 16);
    } else {
      for (int v = 0; v < 8; v++) w[v] = load_w(weights + 512 * b + 64 * v);
      scale = load_half(scales + 16 * b);
    }
    const uint32_t outliers = two[b];
#pragma GCC unroll 16
    for (int t = 0; t < NT; t++) {
      I s = dot_block(w, KIND, whole(0), x->hi[t]);
      if (outliers >> t & 1) s = join(s, dot_block(w, KIND, whole(0), x->lo[t]));
      if (KIND == 8) s = plus(s, x->minus(t));
      acc[t] = fma(real(s), scale * set1(x->factor(t)), acc[t]);
      if (KIND == 4) acc[t] = fma(minimum, set1(x->total(t)), acc[t]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < NT; t++) out[t] = acc[t];
}

using Tile = void (*)(const Matrix&, int, const Block*, int, const uint32_t*, F*);
#if defined(__AMX_INT8__)
#include "amx.hpp"
#elif defined(__AVX512F__)
#define TILES(K) {tile<K, 1>, tile<K, 2>, tile<K, 3>, tile<K, 4>, tile<K, 5>, tile<K, 6>, tile<K, 7>, tile<K, 8>, \
  tile<K, 9>, tile<K, 10>, tile<K, 11>, tile<K, 12>, tile<K, 13>, tile<K, 14>, tile<K, 15>, tile<K, 16>}
#else
#define TILES(K) {tile<K, 1>, tile<K, 2>, tile<K, 3>, tile<K, 4>}
#endif
#if !defined(__AMX_INT8__)
static inline void tiles_begin(int) {}
static inline void tiles_end(int) {}
#endif
static const Tile tiles4[TILE_TOKENS] = TILES(4), tiles8[TILE_TOKENS] = TILES(8);

enum Use { SET, ADD };  // y = x W^T + b, or y += x W^T + b

static inline void emit(const Matrix& m, int group, F value, float* y, Use use) {
  const int at = group * LANES, n = m.rows - at;
  if (m.bias != nullptr) value = value + load_some(m.bias + at, n);
  if (use == ADD) value = load_some(y + at, n) + value;
  store_some(y + at, value, n);
}

// `done(first token, group, NT, values, worker)` is called for every finished tile.
template <class Done>
static void multiply(const Team& team, const Matrix& m, const Activations& x, Buffer& flags, const Done& done) {
  uint32_t* two = flags.get<uint32_t>((size_t)x.cut.count * x.blocks);
  for (int c = 0; c < x.cut.count; c++)
    for (int b = 0; b < x.blocks; b++) two[(size_t)c * x.blocks + b] = x.two(c, b);
  const int groups = m.groups();
  const int pieces = team.size == 1 ? 1 : std::min(groups, team.size * 4);
  const Tile* tiles = m.kind == 4 ? tiles4 : tiles8;
  team.each(pieces, [&](int piece, int worker) {
    F out[TILE_TOKENS];
    tiles_begin(x.cut.size);
    const int from = (int)((int64_t)groups * piece / pieces), to = (int)((int64_t)groups * (piece + 1) / pieces);
    for (int g = from; g < to; g++)
      for (int c = 0; c < x.cut.count; c++) {
        const int n = x.tokens_in(c);
        tiles[n - 1](m, g, x.tile(c), x.blocks, two + (size_t)c * x.blocks, out);
        done(c * x.cut.size, g, n, out, worker);
      }
    tiles_end(x.cut.size);
  });
}

static inline void multiply(const Team& team, const Matrix& m, const Activations& x, Buffer& flags, float* y, int stride,
                            Use use) {
  multiply(team, m, x, flags, [&](int first, int group, int n, const F* out, int) {
    for (int t = 0; t < n; t++) emit(m, group, out[t], y + (size_t)(first + t) * stride, use);
  });
}

// Row `id` of the weights as floats.
static inline void unpack_row(const Matrix& m, int64_t id, float* y) {
  const uint8_t* weights = m.data + (id / LANES) * m.group_bytes();
  const uint16_t* scales = (const uint16_t*)(weights + m.weights_bytes());
  const int r = (int)(id % LANES);
  float t[LANES];
  for (int b = 0; b < m.blocks(); b++) {
    store(t, load_half(scales + (m.kind == 4 ? 32 : 16) * b));
    const float scale = t[r];
    if (m.kind == 4) store(t, load_half(scales + 32 * b + 16));
    for (int c = 0; c < std::min(BLOCK, m.columns - b * BLOCK); c++) {
      if (m.kind == 4) {
        const uint8_t byte = weights[256 * b + 64 * (c % 16 / 4) + 4 * r + c % 4];
        const float level = scale * (float)(c < 16 ? byte & 15 : byte >> 4);
        y[b * BLOCK + c] = level + t[r];
      } else {
        y[b * BLOCK + c] = scale * (float)((int)weights[512 * b + 64 * (c / 4) + 4 * r + c % 4] - 128);
      }
    }
  }
}
