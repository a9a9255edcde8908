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
  asm volatile("ldtilecfg %0" ::"m"(c));  // GCC's intrinsic says that it reads 8 bytes, so the others may never be stored
}
static inline void tiles_end(int tokens) {
  if (tokens > VECTOR_TOKENS) _tile_release();
}

// On Linux a process must request the unit.
static bool ask_for_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

// The compiler does not know that tile instructions read and write memory.
static inline void memory_barrier() { asm volatile("" ::: "memory"); }

// Q6_K has a scale for half a block, which is half a tile.
template <int KIND> constexpr bool on_matrix_unit(int tokens) { return tokens > VECTOR_TOKENS && KIND != Q6_K; }

// It computes a full tile; `tokens` of it are wanted.
template <int KIND>
static void matrix_tile(const Matrix& m, int group, const Block* x, int blocks, const uint32_t* two, int tokens, F* out) {
  constexpr int NT = TILE_TOKENS;
  // A run of blocks at a time, stage by stage, because a tile load waits for pending stores to the same memory. Runs are
  // short, so that everything stays in the first-level cache.
  constexpr int RUN = 3, MANY = 5;  // from this many tokens with outliers on, a second tile is faster than vectors
  const uint8_t* data = m.data + group * m.group_bytes();
  alignas(64) uint8_t wide[RUN][512];
  alignas(64) int32_t high[RUN][NT][LANES], low[NT][LANES];
  F acc[NT];
  for (int t = 0; t < NT; t++) acc[t] = set1(0.0f);
  for (int from = 0; from < blocks; from += RUN) {
    const int run = std::min(RUN, blocks - from);
    const uint8_t* bytes[RUN];
    for (int b = 0; b < run; b++) {
      const Chunk<KIND> chunk(data, from + b);
      chunk.prefetch(AHEAD);
      bytes[b] = KIND == Q8_0 ? chunk.block : wide[b];
      if (KIND == Q8_0) continue;
      W w[8];
      chunk.load(w);
      for (int v = 0; v < 8; v++) store_w(wide[b] + 64 * v, w[v]);
    }
    memory_barrier();
    for (int b = 0; b < run; b++) {
      _tile_loadd(6, bytes[b], 64);
      _tile_zero(0);
      _tile_loadd(4, x[from + b].hi, BLOCK);
      _tile_dpbsud(0, 4, 6);
      _tile_stored(0, high[b], 64);
    }
    memory_barrier();
    for (int b = 0; b < run; b++) {  // second digits, for tokens that have them
      uint32_t outliers = two[from + b];
      if (outliers == 0) continue;
      const bool many = __builtin_popcount(outliers) >= MANY;
      W w[8];
      if (many) {
        _tile_loadd(6, bytes[b], 64);
        _tile_zero(1);
        _tile_loadd(4, x[from + b].lo, BLOCK);
        _tile_dpbsud(1, 4, 6);
        _tile_stored(1, low, 64);
        memory_barrier();
      } else {
        for (int v = 0; v < 8; v++) w[v] = load_w(bytes[b] + 64 * v);
      }
      for (; outliers != 0; outliers &= outliers - 1) {
        const int t = __builtin_ctz(outliers);
        const I l = many ? I{_mm512_load_si512(low[t])} : dot_block<KIND>(w, whole(0), x[from + b].lo[t]);
        _mm512_store_si512(high[b][t], join({_mm512_load_si512(high[b][t])}, l).v);
      }
    }
    for (int b = 0; b < run; b++) {
      const Chunk<KIND> chunk(data, from + b);
      const F scale = chunk.scale(), minimum = chunk.minimum();
      const Block& y = x[from + b];
#pragma GCC unroll 16
      for (int t = 0; t < NT; t++) {
        const I s = both({_mm512_load_si512(high[b][t])}, begin<KIND>(y.less(t)));
        acc[t] = fma(real(s), scale * set1(y.factor(t)), acc[t]);
        if (has_minimum(KIND)) acc[t] = fma(minimum, set1(y.total(t)), acc[t]);
      }
    }
  }
  for (int t = 0; t < tokens; t++) out[t] = acc[t];
}
