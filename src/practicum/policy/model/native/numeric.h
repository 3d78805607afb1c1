// Sixteen floats at a time, on processors with AVX-512 and its bfloat16 products.
//
// All kernels are built from these few functions, and none of them depends on what other rows stand
// in a batch.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

using bf16 = uint16_t;
typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

static inline f32x16 splat(float x) { return f32x16{} + x; }
// a * b + c, rounded once; the compiler contracts nothing by itself.
static inline f32x16 muladd(f32x16 a, f32x16 b, f32x16 c) {
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
static inline f32x16 load(const float* p) { f32x16 v; memcpy(&v, p, 64); return v; }
static inline void store(float* p, f32x16 v) { memcpy(p, &v, 64); }
static inline u32x16 load_pairs(const bf16* p) { u32x16 v; memcpy(&v, p, 64); return v; }

static inline f32x16 widen(u16x16 v) { return (f32x16)(__builtin_convertvector(v, u32x16) << 16); }
static inline f32x16 load_bf16(const bf16* p) { u16x16 v; memcpy(&v, p, 32); return widen(v); }
static inline float widen(bf16 x) { uint32_t u = (uint32_t)x << 16; float f; memcpy(&f, &u, 4); return f; }

// Round to nearest, ties to even. (A NaN stays a NaN.)
static inline u16x16 narrow(f32x16 v) {
  return (u16x16)_mm512_cvtneps_pbh((__m512)v);
}
static inline void store_bf16(bf16* p, f32x16 v) { u16x16 u = narrow(v); memcpy(p, &u, 32); }
static inline bf16 narrow(float x) {
  uint32_t u; memcpy(&u, &x, 4);
  if (x != x) return 0x7fc0;
  return (bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// acc + a.even * b.even + a.odd * b.odd over 16 pairs of bfloat16; b is one pair for all lanes.
static inline f32x16 dot_pairs(f32x16 acc, u32x16 a, uint32_t b) {
  return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)_mm512_set1_epi32((int)b));
}

// The same over quads of int8, in whole numbers: a is unsigned, b is one quad for all lanes.
static inline f32x16 dot_quads(f32x16 acc, u32x16 a, uint32_t b) {
  return (f32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, _mm512_set1_epi32((int)b));
}

static inline f32x16 maximum(f32x16 a, f32x16 b) {
  return (f32x16)_mm512_max_ps((__m512)a, (__m512)b);
}

static inline f32x16 minimum(f32x16 a, f32x16 b) {
  return (f32x16)_mm512_min_ps((__m512)a, (__m512)b);
}

static inline float sum(f32x16 v) {  // always in this order
  float s8[8], s4[4];
  for (int i = 0; i < 8; i++) s8[i] = v[i] + v[i + 8];
  for (int i = 0; i < 4; i++) s4[i] = s8[i] + s8[i + 4];
  return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}
static inline float largest(f32x16 v) {
  return _mm512_reduce_max_ps((__m512)v);
}

// e^x to about 1 ulp, at most e^88; 0 below -87.3, also for minus infinity. (Cephes' polynomial.)
static inline f32x16 exponential(f32x16 x) {
  const float LOG2E = 1.44269504088896341f, HIGH = 0.693359375f, LOW = -2.12194440e-4f;
  i32x16 alive = ~(x <= -87.3f);
  x = minimum(splat(88.f), maximum(splat(-87.3f), x));  // in this order a NaN stays one
  f32x16 n = (f32x16)_mm512_roundscale_ps((__m512)(x * LOG2E), 8);
  x = muladd(n, splat(-HIGH), x);
  x = muladd(n, splat(-LOW), x);
  f32x16 y = splat(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) y = muladd(y, x, splat(c));
  y = muladd(y, x * x, x + 1.f);
  i32x16 scale = (__builtin_convertvector(n, i32x16) + 127) << 23;
  return (f32x16)((i32x16)(y * (f32x16)scale) & alive);
}
static inline float exponential(float x) { return exponential(splat(x))[0]; }

// Transpose 16 x 16 words of 32 bits.
static inline void transpose(const void* in, int64_t in_stride, void* out, int64_t out_stride) {
  const char* from = (const char*)in; char* to = (char*)out;
  __m512i r[16], t[16];
  for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from + i * in_stride);
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
  for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + i * out_stride, r[i]);
}
