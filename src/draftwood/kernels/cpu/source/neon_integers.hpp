// Vectors of integers on 64-bit ARM. A register holds four sums, or four rows x 4 columns of weights.
//
// i8mm multiplies bytes without sign by bytes with sign, as the products need it. Before it there are only products of bytes
// with signs. Levels up to 63 are the same with a sign; wide ones are stored with 128 added, which turning the highest bit
// takes away again. Sums of whole numbers are exact, so all give the same.
#pragma once
#include <arm_neon.h>

#define EACH for (int i = 0; i < 4; i++)
struct I { int32x4_t v[4]; };
struct W { uint8x16_t v[4]; };
static inline I whole(int x) { const int32x4_t v = vdupq_n_s32(x); return {{v, v, v, v}}; }

#if defined(__ARM_FEATURE_MATMUL_INT8)
static inline int32x4_t dot4(int32x4_t acc, uint8x16_t w, int8x16_t x) { return vusdotq_s32(acc, w, x); }
#else
#define SIGNED_LEVELS 1
static inline W turned(W w) { EACH w.v[i] = veorq_u8(w.v[i], vdupq_n_u8(128)); return w; }
#if defined(__ARM_FEATURE_DOTPROD)
static inline int32x4_t dot4(int32x4_t acc, uint8x16_t w, int8x16_t x) {
  return vdotq_s32(acc, vreinterpretq_s8_u8(w), x);
}
#else
// Two rows at a time: products in 16 bits, then sums of neighbours, twice. 2 * 128 * 127 fits in 16 bits.
static inline int32x4_t dot4(int32x4_t acc, uint8x16_t w, int8x16_t x) {
  const int8x16_t s = vreinterpretq_s8_u8(w);
  const int16x8_t low = vmull_s8(vget_low_s8(s), vget_low_s8(x)), high = vmull_high_s8(s, x);
  return vpadalq_s16(acc, vpaddq_s16(low, high));
}
#endif
#endif

static inline I dot(I acc, const W& w, int x) {
  const int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(x));
  EACH acc.v[i] = dot4(acc.v[i], w.v[i], b);
  return acc;
}
static inline I join(I hi, I lo) { EACH hi.v[i] = vaddq_s32(vshlq_n_s32(hi.v[i], 7), lo.v[i]); return hi; }
template <int BY> static inline I shifted(I a) { EACH a.v[i] = vshlq_n_s32(a.v[i], BY); return a; }
static inline I operator*(I a, I b) { EACH a.v[i] = vmulq_s32(a.v[i], b.v[i]); return a; }
static inline I load_signed(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}};
}
static inline I both(I a, I b) { EACH a.v[i] = vaddq_s32(a.v[i], b.v[i]); return a; }
static inline F real(I a) { F r; EACH r.v[i] = vcvtq_f32_s32(a.v[i]); return r; }
static inline W load_w(const uint8_t* p) { W w; EACH w.v[i] = vld1q_u8(p + 16 * i); return w; }
static inline void store_w(uint8_t* p, const W& w) { EACH vst1q_u8(p + 16 * i, w.v[i]); }
static inline W low_nibble(W w) { EACH w.v[i] = vandq_u8(w.v[i], vdupq_n_u8(15)); return w; }
static inline W high_nibble(W w) { EACH w.v[i] = vshrq_n_u8(w.v[i], 4); return w; }
static inline W either(W a, const W& b) { EACH a.v[i] = vorrq_u8(a.v[i], b.v[i]); return a; }
template <int LEFT, int MASK> static inline W bits(W w) {
  EACH w.v[i] = vandq_u8(vshlq_u8(w.v[i], vdupq_n_s8(LEFT)), vdupq_n_u8(MASK));
  return w;
}
static inline W look_up(const uint8_t* table, W w) {
  const uint8x16_t t = vld1q_u8(table);
  EACH w.v[i] = vqtbl1q_u8(t, w.v[i]);
  return w;
}
#undef EACH
