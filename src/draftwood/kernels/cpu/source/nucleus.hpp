// From logits to the few tokens that sampling leaves: softmax, min-p, top-p. A row's answer depends on nothing but the row.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>
#include "simd.hpp"

struct Kept {  // tokens of one row in the order of their ids
  std::vector<float> prob;
  std::vector<int32_t> token;

  double sum() const {
    double all = 0.0;
    for (float p : prob) all += p;
    return all;
  }
  void scale(double by) {
    for (float& p : prob) p = (float)(p * by);
  }
  void clear() {
    prob.clear();
    token.clear();
  }
  void add(float p, int at) {
    prob.push_back(p);
    token.push_back(at);
  }
};

constexpr double TIMES[] = {64, 16, 4, 0};
constexpr int NARROW = 64;  // columns that are picked from in one step

static inline double added(const float* x, int n) {
  double part[8] = {}, all = 0.0;
  int i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; k++) part[k] += x[i + k];
  for (; i < n; i++) all += x[i];
  for (double each : part) all += each;
  return all;
}

// The first piece whose cumulated mass exceeds u times the total; -1 without mass.
static inline int chosen(const std::vector<double>& mass, double u) {
  double total = 0.0, sum = 0.0;
  for (double m : mass) total += m;
  if (!(total > 0.0)) return -1;
  const double goal = u * total;
  int column = 0, last = 0;
  for (double m : mass) {
    sum += m;
    column += sum <= goal;
    last += sum < total;  // u < 1, but the product may round up to the total
  }
  return std::min(column, last);
}

struct Nucleus {  // one per thread; room that is used again
  Kept* kept = nullptr;
  std::vector<float> weight, edge;
  std::vector<double> mass;

  // e^((x - peak) / temperature) of every token, and their sum. What stands 87 below the best, or was forbidden, weighs nothing.
  double weigh(const float* x, int n, float peak, float temperature) {
    const F top = set1(peak), by = set1(1.0f / temperature), none = set1(1.7e-38f), zero = set1(0.0f);
    weight.resize(n);
    double total = 0.0;
    for (int i = 0; i < n;) {
      F some = zero;
      for (const int end = std::min(n, i + 256 * LANES); i < end; i += LANES) {
        const F e = max(zero, exponential((load_some(x + i, n - i, -INFINITY) - top) * by) - none);
        some = some + e;
        store_some(weight.data() + i, e, n - i);
      }
      total += sum(some);
    }
    return total;
  }

  void collect(float least) {
    const int n = (int)weight.size();
    const F floor = set1(least);
    kept->clear();
    for (int i = 0; i < n; i += LANES)
      for (uint32_t m = at_least(load_some(weight.data() + i, n - i, -1.0f), floor); m != 0; m &= m - 1)
        kept->add(weight[i + __builtin_ctz(m)], i + __builtin_ctz(m));
  }

  // Of what was collected, the most probable that reach `goal`, equal ones together. They are counted into 64 bins for every
  // halving, and only the bin that reaches it is sorted.
  void reach(double goal) {
    std::vector<float>& prob = kept->prob;
    const auto bin = [](float p) { uint32_t b; memcpy(&b, &p, 4); return (int)(b >> 17); };
    int high = 0, low = INT32_MAX;
    for (float p : prob) high = std::max(high, bin(p)), low = std::min(low, bin(p));
    mass.assign(high - low + 1, 0.0);
    for (float p : prob) mass[high - bin(p)] += p;
    double before = 0.0;
    size_t last = 0, j = 0, stay = 0;
    while (last < mass.size() && before + mass[last] < goal) before += mass[last++];
    if (last == mass.size()) return;  // out of reach: all stay
    edge.clear();
    for (float p : prob)
      if (high - bin(p) == (int)last) edge.push_back(p);
    std::sort(edge.begin(), edge.end(), std::greater<float>());
    for (; j + 1 < edge.size() && before + edge[j] < goal; j++) before += edge[j];
    for (size_t i = 0; i < prob.size(); i++)
      if (prob[i] >= edge[j]) prob[stay] = prob[i], kept->token[stay++] = kept->token[i];
    prob.resize(stay);
    kept->token.resize(stay);
  }

  static float peak(const float* x, int n) {
    F best = set1(-INFINITY);
    for (int i = 0; i < n; i += LANES) best = max(best, load_some(x + i, n - i, -INFINITY));
    return greatest(best);
  }

  // False: the row is no distribution. temperature 0: the best token and no other.
  bool find(const float* x, int n, float peak, float temperature, double top_p, float min_p) {
    const double total = weigh(x, n, peak, temperature > 0 ? temperature : 1.0f);  // not a number if one of the row is none
    if (!(total > 0.0 && total < INFINITY)) return false;
    if (temperature <= 0) {
      kept->clear();
      kept->add(1.0f, (int)(std::find(x, x + n, peak) - x));
      return true;
    }
    if (min_p > 0) {
      collect(min_p);  // the best weighs one
      kept->scale(1.0 / kept->sum());
    } else {
      // All below (1 - top_p) / n can go together, so that bound always serves, and most rows are served by a higher one.
      for (const double times : TIMES) {
        collect((float)std::max((1.0 - top_p) / n * times * total, 1e-38));
        kept->scale(1.0 / total);
        if (top_p >= 1.0 || kept->sum() >= top_p) break;
      }
    }
    if (top_p < 1.0) {
      reach(top_p);
      kept->scale(1.0 / kept->sum());
    }
    return true;
  }

  // A token by inverse CDF over token order, in three steps with a uniform each: a third of a token id's digits at a time,
  // to the base `side`. The same additions as `random.invert_sparse`. -1: the row is no distribution.
  int pick(const float* x, int n, float peak, float temperature, double top_p, float min_p, const double* u) {
    if (temperature > 0 && top_p >= 1.0 && !(min_p > 0)) {
      const double total = weigh(x, n, peak, temperature);
      return total > 0.0 && total < INFINITY ? pick_of(weight.data(), n, u) : -1;
    }
    if (!find(x, n, peak, temperature, top_p, min_p)) return -1;
    return by_digits(n, u, [&](int first, int unit, int side) {
      for (size_t j = 0; j < kept->token.size(); j++) {
        const int piece = kept->token[j] / unit - first;
        if (0 <= piece && piece < side) mass[piece] += kept->prob[j];
      }
    });
  }

  // The same from weights of all columns.
  int pick_of(const float* w, int n, const double* u) {
    return by_digits(n, u, [&](int first, int unit, int side) {
      for (int i = 0; i < side; i++) {
        const int begin = std::min((first + i) * unit, n), end = std::min((first + i + 1) * unit, n);
        mass[i] = added(w + begin, end - begin);
      }
    });
  }

  template <class Fill>
  int by_digits(int n, const double* u, Fill fill) {  // `fill`: mass of `side` pieces of `unit` tokens from a piece on
    int side = 1, found = 0;
    while (side * side * side < n) side++;
    if (n <= NARROW) side = n;
    for (int unit = n <= NARROW ? 1 : side * side; unit > 0; unit /= side, u++) {
      mass.assign(side, 0.0);
      fill(found * side, unit, side);
      const int piece = chosen(mass, *u);
      if (piece < 0) return -1;
      found = found * side + piece;
      if (side == 1) break;
    }
    return found;
  }

  float* edge_of(int n) {  // room for a second row
    edge.resize(n);
    return edge.data();
  }

  // softmax(x / temperature) into q. False: the row is no distribution.
  bool shares(const float* x, int n, float temperature, float* q) {
    const double total = weigh(x, n, peak(x, n), temperature);
    if (!(total > 0.0 && total < INFINITY)) return false;
    const F by = set1((float)(1.0 / total));
    for (int i = 0; i < n; i += LANES) store_some(q + i, load_some(weight.data() + i, n - i, 0.0f) * by, n - i);
    return true;
  }
};
