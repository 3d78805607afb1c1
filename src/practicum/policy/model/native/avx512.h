// Sixteen lanes on processors with AVX-512 and its bfloat16 products: one register.
#pragma once
#include <immintrin.h>

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

static inline f32x16 splat(float x) { return f32x16{} + x; }
static inline i32x16 splat(int32_t x) { return i32x16{} + x; }
static inline f32x16 as_floats(i32x16 v) { return (f32x16)v; }
static inline i32x16 as_words(f32x16 v) { return (i32x16)v; }
static inline f32x16 load(const float* p) { f32x16 v; memcpy(&v, p, 64); return v; }
static inline void store(float* p, f32x16 v) { memcpy(p, &v, 64); }
static inline void store_past_caches(float* p, f32x16 v) { _mm512_stream_ps(p, (__m512)v); }
static inline i32x16 load_words(const void* p) { i32x16 v; memcpy(&v, p, 64); return v; }
static inline void store_words(void* p, i32x16 v) { memcpy(p, &v, 64); }
static inline i32x16 load_u8(const uint8_t* p) { return (i32x16)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
static inline i32x16 load_u16(const void* p) { return (i32x16)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)); }
static inline void store_u16(void* p, i32x16 v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)v)); }
static inline void store_i8(void* p, i32x16 v) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8((__m512i)v)); }  // limited to what fits

// a * b + c, rounded once; the compiler contracts nothing by itself.
static inline f32x16 muladd(f32x16 a, f32x16 b, f32x16 c) { return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
static inline f32x16 maximum(f32x16 a, f32x16 b) { return (f32x16)_mm512_max_ps((__m512)a, (__m512)b); }
static inline f32x16 minimum(f32x16 a, f32x16 b) { return (f32x16)_mm512_min_ps((__m512)a, (__m512)b); }
static inline i32x16 maximum(i32x16 a, i32x16 b) { return (i32x16)_mm512_max_epi32((__m512i)a, (__m512i)b); }
static inline float largest(f32x16 v) { return _mm512_reduce_max_ps((__m512)v); }
static inline float lowest(f32x16 v) { return _mm512_reduce_min_ps((__m512)v); }
static inline int32_t largest(i32x16 v) { return _mm512_reduce_max_epi32((__m512i)v); }

static inline f32x16 nearest(f32x16 v) { return (f32x16)_mm512_roundscale_ps((__m512)v, 8); }  // whole, ties to even
static inline i32x16 whole(f32x16 v) { return (i32x16)_mm512_cvtps_epi32((__m512)v); }          // rounded so
static inline f32x16 floats(i32x16 v) { return __builtin_convertvector(v, f32x16); }

// Rounded to bfloat16: to nearest, ties to even. (A NaN stays a NaN.)
static inline void store_bf16(bf16* p, f32x16 v) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh((__m512)v)); }
// Pairs of bfloat16 whose first numbers are `even`, rounded, and whose second are `odd`.
static inline i32x16 pair_up(f32x16 even, f32x16 odd) {
  alignas(64) static const uint16_t WEAVE[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (i32x16)_mm512_permutexvar_epi16(_mm512_load_si512(WEAVE), (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
}

// acc + a.even * b.even + a.odd * b.odd over 16 pairs of bfloat16.
static inline f32x16 dot_pairs(f32x16 acc, i32x16 a, i32x16 b) { return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b); }
static inline f32x16 dot_pairs(f32x16 acc, i32x16 a, uint32_t b) { return dot_pairs(acc, a, splat((int32_t)b)); }

// The value of lane i ^ STRIDE.
template <int STRIDE> static inline f32x16 opposite(f32x16 v) {
  if constexpr (STRIDE == 1) return (f32x16)_mm512_permute_ps((__m512)v, 0xb1);
  if constexpr (STRIDE == 2) return (f32x16)_mm512_permute_ps((__m512)v, 0x4e);
  if constexpr (STRIDE == 4) return (f32x16)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0xb1);
  return (f32x16)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0x4e);
}

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
