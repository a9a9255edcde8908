// Attention of every token over its own sequence of KV entries, in position order: the committed entries, then the staged
// entries on its path. Scores are summed over the head's columns in order; weights and values are summed in position order.
// A token's result therefore depends on its own sequence alone: not on where an entry lies, on other tokens of the pass,
// or on how the prompt was divided into chunks.
#pragma once
#include <type_traits>
#include "keys.hpp"

struct Segment {  // tokens of one slot inside a pass
  int32_t slot, start, stop, committed, staged;
  const uint8_t* visible;  // [stop - start][staged], or null: every staged entry is visible
  const int32_t* blocks;   // of the slot's entries, ENTRIES to each; null: they lie in one stretch, `slot` strides on
};

struct Store {  // keys and values of one layer: [slots][heads][entries][width] halves, or [heads][blocks][ENTRIES][width]
  uint16_t *keys, *values;
};

struct Shape {
  int32_t hidden, heads, kv_heads, head_dim, inner, window;  // window 0: none
  float eps;
  int32_t gelu;           // whether the MLP's gate is gelu, approximated by tanh, and not silu
  float scale, cap;       // of scores; scale 0: head_dim^-1/2, cap 0: none
};

struct Cache {
  int64_t slot_stride, head_stride;  // in numbers; a slot whose blocks lie one behind the other is named by the first
  const int64_t* entries;            // staged entry of every token
};

constexpr int ENTRIES = 32;  // of a block: no tile of keys leaves one, and a chunk of values lies in one
static_assert(ENTRIES % KEYS == 0);

// Where an entry of a slot lies in a store, in numbers from the first of its head.
static inline size_t place_of(const Segment& s, const Cache& cache, int entry, int width) {
  if (s.blocks == nullptr) return (size_t)s.slot * cache.slot_stride + (size_t)entry * width;
  return ((size_t)s.blocks[entry / ENTRIES] * ENTRIES + entry % ENTRIES) * width;
}

constexpr int LEAST_NODES = 4, MOST_NODES = 16;  // tokens that share converted KV entries
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
  Buffer queries, scores, mixed;
};

// V vectors of an entry whose width ends `left` numbers on.
template <int V>
static inline void load_entry(const uint16_t* entry, int left, F* out) {
  if (left >= V * LANES) {
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) out[v] = load_half(entry + v * LANES);
    return;
  }
  uint16_t tail[V * LANES] = {0};
  memcpy(tail, entry, 2 * left);
  for (int v = 0; v < V; v++) out[v] = load_half(tail + v * LANES);
}

// Keeps a vector that several products read in a register. The compiler would load it again for each of them, and the
// processor loads one vector in the time of one product.
static inline F kept(F a) {
#if defined(__AVX512F__)
  asm("" : "+v"(a.v));
#endif
  return a;
}

// How many queries, blocks of keys and vectors of a value an inner loop takes: as many as have sums in registers.
#if defined(__AVX512F__)
constexpr int QUERIES = 6, BLOCKS = 2, VECTORS = 4;
#elif defined(__AVX2__)
constexpr int QUERIES = 3, BLOCKS = 1, VECTORS = 2;
#elif defined(__aarch64__)
constexpr int QUERIES = 2, BLOCKS = 1, VECTORS = 2;
#else
constexpr int QUERIES = 3, BLOCKS = 1, VECTORS = 4;
#endif
constexpr int VALUES = 32;  // entries whose values are converted together

// f(first, std::integral_constant<int, some>) for all of `count`, MOST or fewer at a time.
template <int MOST, class Do>
static inline void by_parts(int first, int count, const Do& f) {
  for (; count >= MOST; first += MOST, count -= MOST) f(first, std::integral_constant<int, MOST>());
  if constexpr (MOST > 1)
    if (count > 0) by_parts<MOST - 1>(first, count, f);
}

// Scores of N queries with B blocks of transposed keys: sums over the head's columns in order, even and odd ones apart.
template <int N, int B, class Key>
static inline void score_keys(const float* const* queries, const Key* transposed, int width, float* scores,
                              size_t pitch) {
  F even[N][B], odd[N][B];
  const float* q[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) {
    q[j] = queries[j];
    for (int b = 0; b < B; b++) even[j][b] = odd[j][b] = set1(0.0f);
  }
  for (int d = 0; d + 1 < width; d += 2) {
    F x[B], y[B];
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) {
      x[b] = kept(load_key(transposed + ((size_t)b * width + d) * KEYS));
      y[b] = kept(load_key(transposed + ((size_t)b * width + d + 1) * KEYS));
    }
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) {
      const F even_q = kept(set1(q[j][d])), odd_q = kept(set1(q[j][d + 1]));
#pragma GCC unroll 8
      for (int b = 0; b < B; b++) {
        even[j][b] = fma(even_q, x[b], even[j][b]);
        odd[j][b] = fma(odd_q, y[b], odd[j][b]);
      }
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < N; j++)
    for (int b = 0; b < B; b++) store(scores + j * pitch + b * KEYS, even[j][b] + odd[j][b]);
}

// Adds weight * value for the entries [from, count), in order, to the sums of N queries. w[j * pitch + i] belongs to
// entry i.
template <int N, int V>
static inline void mix(const F (*value)[VECTORS], int from, int count, const float* w, size_t pitch, float* m,
                       size_t m_pitch) {
  F acc[N][V];
#pragma GCC unroll 8
  for (int j = 0; j < N; j++)
    for (int v = 0; v < V; v++) acc[j][v] = load(m + j * m_pitch + v * LANES);
  for (int i = from; i < count; i++) {
    F x[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) x[v] = kept(value[i][v]);
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) {
      const F p = kept(set1(w[j * pitch + i]));
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) acc[j][v] = fma(p, x[v], acc[j][v]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < N; j++)
    for (int v = 0; v < V; v++) store(m + j * m_pitch + v * LANES, acc[j][v]);
}

// x = cap * tanh(x / cap)
static inline void bend(float* x, int n, float cap) {
  const F by = set1(2.0f / cap), one = set1(1.0f), two = set1(2.0f), top = set1(cap);
  for (int i = 0; i < n; i += LANES)
    store_some(x + i, (one - two / (exponential(load_some(x + i, n - i) * by) + one)) * top, n - i);
}

// Scores -> weights, in place: w[0 .. size), zeros up to the end of the last vector.
static inline void softmax(float* w, int size) {
  const int whole = size / LANES * LANES, end = (size + LANES - 1) / LANES * LANES;
  for (int j = size; j < end; j++) w[j] = -INFINITY;
  F top = set1(-INFINITY);
  for (int i = 0; i < end; i += LANES) top = max(top, load(w + i));
  const F peak = set1(greatest(top));
  F total = set1(0.0f);
  for (int i = 0; i < whole; i += LANES) {
    const F e = exponential(load(w + i) - peak);
    store(w + i, e);
    total = total + e;
  }
  if (whole < end) {
    // Weights behind the end must be exactly zero; `exponential` returns e^-87 there.
    store(w + whole, exponential(load(w + whole) - peak));
    for (int j = size; j < end; j++) w[j] = 0.0f;
    total = total + load(w + whole);
  }
  const F by = set1(1.0f / sum(total));
  for (int i = 0; i < end; i += LANES) store(w + i, load(w + i) * by);
}

// One key/value head for the tokens [from, to) of a segment. q: rotated and scaled, [token][heads][width].
static void attend(const Shape& shape, const Segment& s, const Store& store_, const Cache& cache, const Paths& paths,
                   int kv, int from, int to, const float* q, size_t q_stride, float* out, size_t out_stride,
                   Scratch& scratch) {
  const int width = shape.head_dim, group = shape.heads / shape.kv_heads, vectors = (width + LANES - 1) / LANES;
  const int count = to - from, n = s.committed;
  const uint16_t* keys = store_.keys + kv * cache.head_stride;
  const uint16_t* values = store_.values + kv * cache.head_stride;

  struct Token {
    const int32_t* path;  // its staged entries
    int steps;            // how many they are
    int first;            // the first position it attends to
    int reach;            // the first entry behind those
  } tokens[MOST_NODES];
  int lowest = n, highest = 0, reach = n;  // least and greatest `first`, greatest `reach`
  int shared = INT32_MAX;                  // staged entries with which all paths begin
  for (int i = 0; i < count; i++) {
    Token& t = tokens[i];
    t.path = paths.entries + paths.from[from + i];
    t.steps = paths.from[from + i + 1] - paths.from[from + i];
    t.first = shape.window > 0 ? std::max(0, n + t.steps - shape.window) : 0;
    t.reach = t.steps > 0 ? n + t.path[t.steps - 1] + 1 : n;
    lowest = std::min(lowest, t.first);
    highest = std::max(highest, t.first);
    reach = std::max(reach, t.reach);
    shared = std::min(shared, t.steps);
    if (memcmp(t.path, tokens[0].path, sizeof(int32_t) * shared) != 0)
      for (int p = 0; p < shared; p++)
        if (t.path[p] != tokens[0].path[p]) shared = p;
  }
  const int all = count * group;
  const bool many = all > QUERIES;
  const size_t pitch = (reach + 2 * KEYS) / KEYS * KEYS + KEYS, m_pitch = (size_t)vectors * LANES;
  const float** queries = scratch.queries.get<const float*>(all);
  float* scores = scratch.scores.get<float>(all * pitch);
  float* mixed = scratch.mixed.get<float>(all * m_pitch);
  memset(mixed, 0, sizeof(float) * all * m_pitch);
  for (int j = 0; j < all; j++)
    queries[j] = q + (from + j / group) * q_stride + (size_t)(kv * group + j % group) * width;

  // Committed and staged entries are adjacent, so one loop computes the scores of both.
  alignas(64) float transposed[(BLOCKS * WIDEST + 32) * KEYS];
  const auto score_blocks = [&](int k, auto blocks, auto* transposed) {
    for (int b = 0; b < blocks; b++)
      transpose(keys + place_of(s, cache, k + b * KEYS, width), reach - k - b * KEYS, width,
                transposed + (size_t)b * width * KEYS);
    by_parts<QUERIES>(0, all, [&](int j, auto some) {
      int end = 0;  // tokens of a prompt reach less far than the last of them
      for (int i = j / group; i <= (j + some - 1) / group; i++) end = std::max(end, tokens[i].reach);
      if (k < end) score_keys<some, blocks>(queries + j, transposed, width, scores + j * pitch + k, pitch);
    });
  };
  const auto score = [&](int k, auto blocks) {
    if constexpr (TRANSPOSED_HALVES)
      if (!many) return score_blocks(k, blocks, (uint16_t*)transposed);
    score_blocks(k, blocks, transposed);
  };
  int k = lowest / KEYS * KEYS;
  for (; k + (BLOCKS - 1) * KEYS < reach; k += BLOCKS * KEYS) score(k, std::integral_constant<int, BLOCKS>());
  for (; k < reach; k += KEYS) score(k, std::integral_constant<int, 1>());

  // Weights, in the order of the token's own sequence. Step p of a path is staged entry p or a later one, so scores can
  // move to their positions in place.
  for (int j = 0; j < all; j++) {
    const Token& t = tokens[j / group];
    float* w = scores + j * pitch;
    if (t.reach > n + t.steps)  // in a chain they are there
      for (int p = std::max(0, t.first - n); p < t.steps; p++) w[n + p] = w[n + t.path[p]];
    if (shape.cap > 0) bend(w + t.first, n + t.steps - t.first, shape.cap);
    softmax(w + t.first, n + t.steps - t.first);
  }

  // Values: the entries that all tokens have at the same positions first; then the rest of each token's path.
  alignas(64) F value[VALUES][VECTORS];
  const auto add = [&](const int32_t* path, int p, int entries, int token, int behind) {  // for tokens [token, behind)
    const uint16_t* first = values + place_of(s, cache, p, width);
    const bool adjacent = p + entries <= n && (s.blocks == nullptr || p % ENTRIES + entries <= ENTRIES);
    by_parts<VECTORS>(0, vectors, [&](int part, auto v) {
      const int at = part * LANES;
      if (adjacent) {
        for (int i = 0; i < entries; i++) load_entry<v>(first + (size_t)i * width + at, width - at, value[i]);
      } else {
        for (int i = 0; i < entries; i++) {
          const int entry = p + i < n ? p + i : n + path[p + i - n];
          load_entry<v>(values + place_of(s, cache, entry, width) + at, width - at, value[i]);
        }
      }
      if (many)
        for (int i = 0; i < entries; i++)
          for (int x = 0; x < v; x += 2) __builtin_prefetch(first + (size_t)(i + NEXT_ENTRIES) * width + at + x * LANES);
      const auto mix_all = [&](int first, int count, int low) {
        by_parts<QUERIES>(first, count, [&](int j, auto some) {
          mix<some, v>(value, low, entries, scores + j * pitch + p, pitch, mixed + j * m_pitch + part * LANES, m_pitch);
        });
      };
      if (highest <= p) mix_all(token * group, (behind - token) * group, 0);
      else
        for (int i = token; i < behind; i++) mix_all(i * group, group, std::max(0, tokens[i].first - p));
    });
  };
  const int same = n + shared;
  for (int p = lowest; p < same; p += VALUES) add(tokens[0].path, p, std::min(VALUES, same - p), 0, count);
  for (int i = 0; i < count; i++) {
    const int end = n + tokens[i].steps;
    for (int p = std::max(same, tokens[i].first); p < end; p += VALUES)
      add(tokens[i].path, p, std::min(VALUES, end - p), i, i + 1);
  }
  for (int j = 0; j < all; j++)
    memcpy(out + (from + j / group) * out_stride + (size_t)(kv * group + j % group) * width, mixed + j * m_pitch,
           sizeof(float) * width);
}
