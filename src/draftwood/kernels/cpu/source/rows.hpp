// Rows of activations as bytes: 32 columns share a scale. Where one block stands out of its row, its rounding error would
// dominate the product, so it gets a second digit: value = scale * (hi + lo / 128). A row is rounded by what it holds
// itself and never by its neighbours.
#pragma once
#include <algorithm>
#include <cstdlib>
#include "simd.hpp"

constexpr int BLOCK = 32;
#if defined(__AVX512F__)
constexpr int MOST = 16;  // rows of a tile
#else
constexpr int MOST = 4;
#endif
#if defined(__AMX_INT8__)
constexpr bool EVEN = false;  // a full tile and a few rows beside it cost less than two half-empty tiles
#else
constexpr bool EVEN = true;
#endif
constexpr float STANDS_OUT = 5.0f;  // times the root mean square of the row

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

// How rows are cut into tiles that one product takes at a time: few of them, nearly equal where a tile may have any size.
struct Cut {
  int count = 0, size = 1;
  Cut() = default;
  explicit Cut(int rows) : count((rows + MOST - 1) / MOST), size(EVEN ? (rows + count - 1) / count : std::min(rows, MOST)) {}
};

// One block of one tile: everything a product needs of it lies together. Eight rows share cache lines that no other rows
// are in, so that two threads can fill a tile without taking lines from each other.
struct alignas(64) Block {
  int8_t hi[MOST][BLOCK], lo[MOST][BLOCK];
  struct alignas(64) Eight {
    float factor[8];   // what one unit of the row's whole numbers is worth: the scale, or a 128th of it with two digits
    float total[8];    // the sum of the row's values
    int32_t minus[8];  // -128 * the sum of the row's whole numbers
    uint8_t two[8];    // whether the row has a second digit here
  } eight[(MOST + 7) / 8];

  float factor(int t) const { return eight[t / 8].factor[t % 8]; }
  float total(int t) const { return eight[t / 8].total[t % 8]; }
  int32_t minus(int t) const { return eight[t / 8].minus[t % 8]; }
};

struct Rows {
  int count = 0, columns = 0, blocks = 0;
  Cut cut;
  Block* data = nullptr;  // [tile][block]
  Buffer memory;

  void shape(int rows, int cols) {
    count = rows; columns = cols; blocks = (cols + BLOCK - 1) / BLOCK;
    cut = Cut(rows);
    data = memory.get<Block>((size_t)cut.count * blocks);
  }
  Block* tile(int index) const { return data + (size_t)index * blocks; }
  // Bit t: row t of the tile has a second digit in this block.
  uint32_t two(int tile_, int block) const {
    const Block& b = tile(tile_)[block];
    uint32_t mask = 0;
    for (int t = 0; t < rows_in(tile_); t++) mask |= (uint32_t)b.eight[t / 8].two[t % 8] << t;
    return mask;
  }
  int rows_in(int tile) const { return std::min(cut.size, count - tile * cut.size); }
};

static inline float sum_of_squares(const float* x, int n) {
  F s = set1(0.0f);
  for (int i = 0; i < n; i += LANES) { F v = load_some(x + i, n - i); s = fma(v, v, s); }
  return sum(s);
}

// x -> row `row` of `out`.
static void quantise(const float* x, Rows& out, int row) {
  const int n = out.columns;
  const float square = sum_of_squares(x, n);
  const float limit = STANDS_OUT * std::sqrt(square / (float)n);
  const bool broken = !std::isfinite(square);  // a row that is not numbers must not turn into numbers
  const int r = row % out.cut.size;
  Block* to = out.tile(row / out.cut.size);
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
    const int high = (int)sum(uh + vh);  // whole numbers far below 2^24: exact in any order
    int low = 0;
    if (two) {
      const F ul = round((u - uh) * set1(128.0f)), vl = round((v - vh) * set1(128.0f));
      store_bytes(lo, ul);
      store_bytes(lo + LANES, vl);
      low = (int)sum(ul + vl);
    }
    Block::Eight& e = to->eight[r / 8];
    const int whole = two ? high * 128 + low : high;
    e.factor[r % 8] = two ? scale * (1.0f / 128.0f) : scale;
    e.total[r % 8] = e.factor[r % 8] * (float)whole;
    e.minus[r % 8] = -128 * whole;
    e.two[r % 8] = two;
  }
}

// y = x / rms(x) * weight
static inline void rms_norm(const float* x, const float* weight, int n, float eps, float* y) {
  const F by = set1(1.0f / std::sqrt(sum_of_squares(x, n) / (float)n + eps));
  for (int i = 0; i < n; i += LANES)
    store_some(y + i, load_some(x + i, n - i) * by * load_some(weight + i, n - i), n - i);
}

// y = silu(gate) * up
static inline void gated(const float* gate, const float* up, int n, float* y) {
  for (int i = 0; i < n; i += LANES) {
    F g = load_some(gate + i, n - i);
    F s = g / (set1(1.0f) + exponential(set1(0.0f) - g));
    store_some(y + i, s * load_some(up + i, n - i), n - i);
  }
}
