// Attention of every token over its own list of cache rows, in position order: the committed rows, then the staged rows
// on its path. Scores are sums over the head's numbers in order, weights are added up by place in the list, values in
// list order. So a token's result depends on its list alone: not on where a row lies, who else is in the pass, or how
// the prompt was cut.
#pragma once
#include <type_traits>
#include "product.hpp"

struct Segment {  // tokens of one slot inside a pass
  int32_t slot, start, stop, committed, staged;
  const uint8_t* visible;  // [stop - start][staged], or null: every staged row is seen
};

struct Store {  // rows of one layer: [slots][heads][rows][width] halves
  uint16_t *keys, *values;
};

struct Shape {
  int32_t hidden, heads, kv_heads, head_dim, inner, window;  // window 0: none
  float eps;
};

struct Cache {
  int64_t slot_stride, head_stride;  // in numbers
  const int64_t* rows;               // staged row of every token
};

constexpr int KEYS = 16;   // cache rows converted together
constexpr int NODES = 8;   // tokens that share them
constexpr int WIDEST = 256;

struct Lists {  // staged rows that each token sees, in order
  Buffer memory;
  int32_t *from = nullptr, *rows = nullptr;

  void build(const Segment* segments, int count, int tokens) {
    size_t most = 0;
    for (int s = 0; s < count; s++) most += (size_t)(segments[s].stop - segments[s].start) * segments[s].staged;
    from = memory.get<int32_t>(tokens + 1 + most);
    rows = from + tokens + 1;
    for (int t = 0; t <= tokens; t++) from[t] = 0;
    int at = 0;
    for (int s = 0; s < count; s++) {
      const Segment& g = segments[s];
      for (int t = g.start; t < g.stop; t++) {
        from[t] = at;
        const uint8_t* seen = g.visible ? g.visible + (size_t)(t - g.start) * g.staged : nullptr;
        for (int r = 0; r < g.staged; r++)
          if (seen == nullptr || seen[r]) rows[at++] = r;
        from[t + 1] = at;
      }
    }
  }
};

struct Desk {  // one worker's scratch
  Buffer scores, weights, mixed;
};

// Sixteen cache rows with columns and rows exchanged: out[d][key].
static inline void turn(const uint16_t* rows, int count, int width, int step, float* out) {
  float row[WIDEST + LANES];
  for (int k = 0; k < KEYS; k++) {
    if (k < count) {
      for (int d = 0; d < width; d += LANES) {
        if (width - d >= LANES) store(row + d, load_half(rows + (size_t)k * step + d));
        else {
          uint16_t tail[LANES] = {0};
          memcpy(tail, rows + (size_t)k * step + d, 2 * (width - d));
          store(row + d, load_half(tail));
        }
      }
      for (int d = 0; d < width; d++) out[d * KEYS + k] = row[d];
    } else {
      for (int d = 0; d < width; d++) out[d * KEYS + k] = 0.0f;
    }
  }
}

#if defined(__AVX512F__)
// The same by shuffles, 16 x 16 at a time.
static inline void turn16(const uint16_t* rows, int step, float* out) {
  __m512 r[16], t[16];
  for (int i = 0; i < 16; i++) r[i] = load_half(rows + (size_t)i * step).v;
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

static inline void turn_block(const uint16_t* rows, int count, int width, float* out) {
#if defined(__AVX512F__)
  if (count == KEYS && width % LANES == 0) {
    for (int d = 0; d < width; d += LANES) turn16(rows + d, width, out + d * KEYS);
    return;
  }
#endif
  turn(rows, count, width, width, out);
}

static inline void load_row(const uint16_t* row, int width, int vectors, F* out) {
  for (int v = 0; v < vectors; v++) {
    if (width - v * LANES >= LANES) out[v] = load_half(row + v * LANES);
    else {
      uint16_t tail[LANES] = {0};
      memcpy(tail, row + v * LANES, 2 * (width - v * LANES));
      out[v] = load_half(tail);
    }
  }
}

// Scores of HEADS queries against sixteen turned keys: the head's numbers in order, even and odd ones apart.
template <int HEADS>
static inline void against(const float* q, const float* turned, int width, float* scores, size_t pitch) {
  F even[HEADS], odd[HEADS];
  for (int g = 0; g < HEADS; g++) even[g] = odd[g] = set1(0.0f);
  for (int d = 0; d + 1 < width; d += 2) {
    const F a = load(turned + d * KEYS), b = load(turned + (d + 1) * KEYS);
#pragma GCC unroll 4
    for (int g = 0; g < HEADS; g++) {
      even[g] = fma(set1(q[(size_t)g * width + d]), a, even[g]);
      odd[g] = fma(set1(q[(size_t)g * width + d + 1]), b, odd[g]);
    }
  }
  for (int g = 0; g < HEADS; g++) store(scores + g * pitch, even[g] + odd[g]);
}

// Adds weight * value for `count` cache rows, in order, to the sums of HEADS heads. w[g * pitch + i] belongs to row i.
template <int HEADS, int V>
static inline void mix(const F (*row)[4], int from, int count, const float* w, size_t pitch, float* m, size_t m_pitch) {
  F acc[HEADS][V];
  for (int g = 0; g < HEADS; g++)
    for (int v = 0; v < V; v++) acc[g][v] = load(m + g * m_pitch + v * LANES);
  for (int i = from; i < count; i++) {
#pragma GCC unroll 4
    for (int g = 0; g < HEADS; g++) {
      const F p = set1(w[g * pitch + i]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) acc[g][v] = fma(p, row[i][v], acc[g][v]);
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
static void attend(const Shape& shape, const Segment& s, const Store& store_, const Cache& cache, const Lists& lists,
                   int kv, int from, int to, const float* q, size_t q_stride, float* out, size_t out_stride, Desk& desk) {
  const int width = shape.head_dim, group = shape.heads / shape.kv_heads, vectors = (width + LANES - 1) / LANES;
  const uint16_t* keys = store_.keys + s.slot * cache.slot_stride + kv * cache.head_stride;
  const uint16_t* values = store_.values + s.slot * cache.slot_stride + kv * cache.head_stride;
  int last_row = 0;  // staged rows [0, last_row) matter to somebody here
  for (int t = from; t < to; t++)
    if (lists.from[t + 1] > lists.from[t]) last_row = std::max(last_row, lists.rows[lists.from[t + 1] - 1] + 1);
  const int n = s.committed, reach = n + last_row;
  const int pitch = (reach + 2 * KEYS) / KEYS * KEYS + KEYS;
  float* scores = desk.scores.get<float>((size_t)(to - from) * group * pitch);
  float* weights = desk.weights.get<float>((size_t)(to - from) * group * pitch);
  float* mixed = desk.mixed.get<float>((size_t)(to - from) * group * vectors * LANES);
  alignas(64) float turned[WIDEST * KEYS];

  int lowest = 0;  // first committed row that anybody here sees
  if (shape.window > 0) {
    lowest = n;
    for (int t = from; t < to; t++) {
      const int path = lists.from[t + 1] - lists.from[t];
      lowest = std::min(lowest, std::max(0, n + path - shape.window));
    }
  }
  // The committed and the staged rows lie one behind the other, so scores are made over all of them at once.
  for (int k = lowest / KEYS * KEYS; k < reach; k += KEYS) {
    turn_block(keys + (size_t)k * width, std::min(KEYS, reach - k), width, turned);
    for (int t = from; t < to; t++)
      by_heads(group, [&](int g, auto heads) {
        against<heads>(q + t * q_stride + (size_t)(kv * group + g) * width, turned, width,
                       scores + ((size_t)(t - from) * group + g) * pitch + k, pitch);
      });
  }
  // Weights by place in the token's own list.
  for (int t = from; t < to; t++) {
    const int32_t* path = lists.rows + lists.from[t];
    const int steps = lists.from[t + 1] - lists.from[t];
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
        // Behind the list there is nothing; e^-87 is not nothing.
        if (size - i < LANES) { for (int j = size; j < i + LANES; j++) w[j] = 0.0f; e = load(w + i); }
        total = total + e;
      }
      const F by = set1(1.0f / sum(total));
      for (int i = 0; i < size; i += LANES) store(w + i, load(w + i) * by);
      // What the value pass finds by row, not by place.
      memset(mixed + ((size_t)(t - from) * group + g) * vectors * LANES, 0, sizeof(float) * vectors * LANES);
    }
  }
  // Values, committed rows first, sixteen at a time for everybody; then each token's own path.
  F row[KEYS][4];
  for (int part = 0; part < vectors; part += 4) {
    const int some = std::min(4, vectors - part);
    for (int k = lowest; k < n; k += KEYS) {
      const int count = std::min(KEYS, n - k);
      for (int i = 0; i < count; i++)
        load_row(values + (size_t)(k + i) * width + part * LANES, width - part * LANES, some, row[i]);
      for (int t = from; t < to; t++) {
        const int steps = lists.from[t + 1] - lists.from[t];
        const int first = shape.window > 0 ? std::max(0, n + steps - shape.window) : 0;
        by_heads(group, [&](int g, auto heads) {
          const size_t at = (size_t)(t - from) * group + g;
          by_vectors(some, [&](auto v) {
            mix<heads, v>(row, std::max(0, first - k), count, weights + at * pitch - first + k, pitch,
                          mixed + (at * vectors + part) * LANES, (size_t)vectors * LANES);
          });
        });
      }
    }
    for (int t = from; t < to; t++) {
      const int32_t* path = lists.rows + lists.from[t];
      const int steps = lists.from[t + 1] - lists.from[t];
      const int first = shape.window > 0 ? std::max(0, n + steps - shape.window) : 0;
      for (int p = std::max(0, first - n); p < steps; p += KEYS) {
        const int count = std::min(KEYS, steps - p);
        for (int i = 0; i < count; i++)
          load_row(values + (size_t)(n + path[p + i]) * width + part * LANES, width - part * LANES, some, row[i]);
        by_heads(group, [&](int g, auto heads) {
          const size_t at = (size_t)(t - from) * group + g;
          by_vectors(some, [&](auto v) {
            mix<heads, v>(row, 0, count, weights + at * pitch + n + p - first, pitch,
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
