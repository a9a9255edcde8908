// Drafts from a suffix tree, and the functions of both for ctypes.
#include "suffix_tree.hpp"

#include <cmath>
#include <queue>

struct SuffixRule {
  int32_t nodes, levels, tree;   // most drafted tokens, most of them on one path; tree 0: a single path
  double factor, offset, least;  // floor(factor * match + offset) tokens at most, none less probable than `least`
};

struct Drafted {  // parents count the root as 0, so node i is tokens[i - 1]
  std::vector<int32_t> tokens, parents;
  std::vector<double> probs;
  double score = 0;
  void add(int32_t token, int32_t parent, double prob) {
    tokens.push_back(token), parents.push_back(parent), probs.push_back(prob);
    score += prob;
  }
};

using Place = SuffixTree::Place;

// The most frequent continuation.
static Drafted path(SuffixTree& tree, Place place, int32_t budget, const SuffixRule& rule) {
  Drafted found;
  double prob = 1;
  for (int32_t i = 0; i < std::min(budget, rule.levels); i++) {
    if (place.used == tree.nodes[place.node].size) {
      const int32_t below = tree.best_child(place.node);
      if (below == 0) break;
      prob *= (double)tree.nodes[below].count / tree.nodes[place.node].count;
      place = Place{below, 0};
    }
    if (prob < rule.least) break;
    found.add(tree.token(place.node, place.used++), i, prob);
  }
  return found;
}

struct Candidate {
  double prob;
  int32_t order, parent, level;
  Place place;  // before its token
  bool operator<(const Candidate& other) const {  // of equal ones the first comes first
    return prob != other.prob ? prob < other.prob : order > other.order;
  }
};

// The most probable continuations, one token after another.
static Drafted branches(SuffixTree& tree, Place place, int32_t budget, const SuffixRule& rule) {
  Drafted found;
  std::priority_queue<Candidate> heap;
  std::vector<int32_t> below;
  int32_t order = 0;
  const auto grow = [&](Place at, double prob, int32_t parent, int32_t level) {
    if (level == rule.levels) return;
    if (at.used < tree.nodes[at.node].size) {
      heap.push(Candidate{prob, order++, parent, level + 1, at});
      return;
    }
    const double count = tree.nodes[at.node].count;
    below.clear();
    for (int32_t c = tree.nodes[at.node].child; c != 0; c = tree.nodes[c].next)
      if (prob * (tree.nodes[c].count / count) >= rule.least) below.push_back(c);
    std::sort(below.begin(), below.end(), [&](int32_t a, int32_t b) { return tree.better(a, b); });
    for (const int32_t c : below)
      heap.push(Candidate{prob * (tree.nodes[c].count / count), order++, parent, level + 1, Place{c, 0}});
  };
  if (rule.least <= 1) grow(place, 1, 0, 0);
  while (!heap.empty() && (int32_t)found.tokens.size() < budget) {
    Candidate next = heap.top();
    heap.pop();
    found.add(tree.token(next.place.node, next.place.used++), next.parent, next.prob);
    grow(next.place, next.prob, (int32_t)found.tokens.size(), next.level);
  }
  return found;
}

extern "C" SuffixTree* draftwood_suffix_new(int32_t depth) { return new SuffixTree(depth); }

extern "C" void draftwood_suffix_free(SuffixTree* tree) { delete tree; }

extern "C" void draftwood_suffix_append(SuffixTree* tree, int64_t sequence, const int32_t* tokens, int32_t n) {
  tree->append(sequence, tokens, n);
}

extern "C" void draftwood_suffix_remove(SuffixTree* tree, int64_t sequence) { tree->remove(sequence); }

extern "C" int32_t draftwood_suffix_count(const SuffixTree* tree, const int32_t* tokens, int32_t n) {
  Place place;
  return tree->locate(tokens, n, place) ? tree->nodes[place.node].count : 0;
}

// What is held: nodes without the root, texts, tokens of texts.
extern "C" void draftwood_suffix_sizes(const SuffixTree* tree, int64_t* sizes) {
  sizes[0] = (int64_t)(tree->nodes.size() - 1 - tree->free_nodes.size());
  sizes[1] = (int64_t)(tree->texts.size() - tree->free_texts.size());
  sizes[2] = 0;
  for (const auto& text : tree->texts) sizes[2] += (int64_t)text.tokens.size();
}

// The draft of the best score over all lengths of match, the longer match among equals; how many tokens it has.
extern "C" int32_t draftwood_suffix_draft(SuffixTree* tree, const int32_t* context, int32_t n, const SuffixRule* rule,
                                          int32_t* tokens, int32_t* parents, double* probs, double* score,
                                          int32_t* matched) {
  Drafted best;
  *matched = 0;
  Place place;
  for (int32_t match = 1; match <= n && tree->locate(context + n - match, match, place); match++) {
    const double wanted = std::floor(rule->factor * match + rule->offset);
    const int32_t budget = (int32_t)std::max(0.0, std::min((double)rule->nodes, wanted));
    Drafted found = (rule->tree ? branches : path)(*tree, place, budget, *rule);
    if (!found.tokens.empty() && found.score >= best.score) best = std::move(found), *matched = match;
  }
  std::copy(best.tokens.begin(), best.tokens.end(), tokens);
  std::copy(best.parents.begin(), best.parents.end(), parents);
  std::copy(best.probs.begin(), best.probs.end(), probs);
  *score = best.score;
  return (int32_t)best.tokens.size();
}
