// The int8 backend: many layers in one call. The exported functions are plain C, for ctypes.
#include <pthread.h>
#include <new>
#include "attention.hpp"
#include "nucleus.hpp"

struct Layer {
  Matrix qkv, out, gate_up, down;
  const float *attention_norm, *mlp_norm, *q_norm, *k_norm;  // the last two may be null
};

struct Pass {
  int32_t tokens, segments;
  const Segment* segment;
  Cache cache;
  const Store* stores;                // by layer
  const int64_t* positions;
  const float *cos, *sin;             // [position][head_dim / 2]
};

enum Skip { ATTENTION = 1, MLP = 2, APART = 4 };  // APART: attention's output goes to `apart` instead of the residual

struct Workspace {  // memory of a call; one per calling thread
  Activations activations;
  Paths paths;
  Buffer wide, mixed, flags, best;
  std::vector<Scratch> scratches;
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

static Workspace& workspace(int workers) {
  thread_local Workspace mine;
  while ((int)mine.scratches.size() < workers) mine.scratches = std::vector<Scratch>(workers);
  return mine;
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

static void normed(const Team& team, const float* h, const float* weight, int tokens, int n, float eps,
                   Activations& out) {
  out.shape(tokens, n);
  by_tokens(team, tokens, [&](int t) {
    alignas(64) float stack[4096];
    std::vector<float> heap;
    float* y = stack;
    if (n > 4096) { heap.resize(n); y = heap.data(); }
    rms_norm(h + (size_t)t * n, weight, n, eps, y);
    quantise(y, out, t);
  });
}

static void quantised(const Team& team, const float* x, size_t stride, int tokens, int n, Activations& out) {
  out.shape(tokens, n);
  by_tokens(team, tokens, [&](int t) { quantise(x + t * stride, out, t); });
}

// Queries, keys and values of room.activations, whatever their width; keys and values become cache entries. Returns
// [tokens][heads + 2 kv_heads][head_dim], its queries scaled. `only_entries`: queries are neither made nor touched.
static float* entries(const Team& team, const Shape& s, const Layer& layer, const Pass& pass, const Store& store_,
                      Workspace& room, bool only_entries) {
  const int T = pass.tokens, d = s.head_dim, q_heads = s.heads, kv = s.kv_heads;
  const size_t wide = (size_t)(q_heads + 2 * kv) * d, skipped = (size_t)q_heads * d;
  float* qkv = room.wide.get<float>(T * wide);
  if (only_entries && skipped % LANES == 0) {  // the rows behind the queries' are a matrix of their own
    Matrix behind = layer.qkv;
    behind.data += skipped / LANES * layer.qkv.group_bytes();
    behind.rows -= (int32_t)skipped;
    if (behind.bias != nullptr) behind.bias += skipped;
    multiply(team, behind, room.activations, room.flags, qkv + skipped, (int)wide, SET);
  } else {
    multiply(team, layer.qkv, room.activations, room.flags, qkv, (int)wide, SET);
  }

  // Which segment a token belongs to; tokens of none are padding and write nothing.
  const float by = 1.0f / std::sqrt((float)d);
  team.each(pass.segments, [&](int i, int) {
    const Segment& g = pass.segment[i];
    for (int t = g.start; t < g.stop; t++) {
      float *q = qkv + t * wide, *k = q + (size_t)q_heads * d, *v = k + (size_t)kv * d;
      const float *cos = pass.cos + pass.positions[t] * (d / 2), *sin = pass.sin + pass.positions[t] * (d / 2);
      if (!only_entries) {
        if (layer.q_norm != nullptr)
          for (int j = 0; j < q_heads; j++) rms_norm(q + (size_t)j * d, layer.q_norm, d, s.eps, q + (size_t)j * d);
        rotate(q, q_heads, d, cos, sin, by);
      }
      if (layer.q_norm != nullptr)
        for (int j = 0; j < kv; j++) rms_norm(k + (size_t)j * d, layer.k_norm, d, s.eps, k + (size_t)j * d);
      rotate(k, kv, d, cos, sin, 1.0f);
      const size_t entry = (size_t)g.slot * pass.cache.slot_stride + (size_t)(g.committed + pass.cache.entries[t]) * d;
      for (int j = 0; j < kv; j++) {
        store_entry(store_.keys + entry + j * pass.cache.head_stride, k + (size_t)j * d, d);
        store_entry(store_.values + entry + j * pass.cache.head_stride, v + (size_t)j * d, d);
      }
    }
  });
  return qkv;
}

// Attention of room.activations.
static void attention(const Team& team, const Shape& s, const Layer& layer, const Pass& pass, const Store& store_,
                      Workspace& room, float* to, Use use) {
  const int T = pass.tokens, d = s.head_dim, q_heads = s.heads, kv = s.kv_heads;
  const size_t wide = (size_t)(q_heads + 2 * kv) * d;
  float* qkv = entries(team, s, layer, pass, store_, room, false);

  const size_t flat = (size_t)q_heads * d;
  float* mixed = room.mixed.get<float>(T * flat);
  int owned = 0;
  for (int i = 0; i < pass.segments; i++) owned += pass.segment[i].stop - pass.segment[i].start;
  if (owned < T) memset(mixed, 0, sizeof(float) * T * flat);  // padding gets zeros
  // Tokens that share converted entries: many, unless that leaves the threads with too few units to finish together.
  int step = MOST_NODES, units = 0;
  const auto units_of = [&](const Segment& g) { return (g.stop - g.start + step - 1) / step * kv; };
  for (;; step /= 2) {
    units = 0;
    for (int i = 0; i < pass.segments; i++) units += units_of(pass.segment[i]);
    if (step == LEAST_NODES || team.size == 1 || units >= 3 * team.size) break;
  }
  team.each(units, [&](int unit, int worker) {
    int i = 0, first = 0;
    for (;; i++) {
      const int here = units_of(pass.segment[i]);
      if (unit < first + here) break;
      first += here;
    }
    const Segment& g = pass.segment[i];
    const int from = g.start + (unit - first) / kv * step;
    attend(s, g, store_, pass.cache, room.paths, (unit - first) % kv, from, std::min(from + step, g.stop), qkv, wide,
           mixed, flat, room.scratches[worker]);
  });
  quantised(team, mixed, flat, T, (int)flat, room.activations);
  multiply(team, layer.out, room.activations, room.flags, to, s.hidden, use);
}

static void mlp(const Team& team, const Shape& s, const Layer& layer, int T, Workspace& room, float* h) {
  const size_t wide = 2 * (size_t)s.inner + LANES;  // not a power of two, where tokens would map to the same cache lines
  float* both = room.wide.get<float>(T * wide);
  normed(team, h, layer.mlp_norm, T, s.hidden, s.eps, room.activations);
  multiply(team, layer.gate_up, room.activations, room.flags, both, (int)wide, SET);
  room.activations.shape(T, s.inner);
  by_tokens(team, T, [&](int t) {
    float* gate = both + t * wide;
    gated(gate, gate + s.inner, s.inner, gate);
    quantise(gate, room.activations, t);
  });
  multiply(team, layer.down, room.activations, room.flags, h, s.hidden, ADD);
}

// Layers [first, last), in place on h [tokens][hidden]. skip: flags by layer, or null.
// taps[j]: after so many layers, rising; there h is copied to row j of `tapped` [count][tokens][hidden].
extern "C" void draftwood_layers(const Shape* shape, const Layer* layers, int first, int last, const uint8_t* skip,
                                 const Pass* pass, float* h, float* apart, const int32_t* taps, int count, float* tapped) {
  if (pass->tokens == 0) return;
  Call call;
  Workspace& mine = workspace(call.team.size);
  mine.paths.build(pass->segment, pass->segments, pass->tokens);
  const size_t size = (size_t)pass->tokens * shape->hidden;
  for (int i = first; i < last; i++) {
    const int flags = skip == nullptr ? 0 : skip[i];
    if (!(flags & ATTENTION)) {
      const bool aside = flags & APART;
      normed(call.team, h, layers[i].attention_norm, pass->tokens, shape->hidden, shape->eps, mine.activations);
      attention(call.team, *shape, layers[i], *pass, pass->stores[i], mine, aside ? apart : h, aside ? SET : ADD);
    }
    if (!(flags & MLP)) mlp(call.team, *shape, layers[i], pass->tokens, mine, h);
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
  multiply(team, m, room.activations, room.flags, y, (int)stride, SET);
}

// The LM head; `best`, if given, gets the index of the greatest logit, or -1 if all are NaN. The logits of two tokens are
// `stride` numbers apart.
extern "C" void draftwood_head(const Matrix* m, const float* norm, float eps, const float* h, const int64_t* places,
                               int count, float* y, int64_t stride, int64_t* best) {
  if (count == 0) return;
  Call call;
  head(call.team, *m, norm, eps, h, places, count, workspace(call.team.size), y, stride);
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

// A drafter that reads features: one layer whose attention reads an embedding and a feature, and a head.
//   join.data null   x = [norm(e), norm(f)]      the residual is f, or norm(f)
//   otherwise        x = join [norm(e), norm(f)] the residual is x
// A norm that is null is left out.
struct Reader {
  Layer layer;  // without attention_norm
  Matrix embedding, join, head;
  const float *embed_norm, *feature_norm, *norm;  // the last one before the head
  int32_t normed_residual, normed_output;
};

// One step. out [tokens][hidden]: the feature that the next step reads; y: logits of the `count` tokens named by `want`.
// If none is wanted, the tokens get their cache entries and nothing else: nobody reads an output, and the only layer's
// entries do not depend on its attention. Then out holds any numbers.
// Returns 0, or 1 if an id is outside the vocabulary; then nothing is written.
extern "C" int draftwood_features(const Shape* shape, const Reader* reader, const Pass* pass, const int64_t* ids,
                                  const float* features, float* out, const int64_t* want, int count, float* y,
                                  int64_t stride) {
  const Shape& s = *shape;
  const Reader& r = *reader;
  const int T = pass->tokens, n = s.hidden, wide = r.embedding.columns;
  for (int t = 0; t < T; t++)
    if (ids[t] < 0 || ids[t] >= r.embedding.rows) return 1;
  if (T == 0) return 0;
  Call call;
  Workspace& mine = workspace(call.team.size);
  mine.paths.build(pass->segment, pass->segments, T);
  mine.activations.shape(T, wide + n);
  by_tokens(call.team, T, [&](int t) {
    std::vector<float> line(wide + n);
    float *e = line.data(), *f = e + wide;
    unpack_row(r.embedding, ids[t], e);
    if (r.embed_norm != nullptr) rms_norm(e, r.embed_norm, wide, s.eps, e);
    const float* raw = features + (size_t)t * n;
    if (r.feature_norm != nullptr) rms_norm(raw, r.feature_norm, n, s.eps, f);
    else memcpy(f, raw, sizeof(float) * n);
    quantise(line.data(), mine.activations, t);
    if (r.join.data == nullptr) memcpy(out + (size_t)t * n, r.normed_residual ? f : raw, sizeof(float) * n);
  });
  if (r.join.data != nullptr) {
    multiply(call.team, r.join, mine.activations, mine.flags, out, n, SET);
    quantised(call.team, out, n, T, n, mine.activations);
  }
  if (count == 0) {
    entries(call.team, s, r.layer, *pass, *pass->stores, mine, true);
    return 0;
  }
  attention(call.team, s, r.layer, *pass, *pass->stores, mine, out, ADD);
  mlp(call.team, s, r.layer, T, mine, out);
  head(call.team, r.head, r.norm, s.eps, out, want, count, mine, y, stride);
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

// A drafted chain of one sequence: the tokens of `pass`, then the most probable token, `steps` times. Each is the next staged
// entry and attends to all before it. Of every step the k most probable tokens are told, prob and tokens [steps][k]; the first
// is the chain's. y: memory for the logits of one token. The cache must have room for the entries.
// No step follows a path whose probability is below `least`; the probabilities of the steps left out are 0.
// Returns 0, or 1 as above.
extern "C" int draftwood_line(const Shape* shape, const Reader* reader, const Pass* pass, const int64_t* ids,
                              const float* features, float* out, float* y, float temperature, const int64_t* words, int steps,
                              int k, float least, float* prob, int64_t* tokens) {
  const int n = shape->hidden, columns = reader->head.rows;
  int64_t want = pass->tokens - 1, entry = pass->cache.entries[want], position = pass->positions[want];
  if (draftwood_features(shape, reader, pass, ids, features, out, &want, 1, y, columns)) return 1;
  Segment own = pass->segment[0];
  Pass one = *pass;
  own.start = 0, own.stop = 1, own.visible = nullptr;
  one.tokens = one.segments = 1, one.segment = &own, one.cache.entries = &entry, one.positions = &position;
  std::vector<float> read(out + (size_t)want * n, out + (size_t)(want + 1) * n), next(n);
  want = 0;
  float path = 1.0f;
  for (int j = 0;; j++) {
    float* chance = prob + (size_t)j * k;
    int64_t* token = tokens + (size_t)j * k;
    rank(y, columns, temperature, k, chance, token);
    for (int i = 0; words != nullptr && i < k; i++) token[i] = words[token[i]];
    path *= chance[0];
    if (j + 1 == steps || path < least) {
      std::fill(chance + k, prob + (size_t)steps * k, 0.0f);
      return 0;
    }
    entry++, position++;
    own.staged = (int32_t)entry + 1;
    if (draftwood_features(shape, reader, &one, token, read.data(), next.data(), &want, 1, y, columns)) return 1;
    std::swap(read, next);
  }
}

// Rows of a packed matrix as floats. Returns 0, or 1 if there is no such row; then nothing is written.
extern "C" int draftwood_embed(const Matrix* m, const int64_t* ids, int count, float* y) {
  for (int i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= m->rows) return 1;
  for (int i = 0; i < count; i++) unpack_row(*m, ids[i], y + (size_t)i * m->columns);
  return 0;
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

// For tests and for parts outside a model: the product of `count` vectors; y [count][m.rows].
extern "C" void draftwood_product(const Matrix* m, const float* x, int count, float* y) {
  if (count == 0) return;
  Call call;
  Workspace& mine = workspace(call.team.size);
  quantised(call.team, x, m->columns, count, m->columns, mine.activations);
  multiply(call.team, *m, mine.activations, mine.flags, y, m->rows, SET);
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

// Self-test: returns 0 if this machine runs the code and the results are right. Whole numbers only, so results are exact.
extern "C" int draftwood_try() {
  if (draftwood_begin() != 0) return 2;
  for (int kind = 4; kind <= 8; kind += 4) {
    Matrix m{nullptr, nullptr, 20, 70, kind};
    Buffer data;
    const size_t bytes = m.group_bytes() * m.groups();
    uint8_t* p = data.get<uint8_t>(bytes);
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(i * 7 + i / 64);
    for (int g = 0; g < m.groups(); g++) {
      uint16_t* s = (uint16_t*)(p + g * m.group_bytes() + m.weights_bytes());
      for (int b = 0; b < m.blocks(); b++)
        for (int r = 0; r < LANES; r++) {
          s[(kind == 4 ? 32 : 16) * b + r] = 0x3c00;           // 1.0
          if (kind == 4) s[32 * b + 16 + r] = 0xbc00;          // -1.0
        }
    }
    m.data = p;
    float w[20][70], x[9 * 70], y[9 * 20];
    for (int r = 0; r < 20; r++) unpack_row(m, r, w[r]);
    for (int i = 0; i < 9 * 70; i++) x[i] = (float)(i * 37 % 255 - 127);
    for (int t = 0; t < 9; t++)
      for (int b = 0; b < 3; b++) x[t * 70 + b * 32] = 127.0f;  // the scale is 1, so nothing is rounded
    draftwood_product(&m, x, 9, y);
    for (int t = 0; t < 9; t++)
      for (int r = 0; r < 20; r++) {
        float want = 0.0f;
        for (int c = 0; c < 70; c++) want += w[r][c] * x[t * 70 + c];
        if (want != y[t * 20 + r]) return 1;
      }
  }
  return 0;
}
