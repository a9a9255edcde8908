// Vectors of sixteen floats on 64-bit ARM, four registers each. Every ARMv8 processor has what is used here. Conversions to
// and from halves, whole numbers and fused products round as elsewhere, so results have the same bits as on x86.
#pragma once
#include <arm_neon.h>

#define EACH for (int i = 0; i < 4; i++)
struct F { float32x4_t v[4]; };
static inline F load(const float* p) { F r; EACH r.v[i] = vld1q_f32(p + 4 * i); return r; }
static inline void store(float* p, F a) { EACH vst1q_f32(p + 4 * i, a.v[i]); }
static inline F set1(float x) { const float32x4_t v = vdupq_n_f32(x); return {{v, v, v, v}}; }
static inline F operator+(F a, F b) { EACH a.v[i] = vaddq_f32(a.v[i], b.v[i]); return a; }
static inline F operator-(F a, F b) { EACH a.v[i] = vsubq_f32(a.v[i], b.v[i]); return a; }
static inline F operator*(F a, F b) { EACH a.v[i] = vmulq_f32(a.v[i], b.v[i]); return a; }
static inline F operator/(F a, F b) { EACH a.v[i] = vdivq_f32(a.v[i], b.v[i]); return a; }
static inline F fma(F a, F b, F c) { EACH c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]); return c; }
// The second number if one is NaN, as on x86; vmaxq_f32 and vminq_f32 would return NaN.
static inline F max(F a, F b) { EACH a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); return a; }
static inline F min(F a, F b) { EACH a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); return a; }
static inline F abs(F a) { EACH a.v[i] = vabsq_f32(a.v[i]); return a; }
static inline F round(F a) { EACH a.v[i] = vrndnq_f32(a.v[i]); return a; }
static inline F load_half(const uint16_t* p) {
  F r;
  EACH r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
static inline void store_half(uint16_t* p, F a) { EACH vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i]))); }
static inline F load_bfloat(const uint16_t* p) {
  F r;
  EACH r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
// 2^n for whole n in [-126, 127]
static inline F exp2_whole(F n) {
  EACH n.v[i] = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23));
  return n;
}
static inline void store_bytes(int8_t* p, F a) {
  const int16x8_t low = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.v[0])), vmovn_s32(vcvtnq_s32_f32(a.v[1])));
  const int16x8_t high = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.v[2])), vmovn_s32(vcvtnq_s32_f32(a.v[3])));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
static inline uint32_t at_least(F a, F b) {
  const uint32_t places[4] = {1, 2, 4, 8};
  const uint32x4_t bit = vld1q_u32(places);
  uint32_t m = 0;
  EACH m |= vaddvq_u32(vandq_u32(vcgeq_f32(a.v[i], b.v[i]), bit)) << 4 * i;
  return m;
}
#undef EACH

// As `sum` says: i with i + 8, then + 4, then neighbours.
static inline float folded(F a) {
  float32x4_t q = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  q = vpaddq_f32(q, q);
  return vgetq_lane_f32(vpaddq_f32(q, q), 0);
}
static inline float greatest_of(F a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
