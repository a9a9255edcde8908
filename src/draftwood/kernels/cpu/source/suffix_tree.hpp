// How often every run of up to `depth` tokens occurs in several sequences that grow and go: a suffix tree cut at that depth.
//
//            (root)            An edge is a run of tokens inside a stored text, and all tokens of an edge have one count.
//           /      \           A node stands at the end of its edge. Its children hold the occurrences that go on, so
//      "a b" 3    "b" 4        count - sum of the children's counts = occurrences that end here: at the end of a sequence,
//        /  \                  where the next token will find them, or at the full depth.
//    "c" 1  "d e" 1            A node with one child of the same count is never kept: the two edges become one.
//
// A text is a sequence, or the path of one node whose sequence was removed. The tokens before an edge's start in its text are
// always the path from the root, so edges can be split and joined by moving `start` and `size`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

struct SuffixTree {
  struct Node {  // 0 is the root, which is nobody's child: as a link it means none
    int32_t parent = 0, child = 0, next = 0, previous = 0;
    int32_t best = 0;  // the child of the highest count, among equals of the lowest token; 0: to be searched
    int32_t count = 0, text = -1, start = 0, size = 0;
  };
  struct Text {
    std::vector<int32_t> tokens;
    int64_t edges = 0;   // that point into it
    bool owned = false;  // by a sequence, with which it goes; otherwise with its last edge
  };
  struct Sequence {
    int32_t text = -1;
    std::vector<int32_t> ends;  // ends[i]: the node of the last i + 1 tokens; only those shorter than the depth
  };
  struct Place {  // behind `used` tokens of a node's edge
    int32_t node = 0, used = 0;
  };

  const int32_t depth;
  std::vector<Node> nodes{Node()};
  std::vector<int32_t> free_nodes, free_texts;
  std::vector<Text> texts;
  std::unordered_map<uint64_t, int32_t> children;  // (parent, first token of the edge) -> node
  std::unordered_map<int64_t, Sequence> sequences;

  explicit SuffixTree(int32_t d) : depth(d) {}

  // --- reading

  int32_t token(int32_t node, int32_t at = 0) const { return texts[nodes[node].text].tokens[nodes[node].start + at]; }

  int32_t find(int32_t parent, int32_t first) const {
    if (nodes[parent].child == 0) return 0;  // of most suffixes nothing has gone on yet
    const auto found = children.find(key(parent, first));
    return found == children.end() ? 0 : found->second;
  }

  // Where a run of tokens ends; false if it never occurs.
  bool locate(const int32_t* tokens, int32_t n, Place& place) const {
    place = Place();
    for (int32_t i = 0; i < n; i++) {
      if (place.used == nodes[place.node].size) {
        place.node = find(place.node, tokens[i]), place.used = 1;
        if (place.node == 0) return false;
      } else if (token(place.node, place.used++) != tokens[i]) {
        return false;
      }
    }
    return true;
  }

  bool better(int32_t a, int32_t b) const {
    return nodes[a].count != nodes[b].count ? nodes[a].count > nodes[b].count : token(a) < token(b);
  }

  int32_t best_child(int32_t at) {
    int32_t best = nodes[at].best;
    if (best == 0) {
      best = nodes[at].child;
      for (int32_t c = best; c != 0; c = nodes[c].next)
        if (better(c, best)) best = c;
      nodes[at].best = best;
    }
    return best;
  }

  // --- growing

  void append(int64_t id, const int32_t* tokens, int32_t n) {
    Sequence& sequence = sequences[id];
    if (sequence.text < 0) sequence.text = make_text(), texts[sequence.text].owned = true;
    for (int32_t i = 0; i < n; i++) append(sequence, tokens[i]);
  }

  void append(Sequence& sequence, int32_t next) {
    std::vector<int32_t>& written = texts[sequence.text].tokens;
    const int32_t at = (int32_t)written.size();
    written.push_back(next);
    // Every open suffix goes on by this token, and a new one begins at the root.
    std::vector<int32_t>& ends = sequence.ends;
    ends.push_back(0);
    for (size_t i = ends.size(); i-- > 0;) ends[i] = advance(i == 0 ? 0 : ends[i - 1], sequence.text, at, next);
    if ((int32_t)ends.size() >= depth) ends.pop_back();
  }

  // One occurrence that ended at `at` goes on by the token at text[where]; the node where it ends now.
  int32_t advance(int32_t at, int32_t text, int32_t where, int32_t next) {
    const int32_t below = find(at, next);
    if (below == 0) {
      if (at != 0 && nodes[at].count == 1) {  // nobody else is here: its edge grows
        nodes[at].size++;
        point(at, text, where + 1 - nodes[at].size);
        return at;
      }
      const int32_t leaf = make_node(text, where, 1, 1);
      link(at, leaf);
      return leaf;
    }
    // Nobody stays behind at `at`, and all go the same way.
    const bool joins = at != 0 && nodes[below].next == 0 && nodes[below].previous == 0 &&
                       nodes[at].count == nodes[below].count + 1;
    if (joins && nodes[below].size > 1) {  // the border between the two edges moves down by one token
      unlink(below);
      nodes[below].start++, nodes[below].size--;
      nodes[at].size++;
      point(at, text, where + 1 - nodes[at].size);
      link(at, below);
      return at;
    }
    const int32_t reached = nodes[below].size > 1 ? split(below) : below;
    nodes[reached].count++;
    point(reached, text, where);
    const int32_t best = nodes[at].best;
    if (best != 0 && best != reached && better(reached, best)) nodes[at].best = reached;
    if (joins) join(at);
    return reached;
  }

  // --- removing

  void remove(int64_t id) {
    const auto found = sequences.find(id);
    if (found == sequences.end()) return;
    const int32_t text = found->second.text;
    const int32_t n = (int32_t)texts[text].tokens.size();
    for (int32_t i = 0; i < n; i++) take_back(text, i, std::min(n, i + depth));
    for (int32_t i = 0; i < n && texts[text].edges > 0; i++) detach(text, i, std::min(n, i + depth));
    sequences.erase(found);
    drop_text(text);
  }

  // One occurrence less of everything that begins at text[from].
  void take_back(int32_t text, int32_t from, int32_t stop) {
    int32_t at = 0;
    while (from < stop) {
      const int32_t below = find(at, texts[text].tokens[from]);
      nodes[below].count--;
      if (nodes[at].best == below) nodes[at].best = 0;
      from += nodes[below].size;
      at = below;
    }
    while (at != 0) {
      const int32_t above = nodes[at].parent, only = nodes[at].child;
      if (nodes[at].count == 0) {
        unlink(at);
        drop_node(at);
      } else if (only != 0 && nodes[only].next == 0 && nodes[only].count == nodes[at].count) {
        join(at);
      }
      at = above;
    }
  }

  // Edges that still point into a text which goes get a copy of their path.
  void detach(int32_t text, int32_t from, int32_t stop) {
    int32_t at = 0;
    const int32_t begin = from;
    while (from < stop) {
      at = find(at, texts[text].tokens[from]);
      if (at == 0) return;
      const int32_t size = nodes[at].size, above = from - begin;
      if (nodes[at].text == text) {
        const int32_t copy = make_text();
        const int32_t* path = texts[text].tokens.data() + nodes[at].start - above;
        texts[copy].tokens.assign(path, path + above + size);
        point(at, copy, above);
      }
      for (int32_t i = 0; i < size; i++, from++)
        if (from == stop || token(at, i) != texts[text].tokens[from]) return;
    }
  }

  // --- nodes, edges and texts

  static uint64_t key(int32_t parent, int32_t first) { return (uint64_t)(uint32_t)parent << 32 | (uint32_t)first; }

  int32_t make_text() {
    if (free_texts.empty()) return texts.emplace_back(), (int32_t)texts.size() - 1;
    const int32_t text = free_texts.back();
    return free_texts.pop_back(), text;
  }

  void drop_text(int32_t text) {
    texts[text] = Text();
    free_texts.push_back(text);
  }

  void point(int32_t node, int32_t text, int32_t start) {
    Node& n = nodes[node];
    n.start = start;
    if (n.text == text) return;
    texts[text].edges++;
    if (n.text >= 0) leave(n.text);
    n.text = text;
  }

  void leave(int32_t text) {
    if (--texts[text].edges == 0 && !texts[text].owned) drop_text(text);
  }

  int32_t make_node(int32_t text, int32_t start, int32_t size, int32_t count) {
    int32_t node = (int32_t)nodes.size();
    if (free_nodes.empty()) nodes.emplace_back();
    else node = free_nodes.back(), free_nodes.pop_back();
    nodes[node].size = size, nodes[node].count = count;
    point(node, text, start);
    return node;
  }

  void drop_node(int32_t node) {
    leave(nodes[node].text);
    nodes[node] = Node();
    free_nodes.push_back(node);
  }

  void link(int32_t parent, int32_t node) {
    Node &p = nodes[parent], &n = nodes[node];
    children[key(parent, token(node))] = node;
    if (p.child == 0 || (p.best != 0 && better(node, p.best))) p.best = node;
    n.parent = parent, n.next = p.child, n.previous = 0;
    if (p.child != 0) nodes[p.child].previous = node;
    p.child = node;
  }

  void unlink(int32_t node) {
    const Node& n = nodes[node];
    Node& p = nodes[n.parent];
    children.erase(key(n.parent, token(node)));
    if (p.best == node) p.best = 0;
    if (p.child == node) p.child = n.next;
    if (n.previous != 0) nodes[n.previous].next = n.next;
    if (n.next != 0) nodes[n.next].previous = n.previous;
  }

  // `other` takes the place of `node` below its parent; their edges begin with the same token.
  void replace(int32_t node, int32_t other) {
    const Node n = nodes[node];
    Node& p = nodes[n.parent];
    children[key(n.parent, token(node))] = other;
    if (p.best == node) p.best = other;
    if (p.child == node) p.child = other;
    if (n.previous != 0) nodes[n.previous].next = other;
    if (n.next != 0) nodes[n.next].previous = other;
    nodes[other].parent = n.parent, nodes[other].next = n.next, nodes[other].previous = n.previous;
  }

  // The first token of an edge becomes a node of its own, above the rest; that node.
  int32_t split(int32_t node) {
    const int32_t upper = make_node(nodes[node].text, nodes[node].start, 1, nodes[node].count);
    replace(node, upper);
    nodes[node].start++, nodes[node].size--;
    link(upper, node);
    return upper;
  }

  // A node and its only child become one, which is the child.
  void join(int32_t node) {
    const int32_t below = nodes[node].child;
    children.erase(key(node, token(below)));
    nodes[below].start -= nodes[node].size, nodes[below].size += nodes[node].size;
    replace(node, below);
    drop_node(node);
  }
};
