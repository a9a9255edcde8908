// The int8 backend: many layers in one call. The exported functions are plain C, for ctypes.
#include <pthread.h>
#include <deque>
#include <new>
#include "attention.hpp"
#include "nucleus.hpp"

struct Layer {
  Matrix qkv, out, gate_up, down;
  const float *attention_norm, *mlp_norm, *q_norm, *k_norm;  // the last two may be null
  const float *post_attention_norm, *post_mlp_norm;          // of what is added to the residual; may be null
  int32_t window;  // 0: as the shape says; -1: none
  int32_t local;   // whether heads are turned by the pass's second table
};

struct Pass {
  int32_t tokens, segments;
  const Segment* segment;
  Cache cache;
  const Store* stores;                // by layer
  const int64_t* positions;
  const float *cos, *sin;             // [position][head_dim / 2]
  const float *local_cos, *local_sin;  // the same of layers with a rope of their own, or null
};

enum Skip { ATTENTION = 1, MLP = 2 };

struct Workspace {  // memory of a call; one per calling thread
  Activations activations;
  Paths paths;
  Buffer wide, mixed, best, predicted, added;
  Room products;
  std::vector<Scratch> scratches;
  std::deque<Activations> together;  // one for each layer of a group; growing moves none of them
};

static Pool* the_pool = nullptr;
static std::mutex pool_lock;
static int wanted_threads = 1, wanted_spin = 100;

extern "C" void draftwood_threads(int threads, int spin_us) {
  std::lock_guard<std::mutex> g(pool_lock);
  if (threads == wanted_threads && spin_us == wanted_spin) return;
  if (the_pool != nullptr && the_pool->owner == getpid()) {
    // Wait for the call in progress; the next one waits for pool_lock.
    { std::lock_guard<std::mutex> last(the_pool->caller_lock); }
    delete the_pool;
  }
  the_pool = nullptr;
  wanted_threads = threads;
  wanted_spin = spin_us;
}

// The threads of one call: the whole pool, or the caller alone while another call has the pool.
struct Call {
  Team team;
  Pool* held = nullptr;
  Call() {
    std::lock_guard<std::mutex> g(pool_lock);
    if (wanted_threads < 2) return;
    if (the_pool == nullptr || the_pool->owner != getpid())  // threads do not survive a fork
      the_pool = new Pool(wanted_threads, wanted_spin);
    if (!the_pool->caller_lock.try_lock()) return;
    held = the_pool;
    team.pool = held;
    team.size = wanted_threads;
  }
  ~Call() {
    if (held != nullptr) held->caller_lock.unlock();
  }
};

// `floats`: whether the call multiplies with weights that are floats.
static Workspace& workspace(int workers, bool floats) {
  thread_local Workspace mine;
  while ((int)mine.scratches.size() < workers) mine.scratches = std::vector<Scratch>(workers);
  mine.activations.keeps_floats = floats;
  return mine;
}

static bool has_floats(const Layer* layers, int count) {
  bool found = false;
  for (const Layer* l = layers; l < layers + count; l++)
    for (const Matrix* m : {&l->qkv, &l->out, &l->gate_up, &l->down}) found |= m->data != nullptr && m->has_floats();
  return found;
}

static void rotate(float* x, int heads, int width, const float* cos, const float* sin, float by) {
  const int half = width / 2;
  for (int h = 0; h < heads; h++, x += width)
    for (int i = 0; i < half; i += LANES) {
      const int n = half - i;
      const F a = load_some(x + i, n), b = load_some(x + half + i, n), c = load_some(cos + i, n), s = load_some(sin + i, n);
      const F k = set1(by);
      store_some(x + i, (a * c - b * s) * k, n);
      store_some(x + half + i, (b * c + a * s) * k, n);
    }
}

static void store_entry(uint16_t* to, const float* from, int width) {
  for (int d = 0; d < width; d += LANES) {
    if (width - d >= LANES) store_half(to + d, load(from + d));
    else {
      uint16_t tail[LANES];
      store_half(tail, load_some(from + d, width - d));
      memcpy(to + d, tail, 2 * (width - d));
    }
  }
}

// f(token) for all tokens, a few neighbours at a time: eight where there are many, because those share cache lines.
template <class Do>
static void by_tokens(const Team& team, int tokens, const Do& f) {
  const int step = tokens >= 8 * team.size ? 8 : tokens > 2 * team.size ? (tokens + team.size - 1) / team.size : 1;
  team.each((tokens + step - 1) / step, [&](int piece, int) {
    for (int t = piece * step; t < std::min((piece + 1) * step, tokens); t++) f(t);
  });
}

static inline void norm_token(const float* x, const float* weight, float eps, Activations& out, int t) {
  alignas(64) float stack[4096];
  std::vector<float> heap;
  float* y = stack;
  if (out.columns > 4096) { heap.resize(out.columns); y = heap.data(); }
  rms_norm(x, weight, out.columns, eps, y);
  quantise(y, out, t);
}

static void normed(const Team& team, const float* h, const float* weight, int tokens, int n, float eps,
                   Activations& out) {
  out.shape(tokens, n);
  by_tokens(team, tokens, [&](int t) { norm_token(h + (size_t)t * n, weight, eps, out, t); });
}

static void quantised(const Team& team, const float* x, size_t stride, int tokens, int n, Activations& out) {
  out.shape(tokens, n);
  by_tokens(team, tokens, [&](int t) { quantise(x + t * stride, out, t); });
}

// Turns the queries and keys of a segment, [tokens][heads + 2 kv_heads][head_dim], and writes cache entries. Tokens of no
// segment are padding and write nothing.
static inline void write_entries(const Shape& s, const Layer& layer, const Pass& pass, const Store& store_,
                                 const Segment& g, float* qkv, bool only_entries) {
  const int d = s.head_dim, q_heads = s.heads, kv = s.kv_heads;
  const size_t wide = (size_t)(q_heads + 2 * kv) * d;
  const float by = s.scale > 0 ? s.scale : 1.0f / std::sqrt((float)d);
  const float *cosines = layer.local ? pass.local_cos : pass.cos, *sines = layer.local ? pass.local_sin : pass.sin;
  for (int t = g.start; t < g.stop; t++) {
    float *q = qkv + t * wide, *k = q + (size_t)q_heads * d, *v = k + (size_t)kv * d;
    const float *cos = cosines + pass.positions[t] * (d / 2), *sin = sines + pass.positions[t] * (d / 2);
    if (!only_entries) {
      if (layer.q_norm != nullptr)
        for (int j = 0; j < q_heads; j++) rms_norm(q + (size_t)j * d, layer.q_norm, d, s.eps, q + (size_t)j * d);
      rotate(q, q_heads, d, cos, sin, by);
    }
    if (layer.q_norm != nullptr)
      for (int j = 0; j < kv; j++) rms_norm(k + (size_t)j * d, layer.k_norm, d, s.eps, k + (size_t)j * d);
    rotate(k, kv, d, cos, sin, 1.0f);
    const size_t entry = place_of(g, pass.cache, g.committed + pass.cache.entries[t], d);
    for (int j = 0; j < kv; j++) {
      store_entry(store_.keys + entry + j * pass.cache.head_stride, k + (size_t)j * d, d);
      store_entry(store_.values + entry + j * pass.cache.head_stride, v + (size_t)j * d, d);
    }
  }
}

// Queries, keys and values of room.activations, whatever their width; keys and values become cache entries. Returns
// [tokens][heads + 2 kv_heads][head_dim], its queries scaled. `only_entries`: queries are neither made nor touched.
static float* entries(const Team& team, const Shape& s, const Layer& layer, const Pass& pass, const Store& store_,
                      Workspace& room, bool only_entries) {
  const int T = pass.tokens, d = s.head_dim, q_heads = s.heads, kv = s.kv_heads;
  const size_t wide = (size_t)(q_heads + 2 * kv) * d, skipped = (size_t)q_heads * d;
  float* qkv = room.wide.get<float>(T * wide);
  const Matrix rest = behind(layer.qkv, (int)skipped);
  if (only_entries && rest.data != nullptr) {  // the rows behind the queries' are a matrix of their own
    multiply(team, rest, room.activations, room.products, qkv + skipped, (int)wide, SET);
  } else {
    multiply(team, layer.qkv, room.activations, room.products, qkv, (int)wide, SET);
  }

  team.each(pass.segments, [&](int i, int) {
    write_entries(s, layer, pass, store_, pass.segment[i], qkv, only_entries);
  });
  return qkv;
}

// How the heads of a layer are divided: units of tokens that share converted entries. Many tokens, unless that leaves the
// threads with too few units to finish together.
struct Units {
  int kv, step = MOST_NODES, count = 0;  // of one of the `layers` that attend together

  Units(const Team& team, const Pass& pass, int kv_heads, int layers) : kv(kv_heads) {
    for (;; step /= 2) {
      count = 0;
      for (int i = 0; i < pass.segments; i++) count += of(pass.segment[i]);
      if (step == LEAST_NODES || team.size == 1 || count * layers >= 3 * team.size) break;
    }
  }
  int of(const Segment& g) const { return (g.stop - g.start + step - 1) / step * kv; }

  void attend(const Shape& s, const Pass& pass, const Store& store_, Workspace& room, int unit, int worker,
              const float* qkv, float* mixed) const {
    int i = 0, first = 0;
    for (;; i++) {
      const int here = of(pass.segment[i]);
      if (unit < first + here) break;
      first += here;
    }
    const Segment& g = pass.segment[i];
    const int from = g.start + (unit - first) / kv * step;
    const size_t flat = (size_t)s.heads * s.head_dim, wide = flat + 2 * (size_t)kv * s.head_dim;
    ::attend(s, g, store_, pass.cache, room.paths, (unit - first) % kv, from, std::min(from + step, g.stop), qkv, wide,
             mixed, flat, room.scratches[worker]);
  }
};

// Whether tokens of the pass belong to no segment.
static bool padded(const Pass& pass) {
  int owned = 0;
  for (int i = 0; i < pass.segments; i++) owned += pass.segment[i].stop - pass.segment[i].start;
  return owned < pass.tokens;
}

// The shape with a layer's own window.
static Shape of_layer(Shape s, const Layer& layer) {
  if (layer.window != 0) s.window = std::max(layer.window, 0);
  return s;
}

static void add(float* to, const float* from, int n) {
  for (int i = 0; i < n; i += LANES) store_some(to + i, load_some(to + i, n - i) + load_some(from + i, n - i), n - i);
}

// to += norm(m activations), [tokens][hidden]; without a norm the product adds to the residual itself.
static void add_normed(const Team& team, const Shape& s, const Matrix& m, const float* norm, int T, Workspace& room,
                       float* to) {
  if (norm == nullptr) return multiply(team, m, room.activations, room.products, to, s.hidden, ADD);
  const int n = s.hidden;
  float* added = room.added.get<float>((size_t)T * n);
  multiply(team, m, room.activations, room.products, added, n, SET);
  by_tokens(team, T, [&](int t) {
    float* own = added + (size_t)t * n;
    rms_norm(own, norm, n, s.eps, own);
    add(to + (size_t)t * n, own, n);
  });
}

// y = gelu(gate) * up, approximated by tanh: gelu(x) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
static void gelu_gated(const float* gate, const float* up, int n, float* y) {
  const F a = set1(0.044715f), b = set1(-2.0f * 0.7978845608f), one = set1(1.0f);
  for (int i = 0; i < n; i += LANES) {
    const F g = load_some(gate + i, n - i), u = g * (one + a * (g * g)) * b;
    store_some(y + i, g / (one + exponential(u)) * load_some(up + i, n - i), n - i);
  }
}

// Attention of room.activations.
static void attention(const Team& team, const Shape& s, const Layer& layer, const Pass& pass, const Store& store_,
                      Workspace& room, float* to) {
  const int T = pass.tokens;
  const size_t flat = (size_t)s.heads * s.head_dim;
  float* qkv = entries(team, s, layer, pass, store_, room, false);
  float* mixed = room.mixed.get<float>(T * flat);
  if (padded(pass)) memset(mixed, 0, sizeof(float) * T * flat);  // padding gets zeros
  const Units units(team, pass, s.kv_heads, 1);
  team.each(units.count, [&](int unit, int worker) { units.attend(s, pass, store_, room, unit, worker, qkv, mixed); });
  quantised(team, mixed, flat, T, (int)flat, room.activations);
  add_normed(team, s, layer.out, layer.post_attention_norm, T, room, to);
}

// `beside`, if given: a second output [tokens][hidden], of the same activations and residual.
static void mlp(const Team& team, const Shape& s, const Layer& layer, int T, Workspace& room, float* h,
                const Matrix* second = nullptr, float* beside = nullptr) {
  const size_t wide = 2 * (size_t)s.inner + LANES;  // not a power of two, where tokens would map to the same cache lines
  float* both = room.wide.get<float>(T * wide);
  normed(team, h, layer.mlp_norm, T, s.hidden, s.eps, room.activations);
  multiply(team, layer.gate_up, room.activations, room.products, both, (int)wide, SET);
  room.activations.shape(T, s.inner);
  by_tokens(team, T, [&](int t) {
    float* gate = both + t * wide;
    if (s.gelu) gelu_gated(gate, gate + s.inner, s.inner, gate);
    else gated(gate, gate + s.inner, s.inner, gate);
    quantise(gate, room.activations, t);
  });
  if (second != nullptr) {
    memcpy(beside, h, sizeof(float) * T * s.hidden);
    multiply(team, *second, room.activations, room.products, beside, s.hidden, ADD);
  }
  add_normed(team, s, layer.down, layer.post_mlp_norm, T, room, h);
}

// The attentions of `count` layers that read the same h, in the steps of one; each computes what it computes alone. index:
// their numbers. apart [count][tokens][hidden]: what they add to the residual.
static void attend_together(const Team& team, const Shape& s, const Layer* layers, const int* index, int count,
                            const Pass& pass, Workspace& room, const float* h, float* apart) {
  const int T = pass.tokens;
  const size_t flat = (size_t)s.heads * s.head_dim, wide = flat + 2 * (size_t)s.kv_heads * s.head_dim;
  while ((int)room.together.size() < count) room.together.emplace_back();
  for (int j = 0; j < count; j++) room.together[j].keeps_floats = room.activations.keeps_floats;
  std::vector<Product> products;
  const auto shape = [&](int columns) {
    for (int j = 0; j < count; j++) room.together[j].shape(T, columns);
  };

  shape(s.hidden);
  by_tokens(team, T * count, [&](int i) {
    norm_token(h + (size_t)(i % T) * s.hidden, layers[index[i / T]].attention_norm, s.eps, room.together[i / T], i % T);
  });
  float* qkv = room.wide.get<float>(count * T * wide);
  for (int j = 0; j < count; j++) products.push_back({&layers[index[j]].qkv, &room.together[j], qkv + j * T * wide});
  multiply_all(team, products.data(), count, room.products, (int)wide, SET);
  team.each(pass.segments * count, [&](int i, int) {
    const int j = i / pass.segments, k = index[j];
    write_entries(s, layers[k], pass, pass.stores[k], pass.segment[i % pass.segments], qkv + j * T * wide, false);
  });

  float* mixed = room.mixed.get<float>(count * T * flat);
  if (padded(pass)) memset(mixed, 0, sizeof(float) * count * T * flat);
  const Units units(team, pass, s.kv_heads, count);
  team.each(units.count * count, [&](int i, int worker) {
    const int j = i / units.count;
    units.attend(of_layer(s, layers[index[j]]), pass, pass.stores[index[j]], room, i % units.count, worker, qkv + j * T * wide, mixed + j * T * flat);
  });
  shape((int)flat);
  by_tokens(team, T * count, [&](int i) { quantise(mixed + i * flat, room.together[i / T], i % T); });
  products.clear();
  for (int j = 0; j < count; j++)
    products.push_back({&layers[index[j]].out, &room.together[j], apart + (size_t)j * T * s.hidden});
  multiply_all(team, products.data(), count, room.products, s.hidden, SET);
  by_tokens(team, T * count, [&](int i) {
    const float* norm = layers[index[i / T]].post_attention_norm;
    if (norm != nullptr) rms_norm(apart + (size_t)i * s.hidden, norm, s.hidden, s.eps, apart + (size_t)i * s.hidden);
  });
}

// Layers [first, last), in place on h [tokens][hidden]. skip: flags by layer, or null.
// together[i]: where a group of layers that begins at i ends, or null. Its attentions read the h before its first layer; what
// they add waits in apart [longest group][tokens][hidden] until their layers' turn comes.
// taps[j]: after so many layers, rising; there h is copied to row j of `tapped` [count][tokens][hidden]. None is inside a
// group.
extern "C" void draftwood_layers(const Shape* shape, const Layer* layers, int first, int last, const uint8_t* skip,
                                 const int32_t* together, const Pass* pass, float* h, float* apart, const int32_t* taps,
                                 int count, float* tapped) {
  if (pass->tokens == 0) return;
  Call call;
  Workspace& mine = workspace(call.team.size, has_floats(layers + first, last - first));
  mine.paths.build(pass->segment, pass->segments, pass->tokens);
  const size_t size = (size_t)pass->tokens * shape->hidden;
  int behind = first;            // where the group ends that runs now
  const float* waiting = nullptr;  // of its next attention
  for (int i = first; i < last; i++) {
    const auto skips = [&](int layer, Skip part) { return skip != nullptr && skip[layer] & part; };
    if (i >= behind && together != nullptr && together[i] > i + 1) {
      behind = std::min(together[i], last);
      std::vector<int> index;
      for (int k = i; k < behind; k++)
        if (!skips(k, ATTENTION)) index.push_back(k);
      if (!index.empty())
        attend_together(call.team, *shape, layers, index.data(), (int)index.size(), *pass, mine, h, apart);
      waiting = apart;
    }
    if (!skips(i, ATTENTION)) {
      if (i < behind) {
        by_tokens(call.team, pass->tokens, [&](int t) {
          add(h + (size_t)t * shape->hidden, waiting + (size_t)t * shape->hidden, shape->hidden);
        });
        waiting += size;
      } else {
        normed(call.team, h, layers[i].attention_norm, pass->tokens, shape->hidden, shape->eps, mine.activations);
        attention(call.team, of_layer(*shape, layers[i]), layers[i], *pass, pass->stores[i], mine, h);
      }
    }
    if (!skips(i, MLP)) mlp(call.team, *shape, layers[i], pass->tokens, mine, h);
    for (int j = 0; j < count; j++)
      if (taps[j] == i + 1) memcpy(tapped + j * size, h, sizeof(float) * size);
  }
}

// y[i] = norm(h[places[i]]) W^T + b. places null: the first `count` tokens; norm null: no norm.
static void head(const Team& team, const Matrix& m, const float* norm, float eps, const float* h, const int64_t* places,
                 int count, Workspace& room, float* y, int64_t stride) {
  const int n = m.columns;
  room.activations.shape(count, n);
  by_tokens(team, count, [&](int i) {
    std::vector<float> line(n);
    const float* x = h + (size_t)(places == nullptr ? i : places[i]) * n;
    if (norm != nullptr) { rms_norm(x, norm, n, eps, line.data()); x = line.data(); }
    quantise(x, room.activations, i);
  });
  multiply(team, m, room.activations, room.products, y, (int)stride, SET);
}

// The LM head; `best`, if given, gets the index of the greatest logit, or -1 if all are NaN. The logits of two tokens are
// `stride` numbers apart.
extern "C" void draftwood_head(const Matrix* m, const float* norm, float eps, const float* h, const int64_t* places,
                               int count, float* y, int64_t stride, int64_t* best) {
  if (count == 0) return;
  Call call;
  head(call.team, *m, norm, eps, h, places, count, workspace(call.team.size, m->has_floats()), y, stride);
  if (best == nullptr) return;
  const int rows = m->rows;
  call.team.each(count, [&](int i, int) {
    const float* logits = y + (size_t)i * stride;
    F top = set1(-INFINITY);
    for (int j = 0; j < rows; j += LANES) top = max(load_some(logits + j, rows - j, -INFINITY), top);
    const float peak = greatest(top);
    int64_t found = -1;  // stays so if all are NaN
    for (int j = 0; j < rows; j++)
      if (logits[j] == peak) { found = j; break; }
    best[i] = found;
  });
}

// A drafter that reads features: a layer whose attention reads an embedding and a feature, `deeper` ordinary layers behind
// it, and a head.
//   join.data null   x = [norm(e), norm(f)]      the residual is f, or norm(f)
//   otherwise        x = join [norm(e), norm(f)] the residual is x
//   side_up.data     x += side_down silu(side_up [side_norm(fused_norm(x)), side_norm(e)])    behind join
//   predict.data     a second output of the only layer's MLP, which the head reads; the first is the next feature
// A norm that is null is left out; so are an embedding and an MLP without data.
struct Reader {
  Layer layer;  // without attention_norm
  Matrix embedding, join, head, side_up, side_down, predict;
  const float *embed_norm, *feature_norm, *norm;  // the last one before the head
  const float *fused_norm, *side_norm;
  const Layer* more;
  int32_t deeper, normed_residual, normed_output;
};

static bool has_floats(const Reader& r) {
  bool found = has_floats(&r.layer, 1) || has_floats(r.more, r.deeper);
  for (const Matrix* m : {&r.join, &r.head, &r.side_up, &r.side_down, &r.predict})
    found |= m->data != nullptr && m->has_floats();
  return found;
}

static void add_side(const Team& team, const Shape& s, const Reader& r, const int64_t* ids, int T, Workspace& room,
                     float* x) {
  const int n = s.hidden, wide = r.embedding.columns, inner = r.side_up.rows;
  room.activations.shape(T, n + wide);
  by_tokens(team, T, [&](int t) {
    std::vector<float> line(n + wide);
    float *z = line.data(), *e = z + n;
    rms_norm(x + (size_t)t * n, r.fused_norm, n, s.eps, z);
    rms_norm(z, r.side_norm, n, s.eps, z);
    unpack_row(r.embedding, ids[t], e);
    rms_norm(e, r.side_norm, wide, s.eps, e);
    quantise(z, room.activations, t);
  });
  const size_t stride = (size_t)inner + LANES;  // not a power of two, as in mlp
  float* both = room.wide.get<float>(T * stride);
  multiply(team, r.side_up, room.activations, room.products, both, (int)stride, SET);
  room.activations.shape(T, inner);
  by_tokens(team, T, [&](int t) {
    silu(both + t * stride, inner);
    quantise(both + t * stride, room.activations, t);
  });
  multiply(team, r.side_down, room.activations, room.products, x, n, ADD);
}

// One step. out [tokens][hidden]: the feature that the next step reads; y: logits of the `count` tokens named by `want`.
// If none is wanted, the tokens get their cache entries and nothing else: nobody reads an output, and the last layer's
// entries do not depend on its attention. Then out holds any numbers.
// Returns 0, or 1 if an id is outside the vocabulary; then nothing is written.
extern "C" int draftwood_features(const Shape* shape, const Reader* reader, const Pass* pass, const int64_t* ids,
                                  const float* features, float* out, const int64_t* want, int count, float* y,
                                  int64_t stride) {
  const Shape& s = *shape;
  const Reader& r = *reader;
  const int T = pass->tokens, n = s.hidden, wide = r.embedding.columns;
  for (int t = 0; t < T && wide; t++)
    if (ids[t] < 0 || ids[t] >= r.embedding.rows) return 1;
  if (T == 0) return 0;
  Call call;
  Workspace& mine = workspace(call.team.size, has_floats(r));
  mine.paths.build(pass->segment, pass->segments, T);
  mine.activations.shape(T, wide + n);
  by_tokens(call.team, T, [&](int t) {
    std::vector<float> line(wide + n);
    float *e = line.data(), *f = e + wide;
    if (wide) unpack_row(r.embedding, ids[t], e);
    if (r.embed_norm != nullptr) rms_norm(e, r.embed_norm, wide, s.eps, e);
    const float* raw = features + (size_t)t * n;
    if (r.feature_norm != nullptr) rms_norm(raw, r.feature_norm, n, s.eps, f);
    else memcpy(f, raw, sizeof(float) * n);
    quantise(line.data(), mine.activations, t);
    if (r.join.data == nullptr) memcpy(out + (size_t)t * n, r.normed_residual ? f : raw, sizeof(float) * n);
  });
  if (r.join.data != nullptr) {
    multiply(call.team, r.join, mine.activations, mine.products, out, n, SET);
    if (r.side_up.data != nullptr) add_side(call.team, s, r, ids, T, mine, out);
    quantised(call.team, out, n, T, n, mine.activations);
  }
  float* predicted = r.predict.data == nullptr ? nullptr : mine.predicted.get<float>((size_t)T * n);
  for (int i = 0; i <= r.deeper; i++) {
    const Layer& layer = i ? r.more[i - 1] : r.layer;
    if (i) normed(call.team, out, layer.attention_norm, T, n, s.eps, mine.activations);
    if (count == 0 && i == r.deeper) {
      entries(call.team, s, layer, *pass, pass->stores[i], mine, true);
      return 0;
    }
    attention(call.team, s, layer, *pass, pass->stores[i], mine, out);
    if (layer.gate_up.data == nullptr) continue;
    mlp(call.team, s, layer, T, mine, out, predicted == nullptr ? nullptr : &r.predict, predicted);
  }
  head(call.team, r.head, r.norm, s.eps, predicted == nullptr ? out : predicted, want, count, mine, y, stride);
  if (r.normed_output)
    by_tokens(call.team, T, [&](int t) { rms_norm(out + (size_t)t * n, r.norm, n, s.eps, out + (size_t)t * n); });
  return 0;
}

// The k greatest of n logits in falling order, equal ones by index, and their probabilities in softmax(x / temperature).
static void rank(const float* x, int n, float temperature, int k, float* prob, int64_t* place) {
  int held = 0;
  const auto take = [&](float v, int at) {  // until the end, prob holds logits
    int i = held < k ? held++ : k - 1;
    for (; i > 0 && v > prob[i - 1]; i--) { prob[i] = prob[i - 1]; place[i] = place[i - 1]; }
    prob[i] = v;
    place[i] = at;
  };
  for (int j = 0; j < k; j++) take(x[j], j);
  constexpr int STEP = 4 * LANES;
  for (int j = k; j < n; j += STEP) {
    F top = set1(-INFINITY);
    for (int i = j; i < std::min(j + STEP, n); i += LANES) top = max(load_some(x + i, n - i, -INFINITY), top);
    if (!(greatest(top) > prob[k - 1])) continue;
    for (int i = j; i < std::min(j + STEP, n); i++)
      if (x[i] > prob[k - 1]) take(x[i], i);
  }
  const F peak = set1(prob[0]), by = set1(1.0f / temperature);
  F total = set1(0.0f);
  for (int i = 0; i < n; i += LANES) {
    F e = exponential((load_some(x + i, n - i) - peak) * by);
    if (n - i < LANES) {  // nothing is added behind the end
      float t[LANES];
      store(t, e);
      e = load_some(t, n - i);
    }
    total = total + e;
  }
  const F share = set1(1.0f / sum(total));  // NaN if a logit is NaN
  for (int i = 0; i < k; i += LANES)
    store_some(prob + i, exponential((load_some(prob + i, k - i) - peak) * by) * share, k - i);
}

// The k <= columns most probable tokens of each of `count` distributions y, `stride` logits apart, at their own temperature.
// ids: token of each column, or null: the column itself.
extern "C" void draftwood_rank(const float* y, int64_t stride, int count, int columns, const float* temperature, int k,
                               const int64_t* ids, float* prob, int64_t* tokens) {
  if (count == 0 || k == 0) return;
  Call call;
  call.team.each(count, [&](int i, int) {
    int64_t* found = tokens + (size_t)i * k;
    rank(y + (size_t)i * stride, columns, temperature[i], k, prob + (size_t)i * k, found);
    for (int j = 0; ids != nullptr && j < k; j++) found[j] = ids[found[j]];
  });
}

static float peak_of(const float* x, int columns, int64_t top) {
  return 0 <= top && top < columns ? x[top] : Nucleus::peak(x, columns);
}

// The tokens that sampling leaves of `count` rows, which are the rows `at` of y (-1: none is asked for), each with temperature, top_p
// and min_p of its own; `best`: where the greatest number of each row of y stands, if it is known.
// `kept`: how many each row has; their sum is returned, or -1 if some row is no distribution, or -2 if y has no such row. The tokens themselves wait in the calling
// thread until it asks for them: how much room they need is not known before.
static thread_local std::vector<Kept> answer;
extern "C" int64_t draftwood_nucleus(const float* y, int64_t there, int64_t stride, const int64_t* at, int count, int columns,
                                     const float* temperature, const double* top_p, const float* min_p, const int64_t* best,
                                     int64_t* kept) {
  for (int i = 0; i < count; i++)
    if (at[i] < -1 || at[i] >= there) return -2;
  std::vector<Kept>& rows = answer;
  if ((int)rows.size() < count) rows.resize(count);
  Call call;
  call.team.each(count, [&](int i, int) {
    kept[i] = 0;
    rows[i].clear();
    if (at[i] < 0) return;
    static thread_local Nucleus own;
    own.kept = &rows[i];
    const float* x = y + (size_t)at[i] * stride;
    const float peak = peak_of(x, columns, best == nullptr ? -1 : best[at[i]]);
    const bool distribution = own.find(x, columns, peak, temperature[i], top_p[i], min_p[i]);
    kept[i] = distribution ? (int64_t)rows[i].prob.size() : -1;
  });
  int64_t all = 0;
  for (int i = 0; i < count; i++) {
    if (kept[i] < 0) return -1;
    all += kept[i];
  }
  return all;
}

static void forget() {  // room that is used again, unless it is much
  size_t held = 0;
  for (const Kept& row : answer) held += row.prob.capacity();
  if (held > (1 << 20)) std::vector<Kept>().swap(answer);
}

// The answer of this thread's last call for as many rows, one behind the other, ids rising within a row.
extern "C" void draftwood_nucleus_read(int count, float* prob, int64_t* tokens) {
  for (int i = 0; i < count; i++) {
    prob = std::copy(answer[i].prob.begin(), answer[i].prob.end(), prob);
    tokens = std::copy(answer[i].token.begin(), answer[i].token.end(), tokens);
  }
  forget();
}

// A token of each distribution, from three uniforms; -1 where a row is no distribution or none is asked for. 0, or -2 if y has
// no such row.
extern "C" int draftwood_pick(const float* y, int64_t there, int64_t stride, const int64_t* at, int count, int columns,
                              const float* temperature, const double* top_p, const float* min_p, const int64_t* best,
                              const double* uniforms, int64_t* token) {
  for (int i = 0; i < count; i++)
    if (at[i] < -1 || at[i] >= there) return -2;
  Call call;
  call.team.each(count, [&](int i, int) {
    token[i] = -1;
    if (at[i] < 0) return;
    static thread_local Nucleus own;
    static thread_local Kept room;
    own.kept = &room;
    const float* x = y + (size_t)at[i] * stride;
    const float peak = peak_of(x, columns, best == nullptr ? -1 : best[at[i]]);
    token[i] = own.pick(x, columns, peak, temperature[i], top_p[i], min_p[i], uniforms + 3 * i);
  });
  return 0;
}

// The same as tables, with a second distribution beside each: `most` columns of tokens, then one for each of `children` tokens that
// are not among them (`columns`: no token), then one for all other tokens together, which the first distribution does not have.
// `distribution`: which row of `other`, or -1: none. `place`: the column of each child. 0, or -2 if there is no such row.
extern "C" int draftwood_beside(int count, int columns, int most, int children, const int64_t* child, const float* other,
                                int64_t there, const int64_t* distribution, double* p, double* q, int64_t* ids, int64_t* place) {
  for (int i = 0; i < count; i++)
    if (distribution[i] >= there) return -2;
  const std::vector<Kept>& rows = answer;
  const size_t width = (size_t)most + children + 1;
  Call call;
  call.team.each(count, [&](int i, int) {
    const std::vector<int32_t>& token = rows[i].token;
    double *own = p + i * width, *beside = q + i * width;
    int64_t* id = ids + i * width;
    std::fill(own, own + width, 0.0);
    std::fill(beside, beside + width, 0.0);
    std::fill(id, id + width, (int64_t)columns);
    std::copy(rows[i].prob.begin(), rows[i].prob.end(), own);
    std::copy(token.begin(), token.end(), id);
    for (int c = 0; c < children; c++) {
      const int64_t wanted = child[(size_t)i * children + c];
      const size_t at = std::lower_bound(token.begin(), token.end(), wanted) - token.begin();
      const bool inside = at < token.size() && token[at] == wanted;
      place[(size_t)i * children + c] = inside ? (int64_t)at : most + c;
      if (!inside && 0 <= wanted && wanted < columns) id[most + c] = wanted;
    }
    if (distribution[i] < 0 || token.empty()) return;
    // Elsewhere is added up, not what is missing to one: it may be less than the rounding of one, and yet be drawn from.
    static thread_local std::vector<float> rest;
    const float* row = other + (size_t)distribution[i] * columns;
    rest.assign(row, row + columns);
    for (size_t j = 0; j + 1 < width; j++)
      if (id[j] < columns) beside[j] = row[id[j]], rest[id[j]] = 0.0f;
    beside[width - 1] = added(rest.data(), columns);
  });
  forget();
  return 0;
}

// One text's known tokens, then a line of tokens one by one, each with the net's own output behind the one before it: `choose`
// is asked for token j once its logits lie in y, null ends the line.
template <class Choose>
static int along_line(const Shape* shape, const Reader* reader, const Pass* pass, const int64_t* ids, const float* features,
                      float* out, float* y, Choose choose) {
  const int n = shape->hidden, columns = reader->head.rows;
  int64_t want = pass->tokens - 1, entry = pass->cache.entries[want], position = pass->positions[want];
  if (draftwood_features(shape, reader, pass, ids, features, out, &want, 1, y, columns)) return 1;
  Segment own = pass->segment[0];
  Pass one = *pass;
  own.start = 0, own.stop = 1, own.visible = nullptr;
  one.tokens = one.segments = 1, one.segment = &own, one.cache.entries = &entry, one.positions = &position;
  std::vector<float> read(out + (size_t)want * n, out + (size_t)(want + 1) * n), next(n);
  want = 0;
  for (int j = 0;; j++) {
    const int64_t* token = choose(j);
    if (token == nullptr) return 0;
    entry++, position++;
    own.staged = (int32_t)entry + 1;
    if (draftwood_features(shape, reader, &one, token, read.data(), next.data(), &want, 1, y, columns)) return 1;
    std::swap(read, next);
  }
}

// A drafted chain of one sequence: the tokens of `pass`, then the most probable token, `steps` times. Each is the next staged
// entry and attends to all before it. Of every step the k most probable tokens are told, prob and tokens [steps][k]; the first
// is the chain's. y: memory for the logits of one token. The cache must have room for the entries.
// No step follows a path whose probability is below `least`; the probabilities of the steps left out are 0.
// Returns 0, or 1 as above.
extern "C" int draftwood_line(const Shape* shape, const Reader* reader, const Pass* pass, const int64_t* ids,
                              const float* features, float* out, float* y, float temperature, const int64_t* words, int steps,
                              int k, float least, float* prob, int64_t* tokens) {
  float path = 1.0f;
  return along_line(shape, reader, pass, ids, features, out, y, [&](int j) -> const int64_t* {
    float* chance = prob + (size_t)j * k;
    int64_t* token = tokens + (size_t)j * k;
    rank(y, reader->head.rows, temperature, k, chance, token);
    for (int i = 0; words != nullptr && i < k; i++) token[i] = words[token[i]];
    path *= chance[0];
    if (j + 1 < steps && path >= least) return token;
    std::fill(chance + k, prob + (size_t)steps * k, 0.0f);
    return nullptr;
  });
}

// The same with tokens that are drawn, each from softmax(logits / temperature) by three uniforms, u [steps][3]. q [steps][rows of the
// head]: what they were drawn from; tokens [steps], and their columns. Returns 0, or 1 as above, or 2 if some logits are no distribution.
extern "C" int draftwood_drawn_line(const Shape* shape, const Reader* reader, const Pass* pass, const int64_t* ids,
                                    const float* features, float* out, float* y, float temperature, const int64_t* words, int steps,
                                    const double* u, float* q, int64_t* tokens, int64_t* columns) {
  const int width = reader->head.rows;
  Nucleus own;
  bool whole = true;
  const int said = along_line(shape, reader, pass, ids, features, out, y, [&](int j) -> const int64_t* {
    float* share = q + (size_t)j * width;
    whole = own.shares(y, width, temperature, share);
    const int column = whole ? own.pick_of(share, width, u + 3 * j) : -1;
    whole = column >= 0;
    if (!whole) return nullptr;
    columns[j] = column;
    tokens[j] = words == nullptr ? column : words[column];
    return j + 1 < steps ? tokens + j : nullptr;
  });
  return said == 0 && !whole ? 2 : said;
}

// softmax(y / temperature) of `count` rows, each at its own temperature. 0, or 1 if some row is no distribution: it is then NaN.
extern "C" int draftwood_shares(const float* y, int64_t stride, int count, int columns, const float* temperature, float* q) {
  if (count == 0) return 0;
  Call call;
  std::vector<char> good(count);
  call.team.each(count, [&](int i, int) {
    static thread_local Nucleus own;
    float* share = q + (size_t)i * columns;
    good[i] = own.shares(y + (size_t)i * stride, columns, temperature[i], share);
    if (!good[i]) std::fill(share, share + columns, NAN);
  });
  return std::find(good.begin(), good.end(), 0) != good.end();
}

// The block rule along one drawn chain of `count` tokens; `at`: the row of y of each node that has a token drawn below it. Of token i,
// drawn from row `row[i]` of q: w[i + 1] = min(1, w[i] p / q) and chance[i] = R / (R + 1 - w[i]), R = sum (w[i] p - q)+, w[0] = 1.
// 0, or -1 if some row is no distribution, or -2 if there is no such row.
extern "C" int draftwood_block(const float* y, int64_t there, int64_t stride, const int64_t* at, int count, int columns,
                               float temperature, const float* q, int64_t drawn, int width, const int64_t* ids, const int64_t* row,
                               const int64_t* token, double* w, double* chance) {
  for (int i = 0; i < count; i++)
    if (at[i] < 0 || at[i] >= there || row[i] < 0 || row[i] >= drawn || token[i] < 0 || token[i] >= columns) return -2;
  std::vector<std::vector<float>> p(count);
  std::vector<double> total(count), own(count);
  Call call;
  call.team.each(count, [&](int i, int) {
    static thread_local Nucleus room;
    const float* x = y + (size_t)at[i] * stride;
    total[i] = room.weigh(x, columns, Nucleus::peak(x, columns), temperature);
    own[i] = room.weight[token[i]];
    p[i].resize(width);
    for (int c = 0; c < width; c++) p[i][c] = room.weight[ids == nullptr ? c : ids[c]];
  });
  w[0] = 1.0;
  for (int i = 0; i < count; i++) {
    if (!(total[i] > 0.0 && total[i] < INFINITY)) return -1;
    const float* share = q + (size_t)row[i] * width;
    const double by = w[i] / total[i];
    double rest = 0.0, inside = 0.0, under = 0.0;  // (w p - q)+ where q may be, p there, and q of the token
    for (int c = 0; c < width; c++) {
      inside += p[i][c];
      rest += std::max(by * p[i][c] - share[c], 0.0);
    }
    if (ids == nullptr) under = share[token[i]];
    else {
      const int64_t* found = std::lower_bound(ids, ids + width, token[i]);
      if (found != ids + width && *found == token[i]) under = share[found - ids];
    }
    rest += by * std::max(total[i] - inside, 0.0);
    chance[i] = rest + (1.0 - w[i]) > 0.0 ? rest / (rest + (1.0 - w[i])) : 1.0;
    w[i + 1] = under > 0.0 ? std::min(1.0, by * own[i] / under) : 0.0;
  }
  return 0;
}

// A token from what w p - q leaves of one row of y, from p itself where that is nothing, by three uniforms. -1: no distribution.
extern "C" int64_t draftwood_left(const float* x, int columns, float temperature, double w, const float* q, int width,
                                  const int64_t* ids, const double* u) {
  static thread_local Nucleus own;
  const double total = own.weigh(x, columns, Nucleus::peak(x, columns), temperature);
  if (!(total > 0.0 && total < INFINITY)) return -1;
  const F by = set1((float)(w / total));
  for (int i = 0; i < columns; i += LANES)
    store_some(own.edge_of(columns) + i, load_some(own.weight.data() + i, columns - i, 0.0f) * by, columns - i);
  float* rest = own.edge.data();
  for (int c = 0; c < width; c++) {
    float& mine = rest[ids == nullptr ? c : ids[c]];
    mine = std::max(mine - q[c], 0.0f);
  }
  const int found = own.pick_of(rest, columns, u);
  return found >= 0 ? found : own.pick_of(own.weight.data(), columns, u);
}

// Rows of a packed matrix as floats. Returns 0, or 1 if there is no such row; then nothing is written.
extern "C" int draftwood_embed(const Matrix* m, const int64_t* ids, int count, float* y) {
  for (int i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= m->rows) return 1;
  for (int i = 0; i < count; i++) unpack_row(*m, ids[i], y + (size_t)i * m->columns);
  return 0;
}

// y = cap * tanh(y / cap), of `count` rows that are `stride` numbers apart.
extern "C" void draftwood_cap(float* y, int64_t stride, int count, int columns, float cap) {
  constexpr int STEP = 4096;
  const int pieces = (columns + STEP - 1) / STEP;
  Call call;
  call.team.each(count * pieces, [&](int i, int) {
    const int first = i % pieces * STEP;
    bend(y + (i / pieces) * stride + first, std::min(STEP, columns - first), cap);
  });
}

extern "C" void draftwood_norm(const float* h, const float* weight, float eps, int count, int n, float* y) {
  for (int i = 0; i < count; i++) rms_norm(h + (size_t)i * n, weight, n, eps, y + (size_t)i * n);
}

// Before anything else. 0: ready.
extern "C" int draftwood_begin() {
  static bool first = true;
  if (first)  // the child of a fork has no worker threads, and no thread to release a lock that was held
    pthread_atfork(nullptr, nullptr, [] {
      new (&pool_lock) std::mutex();
      the_pool = nullptr;
    });
  first = false;
#if defined(__AMX_INT8__)
  return ask_for_tiles() ? 0 : 1;
#else
  return 0;
#endif
}

// For tests and for parts outside a model: the product of `count` vectors; y [count][all rows].
extern "C" void draftwood_product(const Matrix* m, const float* x, int count, float* y) {
  if (count == 0) return;
  Call call;
  Workspace& mine = workspace(call.team.size, m->has_floats());
  quantised(call.team, x, m->columns, count, m->columns, mine.activations);
  multiply(call.team, *m, mine.activations, mine.products, y, m->all_rows(), SET);
}

// Reads `bytes` bytes with all threads at the speed of the memory: four pages at a time, a vector of each in turn, so that
// no load waits for another. Returns the sum of all words, which keeps the compiler from removing the reads.
#if defined(__AVX512F__)
constexpr int WIDE = 64;
#elif defined(__AVX2__)
constexpr int WIDE = 32;
#else
constexpr int WIDE = 16;
#endif
typedef uint64_t Words __attribute__((vector_size(WIDE), aligned(8), may_alias));

extern "C" uint64_t draftwood_read(const uint64_t* p, int64_t bytes) {
  constexpr int64_t PAGE = 512, STEP = 4 * PAGE;  // words
  Call call;
  const int pieces = call.team.size * 8;
  const int64_t words = bytes / 8, each = words / pieces / STEP * STEP;
  std::vector<uint64_t> sums(pieces, 0);
  call.team.each(pieces, [&](int piece, int) {
    Words a = {0}, b = {0}, c = {0}, d = {0};
    for (const uint64_t *q = p + piece * each, *end = q + each; q < end; q += STEP)
      for (int64_t i = 0; i < PAGE; i += WIDE / 8) {
        a += *(const Words*)(q + i);
        b += *(const Words*)(q + PAGE + i);
        c += *(const Words*)(q + 2 * PAGE + i);
        d += *(const Words*)(q + 3 * PAGE + i);
      }
    a += b + c + d;
    for (int i = 0; i < WIDE / 8; i++) sums[piece] += a[i];
  });
  uint64_t all = 0;
  for (uint64_t s : sums) all += s;
  for (int64_t i = pieces * each; i < words; i++) all += p[i];
  return all;
}

// `count` dot products of 16 rows x 4 columns on every thread, as many at a time as hide how long one takes: the greatest rate
// that a product of bytes can have here. Returns the sum of all, which keeps the compiler from removing them.
extern "C" int32_t draftwood_dots(int64_t count) {
  constexpr int CHAINS = 12;
  Call call;
  std::vector<int32_t> sums(call.team.size, 0);
  call.team.each(call.team.size, [&](int piece, int) {
    uint8_t bytes[64];
    for (int i = 0; i < 64; i++) bytes[i] = (uint8_t)(i % 16);
    const W w = load_w(bytes);
    I acc[CHAINS];
    for (int i = 0; i < CHAINS; i++) acc[i] = whole(i);
    for (int64_t n = 0; n < count; n += CHAINS)
      for (int i = 0; i < CHAINS; i++) acc[i] = dot(acc[i], w, (int)0x01ff0201);
    for (int i = 0; i < CHAINS; i++) sums[piece] += (int32_t)sum(real(acc[i]));
  });
  int32_t all = 0;
  for (int32_t s : sums) all += s;
  return all;
}

// Self-test: returns 0 if this machine runs the code and the results are right. Whole numbers only, so results are exact.
extern "C" int draftwood_try() {
  if (draftwood_begin() != 0) return 2;
  constexpr int ROWS = 20, COLUMNS = 256, TOKENS = 9;
  for (const int kind : INTEGERS) {
    Matrix m{nullptr, nullptr, ROWS, COLUMNS, kind, nullptr};
    Buffer data;
    const Layout l = layout_of(kind);
    const size_t bytes = m.group_bytes() * m.groups(), chunk = l.head + (size_t)l.blocks * l.block;
    uint8_t* p = data.get<uint8_t>(bytes);
    for (size_t i = 0; i < bytes; i++) {
      const size_t at = i % chunk;
      if (at >= (size_t)l.head) p[i] = (uint8_t)(i * 7 + i / 64);
      else if (at >= 64) p[i] = (uint8_t)(i % 3 - 1);
      else p[i] = at % 2 == 0 ? 0 : at >= 32 && has_minimum(kind) ? 0xbc : 0x3c;  // 1.0 and -1.0
    }
    m.data = p;
    static float w[ROWS][COLUMNS], x[TOKENS * COLUMNS], y[TOKENS * ROWS];
    for (int r = 0; r < ROWS; r++) unpack_row(m, r, w[r]);
    for (int i = 0; i < TOKENS * COLUMNS; i++) x[i] = i % BLOCK == 0 ? 127.0f : (float)(i * 37 % 255 - 127);  // nothing is rounded
    draftwood_product(&m, x, TOKENS, y);
    for (int t = 0; t < TOKENS; t++)
      for (int r = 0; r < ROWS; r++) {
        float want = 0.0f;
        for (int c = 0; c < COLUMNS; c++) want += w[r][c] * x[t * COLUMNS + c];
        if (want != y[t * ROWS + r]) return 1;
      }
  }
  return 0;
}
