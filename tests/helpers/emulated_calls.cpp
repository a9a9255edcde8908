// Answers calls that arrive as an image of the caller's memory: pieces of it with their addresses there, the places of the
// pointers among them, and the arguments. Sends back the result and the pieces. Written for 64-bit ARM, where whole numbers and
// floats are passed in registers of their own.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

extern "C" {
#define FUNCTIONS \
  IS(draftwood_layers) IS(draftwood_head) IS(draftwood_embed) IS(draftwood_norm) IS(draftwood_cap) IS(draftwood_product) \
  IS(draftwood_features) IS(draftwood_line) IS(draftwood_nucleus) IS(draftwood_nucleus_read) IS(draftwood_pick) IS(draftwood_rank) IS(draftwood_threads) IS(draftwood_try)
#define IS(name) void name();
FUNCTIONS
#undef IS
}

struct Piece { uint64_t size; char* memory; };
static std::map<uint64_t, Piece> pieces;

template <class T> static T take() {
  T x;
  if (fread(&x, sizeof x, 1, stdin) != 1) exit(0);
  return x;
}
static uint64_t here(uint64_t there) {
  auto found = pieces.upper_bound(there);
  if (found == pieces.begin() || there - std::prev(found)->first > std::prev(found)->second.size) abort();
  return (uint64_t)std::prev(found)->second.memory + (there - std::prev(found)->first);
}
static void (*function(const char* name))() {
#define IS(each) if (strcmp(name, #each) == 0) return each;
  FUNCTIONS
#undef IS
  abort();
}

int main() {
  for (;;) {
    char name[32];
    if (fread(name, sizeof name, 1, stdin) != 1) return 0;
    for (uint32_t n = take<uint32_t>(); n > 0; n--) {
      const uint64_t address = take<uint64_t>(), size = take<uint64_t>();
      char* memory = (char*)aligned_alloc(64, (size + 127) / 64 * 64);
      if (size > 0 && fread(memory, size, 1, stdin) != 1) abort();
      pieces[address] = {size, memory};
    }
    std::map<uint64_t, uint64_t> pointers;  // by place, as they were
    for (uint32_t n = take<uint32_t>(); n > 0; n--) {
      const uint64_t place = here(take<uint64_t>());
      memcpy(&pointers[place], (void*)place, 8);
      const uint64_t moved = here(pointers[place]);
      memcpy((void*)place, &moved, 8);
    }
    int64_t whole[14] = {0};
    float real[2] = {0};
    int wholes = 0, reals = 0;
    for (uint32_t n = take<uint32_t>(); n > 0; n--) {
      const char kind = take<char>();
      if (kind == 'f') real[reals++] = (float)take<double>();
      else whole[wholes++] = kind == 'p' ? (int64_t)here(take<uint64_t>()) : take<int64_t>();
    }
    using Call = int64_t (*)(float, float, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                             int64_t, int64_t, int64_t, int64_t, int64_t);
    const int64_t* w = whole;
    const int64_t result = ((Call)function(name))(real[0], real[1], w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9],
                                                 w[10], w[11], w[12], w[13]);
    for (const auto& each : pointers) memcpy((void*)each.first, &each.second, 8);
    fwrite(&result, sizeof result, 1, stdout);
    for (auto& each : pieces) {
      fwrite(each.second.memory, 1, each.second.size, stdout);
      free(each.second.memory);
    }
    pieces.clear();
    fflush(stdout);
  }
}
