// Vectors of integers, with the instructions that the compiler flags allow: I holds sixteen sums, W 16 rows x 4 columns of
// weights without sign.
#pragma once
#include "simd.hpp"

#if defined(__AVX512VNNI__)
struct I { __m512i v; };
using W = __m512i;
static inline I whole(int x) { return {_mm512_set1_epi32(x)}; }
static inline I dot(I acc, W w, int x) { return {_mm512_dpbusd_epi32(acc.v, w, _mm512_set1_epi32(x))}; }
static inline I join(I hi, I lo) { return {_mm512_add_epi32(_mm512_slli_epi32(hi.v, 7), lo.v)}; }
template <int BY> static inline I shifted(I a) { return {_mm512_slli_epi32(a.v, BY)}; }
static inline I operator*(I a, I b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
static inline I load_signed(const uint8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
static inline I both(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline F real(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline W load_w(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline W low_nibble(W a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
static inline W high_nibble(W a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
static inline void store_w(uint8_t* p, W a) { _mm512_storeu_si512(p, a); }
static inline W either(W a, W b) { return _mm512_or_si512(a, b); }
template <int LEFT, int MASK> static inline W bits(W a) {
  const W moved = LEFT >= 0 ? _mm512_slli_epi16(a, LEFT >= 0 ? LEFT : 0) : _mm512_srli_epi16(a, LEFT < 0 ? -LEFT : 0);
  return _mm512_and_si512(moved, _mm512_set1_epi8(MASK));
}
static inline W look_up(const uint8_t* table, W a) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), a);
}
#elif defined(__AVX2__)
struct I { __m256i a, b; };
struct W { __m256i a, b; };
static inline I whole(int x) { __m256i v = _mm256_set1_epi32(x); return {v, v}; }
#if defined(__AVXVNNI__)
static inline __m256i dot8(__m256i acc, __m256i w, __m256i x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }
#else
// Only for nibbles, or bytes split in nibbles: 2 * 15 * 127 fits in 16 bits, 2 * 255 * 127 would not.
static inline __m256i dot8(__m256i acc, __m256i w, __m256i x) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
#define SPLIT_BYTES 1
#endif
static inline I dot(I acc, W w, int x) {
  __m256i v = _mm256_set1_epi32(x);
  return {dot8(acc.a, w.a, v), dot8(acc.b, w.b, v)};
}
static inline I shifted(I hi, I lo, int bits) {
  return {_mm256_add_epi32(_mm256_slli_epi32(hi.a, bits), lo.a), _mm256_add_epi32(_mm256_slli_epi32(hi.b, bits), lo.b)};
}
static inline I join(I hi, I lo) { return shifted(hi, lo, 7); }
template <int BY> static inline I shifted(I x) { return {_mm256_slli_epi32(x.a, BY), _mm256_slli_epi32(x.b, BY)}; }
static inline I operator*(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
static inline I load_signed(const uint8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)), _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
static inline I both(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
static inline F real(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline W load_w(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
static inline W low_nibble(W x) {
  __m256i m = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
static inline W high_nibble(W x) {
  return low_nibble({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)});
}
static inline void store_w(uint8_t* p, W x) {
  _mm256_storeu_si256((__m256i*)p, x.a);
  _mm256_storeu_si256((__m256i*)(p + 32), x.b);
}
static inline W either(W x, W y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int LEFT, int MASK> static inline __m256i bits8(__m256i x) {
  const __m256i moved = LEFT >= 0 ? _mm256_slli_epi16(x, LEFT >= 0 ? LEFT : 0) : _mm256_srli_epi16(x, LEFT < 0 ? -LEFT : 0);
  return _mm256_and_si256(moved, _mm256_set1_epi8(MASK));
}
template <int LEFT, int MASK> static inline W bits(W x) { return {bits8<LEFT, MASK>(x.a), bits8<LEFT, MASK>(x.b)}; }
static inline W look_up(const uint8_t* table, W x) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(t, x.a), _mm256_shuffle_epi8(t, x.b)};
}
#elif defined(__aarch64__)
#include "neon_integers.hpp"
#else
struct I { int32_t v[LANES]; };
struct W { uint8_t v[64]; };
static inline I whole(int x) { I r; for (int i = 0; i < LANES; i++) r.v[i] = x; return r; }
static inline I dot(I acc, const W& w, int x) {
  int8_t b[4]; memcpy(b, &x, 4);
  for (int r = 0; r < LANES; r++)
    acc.v[r] += w.v[4 * r] * b[0] + w.v[4 * r + 1] * b[1] + w.v[4 * r + 2] * b[2] + w.v[4 * r + 3] * b[3];
  return acc;
}
static inline I join(I hi, I lo) { for (int i = 0; i < LANES; i++) hi.v[i] = hi.v[i] * 128 + lo.v[i]; return hi; }
template <int BY> static inline I shifted(I a) { for (int i = 0; i < LANES; i++) a.v[i] *= 1 << BY; return a; }
static inline I operator*(I a, I b) { for (int i = 0; i < LANES; i++) a.v[i] = (int32_t)((uint32_t)a.v[i] * (uint32_t)b.v[i]); return a; }
static inline I load_signed(const uint8_t* p) { I r; for (int i = 0; i < LANES; i++) r.v[i] = (int8_t)p[i]; return r; }
static inline I both(I a, I b) { for (int i = 0; i < LANES; i++) a.v[i] += b.v[i]; return a; }
static inline F real(I a) { F r; for (int i = 0; i < LANES; i++) r.v[i] = (float)a.v[i]; return r; }
static inline W load_w(const uint8_t* p) { W w; memcpy(w.v, p, 64); return w; }
static inline W low_nibble(W w) { for (auto& b : w.v) b &= 15; return w; }
static inline W high_nibble(W w) { for (auto& b : w.v) b >>= 4; return w; }
static inline void store_w(uint8_t* p, const W& w) { memcpy(p, w.v, 64); }
static inline W either(W a, const W& b) { for (int i = 0; i < 64; i++) a.v[i] |= b.v[i]; return a; }
template <int LEFT, int MASK> static inline W bits(W w) {
  for (auto& b : w.v) b = (uint8_t)((LEFT >= 0 ? b << (LEFT >= 0 ? LEFT : 0) : b >> (LEFT < 0 ? -LEFT : 0)) & MASK);
  return w;
}
static inline W look_up(const uint8_t* table, W w) { for (auto& b : w.v) b = table[b]; return w; }
#endif

// Whether products take wide levels with their sign, and not with an offset that is subtracted from the sum.
#if defined(SIGNED_LEVELS)
constexpr bool SIGNED = true;
#else
constexpr bool SIGNED = false;
static inline W turned(const W& w) { return w; }
#endif

static inline F real_signed(const uint8_t* p) { return real(load_signed(p)); }
static inline int quad(const int8_t* p) { int x; memcpy(&x, p, 4); return x; }
