// Tiles of 8 or 16 rows on the matrix unit: a block of 32 columns is one instruction. Sums are the same whole numbers as
// without it and the floats behind them come in the same order, so the results are the same bits.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

constexpr int MOST = 16;
constexpr bool EVEN = false;  // a full tile and a few rows beside it cost less than two half-empty tiles
constexpr int FEWEST = 4;  // up to so many rows are cheaper as vectors

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {0};
  uint16_t bytes[16] = {0};
  uint8_t rows[16] = {0};
};

// Tiles 0, 1: sums. 4: rows of x. 6: weights.
static inline void tiles_begin(int rows) {
  if (rows <= FEWEST) return;
  TileConfig c;
  const uint8_t tall = rows <= 8 ? 8 : 16;
  c.bytes[0] = c.bytes[1] = 64; c.rows[0] = c.rows[1] = tall;
  c.bytes[4] = BLOCK; c.rows[4] = tall;
  c.bytes[6] = 64; c.rows[6] = 8;
  _tile_loadconfig(&c);
}
static inline void tiles_end(int rows) {
  if (rows > FEWEST) _tile_release();
}

// The unit is set up for one height, so a shorter last tile runs at the height of the others.
static inline int tile_for(int rows, int size) { return rows <= FEWEST ? rows - 1 : size - 1; }

// Linux lends the unit to a process that asks.
static bool ask_for_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

// The compiler does not know that tile instructions read and write memory.
static inline void settle() { asm volatile("" ::: "memory"); }

template <int KIND, int NT>
static void matrix_tile(const Matrix& m, int group, const Rows& x, int first, const uint8_t* two, F* out) {
  // A run of blocks at a time, step by step: a tile cannot be loaded from stores that are still under way.
  constexpr int RUN = 9;
  const int blocks = x.blocks;
  const uint8_t* weights = m.data + group * m.group_bytes();
  const uint16_t* scales = (const uint16_t*)(weights + m.weights_bytes());
  const size_t step = (size_t)blocks * BLOCK;
  alignas(64) uint8_t wide[RUN][512];
  alignas(64) int32_t high[RUN][NT][LANES], low[RUN][NT][LANES];
  F acc[NT];
  for (int t = 0; t < NT; t++) acc[t] = set1(0.0f);
  for (int from = 0; from < blocks; from += RUN) {
    const int run = std::min(RUN, blocks - from);
    for (int b = 0; b < run; b++) {
      soon<KIND>(weights, from + b, m.group_bytes());
      for (int v = 0; v < 4 && KIND == 4; v++) {
        const W packed = load_w(weights + 256 * (from + b) + 64 * v);
        _mm512_store_si512(wide[b] + 64 * v, low_nibble(packed));
        _mm512_store_si512(wide[b] + 256 + 64 * v, high_nibble(packed));
      }
    }
    settle();
    for (int b = 0; b < run; b++) {
      const uint8_t* w = KIND == 4 ? wide[b] : weights + 512 * (from + b);
      _tile_loadd(6, w, 64);
      _tile_zero(0);
      _tile_loadd(4, x.hi_of(first, from + b), step);
      _tile_dpbsud(0, 4, 6);
      _tile_stored(0, high[b], 64);
      if (two[from + b]) {
        _tile_zero(1);
        _tile_loadd(4, x.lo_of(first, from + b), step);
        _tile_dpbsud(1, 4, 6);
        _tile_stored(1, low[b], 64);
      }
    }
    settle();
    for (int b = 0; b < run; b++) {
      const F scale = load_half(scales + (KIND == 4 ? 32 : 16) * (from + b));
      const F minimum = KIND == 4 ? load_half(scales + 32 * (from + b) + 16) : scale;
      const size_t at = (size_t)first * blocks + from + b;
      if (!two[from + b]) {
#pragma GCC unroll 16
        for (int t = 0; t < NT; t++) {
          const size_t i = at + (size_t)t * blocks;
          I h{_mm512_load_si512(high[b][t])};
          if (KIND == 8) h.v = _mm512_add_epi32(h.v, _mm512_set1_epi32(x.minus_hi[i]));
          acc[t] = fma(real(h), scale * set1(x.scale[i]), acc[t]);
          if (KIND == 4) acc[t] = fma(minimum, set1(x.total[i]), acc[t]);
        }
      } else {
#pragma GCC unroll 16
        for (int t = 0; t < NT; t++) {
          const size_t i = at + (size_t)t * blocks;
          I h{_mm512_load_si512(high[b][t])}, l{_mm512_load_si512(low[b][t])};
          if (KIND == 8) {
            h.v = _mm512_add_epi32(h.v, _mm512_set1_epi32(x.minus_hi[i]));
            l.v = _mm512_add_epi32(l.v, _mm512_set1_epi32(x.minus_lo[i]));
          }
          acc[t] = fma(real(join(h, l)), scale * set1(x.fine[i]), acc[t]);
          if (KIND == 4) acc[t] = fma(minimum, set1(x.total[i]), acc[t]);
        }
      }
    }
  }
  for (int t = 0; t < NT; t++) out[t] = acc[t];
}

#define TILES(K) {tile<K, 1>, tile<K, 2>, tile<K, 3>, tile<K, 4>, \
  matrix_tile<K, 8>, matrix_tile<K, 8>, matrix_tile<K, 8>, matrix_tile<K, 8>, \
  matrix_tile<K, 16>, matrix_tile<K, 16>, matrix_tile<K, 16>, matrix_tile<K, 16>, \
  matrix_tile<K, 16>, matrix_tile<K, 16>, matrix_tile<K, 16>, matrix_tile<K, 16>}
