// Attention of every token over its own sequence of KV entries, in position order: the committed entries, then the staged
// entries on its path. Scores are summed over the head's columns in order; weights and values are summed in position order.
// A token's result therefore depends on its own sequence alone: not on where an entry lies, on other tokens of the pass,
// or on how the prompt was divided into chunks.
#pragma once
#include <type_traits>
#include "product.hpp"

struct Segment {  // tokens of one slot inside a pass
  int32_t slot, start, stop, committed, staged;
  const uint8_t* visible;  // [stop - start][staged], or null: every staged entry is visible
};

struct Store {  // keys and values of one layer: [slots][heads][entries][width] halves
  uint16_t *keys, *values;
};

struct Shape {
  int32_t hidden, heads, kv_heads, head_dim, inner, window;  // window 0: none
  float eps;
};

struct Cache {
  int64_t slot_stride, head_stride;  // in numbers
  const int64_t* entries;            // staged entry of every token
};

constexpr int KEYS = 16;   // KV entries converted together
constexpr int NODES = 8;   // tokens that share them
constexpr int WIDEST = 256;

struct Paths {  // the staged entries that each token attends to, in order
  Buffer memory;
  int32_t *from = nullptr, *entries = nullptr;

  void build(const Segment* segments, int count, int tokens) {
    size_t most = 0;
    for (int s = 0; s < count; s++) most += (size_t)(segments[s].stop - segments[s].start) * segments[s].staged;
    from = memory.get<int32_t>(tokens + 1 + most);
    entries = from + tokens + 1;
    for (int t = 0; t <= tokens; t++) from[t] = 0;
    int at = 0;
    for (int s = 0; s < count; s++) {
      const Segment& g = segments[s];
      for (int t = g.start; t < g.stop; t++) {
        from[t] = at;
        const uint8_t* visible = g.visible ? g.visible + (size_t)(t - g.start) * g.staged : nullptr;
        for (int e = 0; e < g.staged; e++)
          if (visible == nullptr || visible[e]) entries[at++] = e;
        from[t + 1] = at;
      }
    }
  }
};

struct Scratch {  // memory of one worker
  Buffer scores, weights, mixed;
};

// Sixteen keys transposed: out[d][key].
static inline void transpose(const uint16_t* keys, int count, int width, int step, float* out) {
  float one[WIDEST + LANES];
  for (int k = 0; k < KEYS; k++) {
    if (k < count) {
      for (int d = 0; d < width; d += LANES) {
        if (width - d >= LANES) store(one + d, load_half(keys + (size_t)k * step + d));
        else {
          uint16_t tail[LANES] = {0};
          memcpy(tail, keys + (size_t)k * step + d, 2 * (width - d));
          store(one + d, load_half(tail));
        }
      }
      for (int d = 0; d < width; d++) out[d * KEYS + k] = one[d];
    } else {
      for (int d = 0; d < width; d++) out[d * KEYS + k] = 0.0f;
    }
  }
}

#if defined(__AVX512F__)
// The same by shuffles, 16 x 16 at a time.
static inline void transpose16(const uint16_t* keys, int step, float* out) {
  __m512 r[16], t[16];
  for (int i = 0; i < 16; i++) r[i] = load_half(keys + (size_t)i * step).v;
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
  }
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; i++) {
    _mm512_storeu_ps(out + i * KEYS, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
    _mm512_storeu_ps(out + (i + 8) * KEYS, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
  }
}
#endif

static inline void transpose_block(const uint16_t* keys, int count, int width, float* out) {
#if defined(__AVX512F__)
  if (count == KEYS && width % LANES == 0) {
    for (int d = 0; d < width; d += LANES) transpose16(keys + d, width, out + d * KEYS);
    return;
  }
#endif
  transpose(keys, count, width, width, out);
}

static inline void load_entry(const uint16_t* entry, int width, int vectors, F* out) {
  for (int v = 0; v < vectors; v++) {
    if (width - v * LANES >= LANES) out[v] = load_half(entry + v * LANES);
    else {
      uint16_t tail[LANES] = {0};
      memcpy(tail, entry + v * LANES, 2 * (width - v * LANES));
      out[v] = load_half(tail);
    }
  }
}

// Scores of HEADS queries with sixteen transposed keys: sums over the head's columns in order, even and odd ones apart.
template <int HEADS>
static inline void score_keys(const float* q, const float* transposed, int width, float* scores, size_t pitch) {
  F even[HEADS], odd[HEADS];
  for (int g = 0; g < HEADS; g++) even[g] = odd[g] = set1(0.0f);
  for (int d = 0; d + 1 < width; d += 2) {
    const F a = load(transposed + d * KEYS), b = load(transposed + (d + 1) * KEYS);
#pragma GCC unroll 4
    for (int g = 0; g < HEADS; g++) {
      even[g] = fma(set1(q[(size_t)g * width + d]), a, even[g]);
      odd[g] = fma(set1(q[(size_t)g * width + d + 1]), b, odd[g]);
    }
  }
  for (int g = 0; g < HEADS; g++) store(scores + g * pitch, even[g] + odd[g]);
}

// Adds weight * value for `count` entries, in order, to the sums of HEADS heads. w[g * pitch + i] belongs to entry i.
template <int HEADS, int V>
static inline void mix(const F (*value)[4], int from, int count, const float* w, size_t pitch, float* m, size_t m_pitch) {
  F acc[HEADS][V];
  for (int g = 0; g < HEADS; g++)
    for (int v = 0; v < V; v++) acc[g][v] = load(m + g * m_pitch + v * LANES);
  for (int i = from; i < count; i++) {
#pragma GCC unroll 4
    for (int g = 0; g < HEADS; g++) {
      const F p = set1(w[g * pitch + i]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) acc[g][v] = fma(p, value[i][v], acc[g][v]);
    }
  }
  for (int g = 0; g < HEADS; g++)
    for (int v = 0; v < V; v++) store(m + g * m_pitch + v * LANES, acc[g][v]);
}

// f(first head, std::integral_constant<int, heads>) for all heads of a group, three or fewer at a time.
template <class Do>
static inline void by_heads(int group, const Do& f) {
  int g = 0;
  for (; g + 3 <= group; g += 3) f(g, std::integral_constant<int, 3>());
  if (group - g == 2) f(g, std::integral_constant<int, 2>());
  if (group - g == 1) f(g, std::integral_constant<int, 1>());
}

template <class Do>
static inline void by_vectors(int some, const Do& f) {
  if (some == 4) f(std::integral_constant<int, 4>());
  else if (some == 3) f(std::integral_constant<int, 3>());
  else if (some == 2) f(std::integral_constant<int, 2>());
  else f(std::integral_constant<int, 1>());
}

// One key/value head for the tokens [from, to) of a segment. q: rotated and scaled, [token][heads][width].
static void attend(const Shape& shape, const Segment& s, const Store& store_, const Cache& cache, const Paths& paths,
                   int kv, int from, int to, const float* q, size_t q_stride, float* out, size_t out_stride,
                   Scratch& scratch) {
  const int width = shape.head_dim, group = shape.heads / shape.kv_heads, vectors = (width + LANES - 1) / LANES;
  const uint16_t* keys = store_.keys + s.slot * cache.slot_stride + kv * cache.head_stride;
  const uint16_t* values = store_.values + s.slot * cache.slot_stride + kv * cache.head_stride;
  int last = 0;  // staged entries [0, last) are visible to some of these tokens
  for (int t = from; t < to; t++)
    if (paths.from[t + 1] > paths.from[t]) last = std::max(last, paths.entries[paths.from[t + 1] - 1] + 1);
  const int n = s.committed, reach = n + last;
  const int pitch = (reach + 2 * KEYS) / KEYS * KEYS + KEYS;
  float* scores = scratch.scores.get<float>((size_t)(to - from) * group * pitch);
  float* weights = scratch.weights.get<float>((size_t)(to - from) * group * pitch);
  float* mixed = scratch.mixed.get<float>((size_t)(to - from) * group * vectors * LANES);
  alignas(64) float transposed[WIDEST * KEYS];

  int lowest = 0;  // first committed entry that is visible to some of these tokens
  if (shape.window > 0) {
    lowest = n;
    for (int t = from; t < to; t++) {
      const int path = paths.from[t + 1] - paths.from[t];
      lowest = std::min(lowest, std::max(0, n + path - shape.window));
    }
  }
  // Committed and staged entries are adjacent, so one loop computes the scores of both.
  for (int k = lowest / KEYS * KEYS; k < reach; k += KEYS) {
    transpose_block(keys + (size_t)k * width, std::min(KEYS, reach - k), width, transposed);
    for (int t = from; t < to; t++)
      by_heads(group, [&](int g, auto heads) {
        score_keys<heads>(q + t * q_stride + (size_t)(kv * group + g) * width, transposed, width,
                       scores + ((size_t)(t - from) * group + g) * pitch + k, pitch);
      });
  }
  // Weights, in the order of the token's own sequence.
  for (int t = from; t < to; t++) {
    const int32_t* path = paths.entries + paths.from[t];
    const int steps = paths.from[t + 1] - paths.from[t];
    const int first = shape.window > 0 ? std::max(0, n + steps - shape.window) : 0;
    const int size = n + steps - first;
    for (int g = 0; g < group; g++) {
      const float* s_ = scores + ((size_t)(t - from) * group + g) * pitch;
      float* w = weights + ((size_t)(t - from) * group + g) * pitch;
      const int old = std::max(0, n - first);
      if (old > 0) memcpy(w, s_ + first, sizeof(float) * old);
      for (int i = old; i < size; i++) w[i] = s_[n + path[first + i - n]];
      F top = set1(-INFINITY);
      for (int i = 0; i < size; i += LANES) {
        if (size - i < LANES) for (int j = size; j < i + LANES; j++) w[j] = -INFINITY;
        top = max(top, load(w + i));
      }
      const F peak = set1(greatest(top));
      F total = set1(0.0f);
      for (int i = 0; i < size; i += LANES) {
        F e = exponential(load(w + i) - peak);
        store(w + i, e);
        // Weights behind the end must be exactly zero; `exponential` returns e^-87 there.
        if (size - i < LANES) { for (int j = size; j < i + LANES; j++) w[j] = 0.0f; e = load(w + i); }
        total = total + e;
      }
      const F by = set1(1.0f / sum(total));
      for (int i = 0; i < size; i += LANES) store(w + i, load(w + i) * by);
      memset(mixed + ((size_t)(t - from) * group + g) * vectors * LANES, 0, sizeof(float) * vectors * LANES);
    }
  }
  // Values: committed entries first, sixteen at a time for all tokens; then each token's own path.
  F value[KEYS][4];
  for (int part = 0; part < vectors; part += 4) {
    const int some = std::min(4, vectors - part);
    for (int k = lowest; k < n; k += KEYS) {
      const int count = std::min(KEYS, n - k);
      for (int i = 0; i < count; i++)
        load_entry(values + (size_t)(k + i) * width + part * LANES, width - part * LANES, some, value[i]);
      for (int t = from; t < to; t++) {
        const int steps = paths.from[t + 1] - paths.from[t];
        const int first = shape.window > 0 ? std::max(0, n + steps - shape.window) : 0;
        by_heads(group, [&](int g, auto heads) {
          const size_t at = (size_t)(t - from) * group + g;
          by_vectors(some, [&](auto v) {
            mix<heads, v>(value, std::max(0, first - k), count, weights + at * pitch - first + k, pitch,
                          mixed + (at * vectors + part) * LANES, (size_t)vectors * LANES);
          });
        });
      }
    }
    for (int t = from; t < to; t++) {
      const int32_t* path = paths.entries + paths.from[t];
      const int steps = paths.from[t + 1] - paths.from[t];
      const int first = shape.window > 0 ? std::max(0, n + steps - shape.window) : 0;
      for (int p = std::max(0, first - n); p < steps; p += KEYS) {
        const int count = std::min(KEYS, steps - p);
        for (int i = 0; i < count; i++)
          load_entry(values + (size_t)(n + path[p + i]) * width + part * LANES, width - part * LANES, some, value[i]);
        by_heads(group, [&](int g, auto heads) {
          const size_t at = (size_t)(t - from) * group + g;
          by_vectors(some, [&](auto v) {
            mix<heads, v>(value, 0, count, weights + at * pitch + n + p - first, pitch,
                          mixed + (at * vectors + part) * LANES, (size_t)vectors * LANES);
          });
        });
      }
    }
  }
  for (int t = from; t < to; t++)
    for (int g = 0; g < group; g++)
      memcpy(out + t * out_stride + (size_t)(kv * group + g) * width,
             mixed + ((size_t)(t - from) * group + g) * vectors * LANES, sizeof(float) * width);
}
