// Activations as bytes: 32 columns of a token share a scale. A block with outliers would dominate the rounding error of the
// product, so it gets a second digit: value = scale * (hi + lo / 128). How a token is rounded depends on its own values
// only, never on other tokens of the pass. For weights that are floats they are also kept as they are.
#pragma once
#include <algorithm>
#include <cstdlib>
#include "simd.hpp"

constexpr int BLOCK = 32;
#if defined(__AVX512F__)
constexpr int TILE_TOKENS = 16;  // tokens of a tile
#else
constexpr int TILE_TOKENS = 4;
#endif
#if defined(__AMX_INT8__)
constexpr bool EVEN = false;  // a full tile and a few single tokens cost less than two half-empty tiles
#else
constexpr bool EVEN = true;
#endif
constexpr float OUTLIER = 5.0f;  // a block with a value above this times the token's root mean square has outliers

struct Buffer {  // grows, never shrinks, aligned to a cache line
  void* p = nullptr;
  size_t size = 0;
  template <class T> T* get(size_t n) {
    size_t want = (n * sizeof(T) + 63) / 64 * 64 + 64;
    if (want > size) {
      free(p);
      p = aligned_alloc(64, want);
      size = want;
    }
    return static_cast<T*>(p);
  }
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  ~Buffer() { free(p); }
};

// How tokens are divided into tiles, each of which one call of a product takes: as few as possible, of nearly equal size
// where a tile may have any size.
struct Cut {
  int count = 0, size = 1;
  Cut() = default;
  explicit Cut(int tokens)
      : count((tokens + TILE_TOKENS - 1) / TILE_TOKENS),
        size(EVEN ? (tokens + count - 1) / count : std::min(tokens, TILE_TOKENS)) {}
};

// One block of one tile, with everything that a product reads of it. Eight tokens share cache lines with no others, so that
// two threads can fill a tile without false sharing.
struct alignas(64) Block {
  int8_t hi[TILE_TOKENS][BLOCK], lo[TILE_TOKENS][BLOCK];
  struct alignas(64) Eight {
    float factor[8];   // value of one unit: the scale, or a 128th of it with two digits
    float total[8];    // sum of the token's values
    int32_t less[8];   // the sum of the token's whole numbers, negated
    int32_t left[8];   // the same of the first half of the block
    uint8_t two[8];    // whether the token has a second digit here
  } eight[(TILE_TOKENS + 7) / 8];

  float factor(int t) const { return eight[t / 8].factor[t % 8]; }
  float total(int t) const { return eight[t / 8].total[t % 8]; }
  int32_t less(int t) const { return eight[t / 8].less[t % 8]; }
  int32_t less(int t, int half) const {
    const Eight& e = eight[t / 8];
    return half ? e.less[t % 8] - e.left[t % 8] : e.left[t % 8];
  }
};

struct Activations {
  int count = 0, columns = 0, blocks = 0;
  Cut cut;
  Block* data = nullptr;    // [tile][block]
  float* floats = nullptr;  // [token][columns, padded to blocks], or null
  bool keeps_floats = false;
  Buffer memory, float_memory;

  void shape(int tokens, int cols) {
    count = tokens; columns = cols; blocks = (cols + BLOCK - 1) / BLOCK;
    cut = Cut(tokens);
    data = memory.get<Block>((size_t)cut.count * blocks);
    floats = keeps_floats ? float_memory.get<float>((size_t)count * blocks * BLOCK) : nullptr;
  }
  Block* tile(int index) const { return data + (size_t)index * blocks; }
  // Bit t: token t of the tile has a second digit in this block.
  uint32_t two(int tile_, int block) const {
    const Block& b = tile(tile_)[block];
    uint32_t mask = 0;
    for (int t = 0; t < tokens_in(tile_); t++) mask |= (uint32_t)b.eight[t / 8].two[t % 8] << t;
    return mask;
  }
  int tokens_in(int tile) const { return std::min(cut.size, count - tile * cut.size); }
};

static inline float sum_of_squares(const float* x, int n) {
  F s = set1(0.0f);
  for (int i = 0; i < n; i += LANES) { F v = load_some(x + i, n - i); s = fma(v, v, s); }
  return sum(s);
}

// x -> token `token` of `out`.
static void quantise(const float* x, Activations& out, int token) {
  const int n = out.columns;
  const float square = sum_of_squares(x, n);
  const float limit = OUTLIER * std::sqrt(square / (float)n);
  const bool broken = !std::isfinite(square);  // inf and NaN become NaN, never finite numbers
  const int r = token % out.cut.size;
  if (out.floats != nullptr)
    for (int i = 0; i < out.blocks * BLOCK; i += LANES)
      store(out.floats + (size_t)token * out.blocks * BLOCK + i, broken ? set1(NAN) : load_some(x + i, n - i));
  Block* to = out.tile(token / out.cut.size);
  for (int b = 0; b < out.blocks; b++, to++) {
    const int at = b * BLOCK, left = n - at;
    F u = load_some(x + at, left), v = left > LANES ? load_some(x + at + LANES, left - LANES) : set1(0.0f);
    const float top = greatest(max(abs(u), abs(v)));
    int8_t *hi = to->hi[r], *lo = to->lo[r];
    const bool some = top > 1e-30f && !broken;
    const F by = set1(some ? 127.0f / top : 0.0f);
    const float scale = broken ? NAN : some ? top * (1.0f / 127.0f) : 0.0f;
    const bool two = some && top > limit;
    if (!some) { u = set1(0.0f); v = u; }
    u = u * by; v = v * by;
    const F uh = round(u), vh = round(v);
    store_bytes(hi, uh);
    store_bytes(hi + LANES, vh);
    // Whole numbers far below 2^24: exact in any order.
    int whole = (int)sum(uh + vh), left_whole = (int)sum(uh);
    if (two) {
      const F ul = round((u - uh) * set1(128.0f)), vl = round((v - vh) * set1(128.0f));
      store_bytes(lo, ul);
      store_bytes(lo + LANES, vl);
      whole = whole * 128 + (int)sum(ul + vl);
      left_whole = left_whole * 128 + (int)sum(ul);
    }
    Block::Eight& e = to->eight[r / 8];
    e.factor[r % 8] = two ? scale * (1.0f / 128.0f) : scale;
    e.total[r % 8] = e.factor[r % 8] * (float)whole;
    e.less[r % 8] = -whole;
    e.left[r % 8] = -left_whole;
    e.two[r % 8] = two;
  }
}

// y = x / rms(x) * weight
static inline void rms_norm(const float* x, const float* weight, int n, float eps, float* y) {
  const F by = set1(1.0f / std::sqrt(sum_of_squares(x, n) / (float)n + eps));
  for (int i = 0; i < n; i += LANES)
    store_some(y + i, load_some(x + i, n - i) * by * load_some(weight + i, n - i), n - i);
}

// x = silu(x)
static inline void silu(float* x, int n) {
  for (int i = 0; i < n; i += LANES) {
    const F v = load_some(x + i, n - i);
    store_some(x + i, v / (set1(1.0f) + exponential(set1(0.0f) - v)), n - i);
  }
}

// y = silu(gate) * up
static inline void gated(const float* gate, const float* up, int n, float* y) {
  for (int i = 0; i < n; i += LANES) {
    F g = load_some(gate + i, n - i);
    F s = g / (set1(1.0f) + exponential(set1(0.0f) - g));
    store_some(y + i, s * load_some(up + i, n - i), n - i);
  }
}
