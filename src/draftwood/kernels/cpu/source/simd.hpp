// Vectors of sixteen floats, with the instructions that the compiler flags allow. Every operation is written once per
// level; `sum` adds in the same order on every level.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

constexpr int LANES = 16;

#if defined(__AVX512F__)

struct F { __m512 v; };
static inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
static inline F set1(float x) { return {_mm512_set1_ps(x)}; }
static inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
static inline F round(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static inline F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
static inline void store_half(uint16_t* p, F a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline F load_bfloat(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
// 2^n for whole n in [-126, 127]
static inline F exp2_whole(F n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
static inline void store_bytes(int8_t* p, F a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v))); }
static inline uint32_t at_least(F a, F b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
static inline __m256 fold8(F a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
}

#elif defined(__AVX2__)

struct F { __m256 a, b; };
static inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, F x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
static inline F set1(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
static inline F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline F abs(F x) {
  __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
static inline F round(F x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline F load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
static inline void store_half(uint16_t* p, F x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline __m256 bfloats(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline F load_bfloat(const uint16_t* p) { return {bfloats(p), bfloats(p + 8)}; }
static inline __m256 exp2_half(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline F exp2_whole(F n) { return {exp2_half(n.a), exp2_half(n.b)}; }
static inline void store_bytes(int8_t* p, F x) {
  __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));  // a0-3 b0-3 | a4-7 b4-7
  w = _mm256_permute4x64_epi64(w, 0xd8);                                             // a0-7 | b0-7
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
static inline uint32_t at_least(F x, F y) {
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)) |
         (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)) << 8;
}
static inline __m256 fold8(F x) { return _mm256_add_ps(x.a, x.b); }

#elif defined(__aarch64__)
#include "neon.hpp"
#else

struct F { float v[LANES]; };
#define EACH for (int i = 0; i < LANES; i++)
static inline F load(const float* p) { F r; memcpy(r.v, p, sizeof r.v); return r; }
static inline void store(float* p, F a) { memcpy(p, a.v, sizeof a.v); }
static inline F set1(float x) { F r; EACH r.v[i] = x; return r; }
static inline F operator+(F a, F b) { EACH a.v[i] += b.v[i]; return a; }
static inline F operator-(F a, F b) { EACH a.v[i] -= b.v[i]; return a; }
static inline F operator*(F a, F b) { EACH a.v[i] *= b.v[i]; return a; }
static inline F operator/(F a, F b) { EACH a.v[i] /= b.v[i]; return a; }
static inline F fma(F a, F b, F c) { EACH c.v[i] = fmaf(a.v[i], b.v[i], c.v[i]); return c; }  // rounds once, as elsewhere
static inline F max(F a, F b) { EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline F min(F a, F b) { EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline F abs(F a) { EACH a.v[i] = fabsf(a.v[i]); return a; }
static inline F round(F a) {
  // Adding and taking away 1.5 * 2^23 rounds to nearest even for |a| < 2^22; what is rounded here is far smaller.
  EACH { volatile float t = a.v[i] + 12582912.0f; a.v[i] = t - 12582912.0f; }
  return a;
}
static inline float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff, bits;
  if (rest >= 0x7c00) bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
  else if (rest >= 0x400) bits = sign | ((rest << 13) + (112u << 23));
  else { float tiny = (float)rest * 0x1p-24f; memcpy(&bits, &tiny, 4); bits |= sign; }
  float f; memcpy(&f, &bits, 4); return f;
}
static inline uint16_t float_to_half(float f) {
  uint32_t x; memcpy(&x, &f, 4);
  uint32_t sign = x >> 16 & 0x8000; x &= 0x7fffffff;
  if (x > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (x >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (x < 0x38800000) {  // subnormal: let the float unit round
    float g; memcpy(&g, &x, 4);
    return (uint16_t)(sign | (uint32_t)nearbyint((double)g * 0x1p24));
  }
  x += 0xfff + (x >> 13 & 1);
  return (uint16_t)(sign | (x - (112u << 23)) >> 13);
}
static inline F load_half(const uint16_t* p) { F r; EACH r.v[i] = half_to_float(p[i]); return r; }
static inline void store_half(uint16_t* p, F a) { EACH p[i] = float_to_half(a.v[i]); }
static inline F load_bfloat(const uint16_t* p) {
  F r;
  EACH { uint32_t b = (uint32_t)p[i] << 16; memcpy(&r.v[i], &b, 4); }
  return r;
}
static inline F exp2_whole(F n) {
  EACH { uint32_t b = (uint32_t)((int32_t)n.v[i] + 127) << 23; memcpy(&n.v[i], &b, 4); }
  return n;
}
static inline void store_bytes(int8_t* p, F a) { EACH p[i] = (int8_t)(int32_t)a.v[i]; }
static inline uint32_t at_least(F a, F b) { uint32_t m = 0; EACH m |= (uint32_t)(a.v[i] >= b.v[i]) << i; return m; }
#undef EACH

#endif

// The sum of all elements: i with i + 8, then + 4, then neighbours.
static inline float sum(F a) {
#if defined(__AVX512F__) || defined(__AVX2__)
  __m256 h = fold8(a);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_hadd_ps(q, q);
  q = _mm_hadd_ps(q, q);
  return _mm_cvtss_f32(q);
#elif defined(__aarch64__)
  return folded(a);
#else
  float q[4];
  for (int i = 0; i < 4; i++) q[i] = (a.v[i] + a.v[i + 8]) + (a.v[i + 4] + a.v[i + 12]);
  return (q[0] + q[1]) + (q[2] + q[3]);
#endif
}
// The greatest of the sixteen. With a NaN among them the result differs by machine; callers check for NaN themselves.
static inline float greatest(F a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(a.v);
#elif defined(__aarch64__)
  return greatest_of(a);
#endif
  float t[LANES]; store(t, a);
  float m = t[0];
  for (int i = 1; i < LANES; i++) m = t[i] > m ? t[i] : m;
  return m;
}
// The first n of sixteen floats, `fill` behind them.
static inline F load_some(const float* p, int n, float fill = 0.0f) {
  if (n >= LANES) return load(p);
  float t[LANES];
  for (int i = 0; i < LANES; i++) t[i] = i < n ? p[i] : fill;
  return load(t);
}
static inline void store_some(float* p, F a, int n) {
  if (n >= LANES) return store(p, a);
  float t[LANES]; store(t, a);
  memcpy(p, t, sizeof(float) * n);
}

// e^x to about one unit in the last place, for x clamped to [-87, 88]. The limits are the first arguments of max and min,
// because those return the second argument if one is NaN: NaN stays NaN.
static inline F exponential(F x) {
  x = max(set1(-87.0f), min(set1(88.0f), x));
  F n = round(x * set1(1.44269504f));
  F r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  F y = fma(p, r * r, r) + set1(1.0f);
  return y * exp2_whole(n);
}
