// Keys of sixteen KV entries, transposed: [column][entry], so that sums over columns need no shuffling. As floats, or as
// the halves they are: halves cost less to write, but a conversion every time they are read.
#pragma once
#include <type_traits>
#include "product.hpp"

constexpr int KEYS = 16;          // KV entries transposed together
constexpr int WIDEST = 256;       // columns of a head
constexpr int NEXT_ENTRIES = 32;  // how far ahead entries are prefetched

static inline F load_key(const uint16_t* p) { return load_half(p); }
static inline F load_key(const float* p) { return load(p); }

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr bool TRANSPOSED_HALVES = true;

static inline void store_key(uint16_t* p, __m256i halves) { _mm256_store_si256((__m256i*)p, halves); }
static inline void store_key(float* p, __m256i halves) { _mm512_store_ps(p, _mm512_cvtph_ps(halves)); }

// Thirty-two columns of sixteen entries: first 8 x 8 inside each quarter of a vector, then the quarters.
template <class Key>
static inline void transpose32(__m512i* r, Key* out) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi16(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi16(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi32(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi32(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi32(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 16; i += 8)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      t[i + 2 * c] = _mm512_unpacklo_epi64(r[i + c], r[i + c + 4]);
      t[i + 2 * c + 1] = _mm512_unpackhi_epi64(r[i + c], r[i + c + 4]);
    }
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 8
  for (int c = 0; c < 8; c++) {
    const __m512i a = _mm512_permutex2var_epi64(t[c], low, t[c + 8]);
    const __m512i b = _mm512_permutex2var_epi64(t[c], high, t[c + 8]);
    store_key(out + c * KEYS, _mm512_castsi512_si256(a));
    store_key(out + (c + 8) * KEYS, _mm512_extracti64x4_epi64(a, 1));
    store_key(out + (c + 16) * KEYS, _mm512_castsi512_si256(b));
    store_key(out + (c + 24) * KEYS, _mm512_extracti64x4_epi64(b, 1));
  }
}

// Zeros behind `count` entries. Writes whole groups of 32 columns. Floats are for many queries, whose products
// take so long that the processor does not prefetch the next keys by itself.
template <class Key>
static inline void transpose(const uint16_t* keys, int count, int width, Key* out) {
  for (int d = 0; d < width; d += 32) {
    __m512i r[16];
    if (count >= KEYS && width - d >= 32) {
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        r[i] = _mm512_loadu_si512(keys + (size_t)i * width + d);
        if (std::is_same<Key, float>::value) __builtin_prefetch(keys + (size_t)(i + NEXT_ENTRIES) * width + d);
      }
    } else {
      const __mmask32 some = width - d >= 32 ? ~0u : (1u << (width - d)) - 1;
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++)
        r[i] = i < count ? _mm512_maskz_loadu_epi16(some, keys + (size_t)i * width + d) : _mm512_setzero_si512();
    }
    transpose32(r, out + d * KEYS);
  }
}
#else
constexpr bool TRANSPOSED_HALVES = false;

// Zeros behind `count` entries.
static inline void transpose(const uint16_t* keys, int count, int width, float* out) {
  float one[WIDEST + LANES];
  for (int k = 0; k < KEYS; k++) {
    if (k < count) {
      for (int d = 0; d < width; d += LANES) {
        if (width - d >= LANES) store(one + d, load_half(keys + (size_t)k * width + d));
        else {
          uint16_t tail[LANES] = {0};
          memcpy(tail, keys + (size_t)k * width + d, 2 * (width - d));
          store(one + d, load_half(tail));
        }
      }
      for (int d = 0; d < width; d++) out[d * KEYS + k] = one[d];
    } else {
      for (int d = 0; d < width; d++) out[d * KEYS + k] = 0.0f;
    }
  }
}
#endif
