// Rows of activations as bytes: 32 columns share a scale. Where one block stands out of its row, its rounding error would
// dominate the product, so it gets a second digit: value = scale * (hi + lo / 128). A row is rounded by what it holds
// itself and never by its neighbours.
#pragma once
#include <algorithm>
#include <cstdlib>
#include "simd.hpp"

constexpr int BLOCK = 32;
constexpr int SLACK = 15;           // rows that tiles of a fixed size may read behind the last one
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

struct Rows {
  int count = 0, columns = 0, blocks = 0;
  int8_t *hi = nullptr, *lo = nullptr;           // [count][blocks * 32]
  float *scale = nullptr, *fine = nullptr;       // [count][blocks]; fine = scale / 128
  float* total = nullptr;                        // scale * sum of the block's values
  int32_t *minus_hi = nullptr, *minus_lo = nullptr;  // -128 * the sum of the block's digits
  uint8_t* two = nullptr;                        // whether the block has a second digit
  Buffer memory;

  void shape(int rows, int cols) {
    count = rows; columns = cols; blocks = (cols + BLOCK - 1) / BLOCK;
    size_t n = (size_t)(rows + SLACK) * blocks;
    char* at = memory.get<char>(n * (2 * BLOCK + 5 * 4 + 1) + 64);
    hi = (int8_t*)at; at += n * BLOCK;
    lo = (int8_t*)at; at += n * BLOCK;
    scale = (float*)at; at += n * 4;
    fine = (float*)at; at += n * 4;
    total = (float*)at; at += n * 4;
    minus_hi = (int32_t*)at; at += n * 4;
    minus_lo = (int32_t*)at; at += n * 4;
    two = (uint8_t*)at;
  }
  int8_t* hi_of(int row, int block) const { return hi + ((size_t)row * blocks + block) * BLOCK; }
  int8_t* lo_of(int row, int block) const { return lo + ((size_t)row * blocks + block) * BLOCK; }
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
  for (int b = 0; b < out.blocks; b++) {
    const int at = b * BLOCK, left = n - at;
    F u = load_some(x + at, left), v = left > LANES ? load_some(x + at + LANES, left - LANES) : set1(0.0f);
    const float top = greatest(max(abs(u), abs(v)));
    int8_t *hi = out.hi_of(row, b), *lo = out.lo_of(row, b);
    const size_t i = (size_t)row * out.blocks + b;
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
    } else {
      memset(lo, 0, BLOCK);
    }
    out.scale[i] = scale;
    out.fine[i] = scale * (1.0f / 128.0f);
    out.total[i] = out.fine[i] * (float)(high * 128 + low);
    out.minus_hi[i] = -128 * high;
    out.minus_lo[i] = -128 * low;
    out.two[i] = two;
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
