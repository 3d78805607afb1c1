// Sixteen numbers at a time. `avx512.h` and `avx2.h` hold what depends on the processor, under the same names.
//
// All kernels are built from these few functions, and none of them depends on what other rows stand
// in a batch.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

using bf16 = uint16_t;
#ifdef __AVX512BF16__
#include "avx512.h"
#else
#include "avx2.h"
#endif

static inline f32x16 even(i32x16 pairs) { return as_floats(pairs << 16); }
static inline f32x16 odd(i32x16 pairs) { return as_floats(pairs & (int32_t)0xffff0000); }
static inline f32x16 load_bf16(const bf16* p) { return as_floats(load_u16(p) << 16); }
static inline float widen(bf16 x) { uint32_t u = (uint32_t)x << 16; float f; memcpy(&f, &u, 4); return f; }
static inline bf16 narrow(float x) {
  uint32_t u; memcpy(&u, &x, 4);
  if (x != x) return 0x7fc0;
  return (bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float sum(f32x16 v) {  // always in this order
  float s8[8], s4[4];
  for (int i = 0; i < 8; i++) s8[i] = v[i] + v[i + 8];
  for (int i = 0; i < 4; i++) s4[i] = s8[i] + s8[i + 4];
  return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}

static inline f32x16 squash(f32x16 v, float cap) {  // smoothly into (-cap, cap)
  float x[16];
  store(x, v);
  for (float& one : x) one = std::tanh(one / cap) * cap;
  return load(x);
}

// e^x to about 1 ulp, at most e^88; 0 below -87.3, also for minus infinity. (Cephes' polynomial.)
static inline f32x16 exponential(f32x16 x) {
  const float LOG2E = 1.44269504088896341f, HIGH = 0.693359375f, LOW = -2.12194440e-4f;
  const i32x16 alive = ~(x <= -87.3f);
  x = minimum(splat(88.f), maximum(splat(-87.3f), x));  // in this order a NaN stays one
  const f32x16 n = nearest(x * LOG2E);
  x = muladd(n, splat(-HIGH), x);
  x = muladd(n, splat(-LOW), x);
  f32x16 y = splat(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) y = muladd(y, x, splat(c));
  y = muladd(y, x * x, x + 1.f);
  return as_floats(as_words(y * as_floats((whole(n) + 127) << 23)) & alive);
}
static inline float exponential(float x) { return exponential(splat(x))[0]; }
