// Tiles of 16 tokens on the matrix unit: a block of 32 columns is one instruction. Integer sums are the same as without it,
// and floats are added in the same order, so the results are bit-identical.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

constexpr int VECTOR_TOKENS = 12;  // up to this many tokens, vectors are faster

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {0};
  uint16_t bytes[16] = {0};
  uint8_t rows[16] = {0};
};

// Tiles 0, 1: sums. 4: activations. 6: weights.
static inline void tiles_begin(int tokens) {
  if (tokens <= VECTOR_TOKENS) return;
  TileConfig c;
  c.bytes[0] = c.bytes[1] = 64; c.rows[0] = c.rows[1] = TILE_TOKENS;
  c.bytes[4] = BLOCK; c.rows[4] = TILE_TOKENS;
  c.bytes[6] = 64; c.rows[6] = 8;
  _tile_loadconfig(&c);
}
static inline void tiles_end(int tokens) {
  if (tokens > VECTOR_TOKENS) _tile_release();
}

// On Linux a process must request the unit.
static bool ask_for_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

// The compiler does not know that tile instructions read and write memory.
static inline void memory_barrier() { asm volatile("" ::: "memory"); }

template <int KIND, int NT>
static void matrix_tile(const Matrix& m, int group, const Block* x, int blocks, const uint32_t* two, F* out) {
  // A run of blocks at a time, stage by stage, because a tile load waits for pending stores to the same memory. Runs are
  // short, so that everything stays in the first-level cache.
  constexpr int RUN = 3, MANY = 5;  // from this many tokens with outliers on, a second tile is faster than vectors
  const uint8_t* weights = m.data + group * m.group_bytes();
  const uint16_t* scales = (const uint16_t*)(weights + m.weights_bytes());
  alignas(64) uint8_t wide[RUN][512];
  alignas(64) int32_t high[RUN][NT][LANES], low[NT][LANES];
  F acc[NT];
  for (int t = 0; t < NT; t++) acc[t] = set1(0.0f);
  for (int from = 0; from < blocks; from += RUN) {
    const int run = std::min(RUN, blocks - from);
    for (int b = 0; b < run; b++) {
      prefetch_block<KIND>(weights, from + b, AHEAD);
      for (int v = 0; v < 4 && KIND == 4; v++) {
        const W packed = load_w(weights + 256 * (from + b) + 64 * v);
        _mm512_store_si512(wide[b] + 64 * v, low_nibble(packed));
        _mm512_store_si512(wide[b] + 256 + 64 * v, high_nibble(packed));
      }
    }
    memory_barrier();
    for (int b = 0; b < run; b++) {
      const uint8_t* w = KIND == 4 ? wide[b] : weights + 512 * (from + b);
      _tile_loadd(6, w, 64);
      _tile_zero(0);
      _tile_loadd(4, x[from + b].hi, BLOCK);
      _tile_dpbsud(0, 4, 6);
      _tile_stored(0, high[b], 64);
    }
    memory_barrier();
    for (int b = 0; b < run; b++) {  // second digits, for tokens that have them
      uint32_t outliers = two[from + b];
      if (outliers == 0) continue;
      const uint8_t* bytes = KIND == 4 ? wide[b] : weights + 512 * (from + b);
      const bool many = __builtin_popcount(outliers) >= MANY;
      W w[8];
      if (many) {
        _tile_loadd(6, bytes, 64);
        _tile_zero(1);
        _tile_loadd(4, x[from + b].lo, BLOCK);
        _tile_dpbsud(1, 4, 6);
        _tile_stored(1, low, 64);
        memory_barrier();
      } else {
        for (int v = 0; v < 8; v++) w[v] = load_w(bytes + 64 * v);
      }
      for (; outliers != 0; outliers &= outliers - 1) {
        const int t = __builtin_ctz(outliers);
        const I l = many ? I{_mm512_load_si512(low[t])} : dot_block(w, KIND, whole(0), x[from + b].lo[t]);
        _mm512_store_si512(high[b][t], join({_mm512_load_si512(high[b][t])}, l).v);
      }
    }
    for (int b = 0; b < run; b++) {
      const F scale = load_half(scales + (KIND == 4 ? 32 : 16) * (from + b));
      const F minimum = KIND == 4 ? load_half(scales + 32 * (from + b) + 16) : scale;
      const Block& y = x[from + b];
#pragma GCC unroll 16
      for (int t = 0; t < NT; t++) {
        I s{_mm512_load_si512(high[b][t])};
        if (KIND == 8) s = plus(s, y.minus(t));
        acc[t] = fma(real(s), scale * set1(y.factor(t)), acc[t]);
        if (KIND == 4) acc[t] = fma(minimum, set1(y.total(t)), acc[t]);
      }
    }
  }
  for (int t = 0; t < NT; t++) out[t] = acc[t];
}

#define TILES(K) {tile<K, 1>, tile<K, 2>, tile<K, 3>, tile<K, 4>, tile<K, 5>, tile<K, 6>, tile<K, 7>, tile<K, 8>, \
  tile<K, 9>, tile<K, 10>, tile<K, 11>, tile<K, 12>, \
  matrix_tile<K, 16>, matrix_tile<K, 16>, matrix_tile<K, 16>, matrix_tile<K, 16>}
