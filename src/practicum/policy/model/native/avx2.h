// Sixteen lanes on processors with AVX2 and fused products: two registers of eight.
//
// There are no products of bfloat16 here, so its numbers are widened to float32 as they are read.
#pragma once
#include <immintrin.h>

struct i32x16 {
  __m256i half[2];
  int32_t operator[](int i) const { return ((__v8si)half[i / 8])[i % 8]; }
};
struct f32x16 {
  __m256 half[2];
  float operator[](int i) const { return half[i / 8][i % 8]; }
};

// The same of each half i.
#define BOTH(TYPE, ...) TYPE{{[&](int i) __attribute__((always_inline)) { return __VA_ARGS__; }(0), [&](int i) __attribute__((always_inline)) { return __VA_ARGS__; }(1)}}

static inline f32x16 splat(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
static inline i32x16 splat(int32_t x) { return {{_mm256_set1_epi32(x), _mm256_set1_epi32(x)}}; }
static inline f32x16 as_floats(i32x16 v) { return BOTH(f32x16, _mm256_castsi256_ps(v.half[i])); }
static inline i32x16 as_words(f32x16 v) { return BOTH(i32x16, _mm256_castps_si256(v.half[i])); }
static inline f32x16 load(const float* p) { return BOTH(f32x16, _mm256_loadu_ps(p + 8 * i)); }
static inline void store(float* p, f32x16 v) { for (int i = 0; i < 2; i++) _mm256_storeu_ps(p + 8 * i, v.half[i]); }
static inline void store_past_caches(float* p, f32x16 v) { for (int i = 0; i < 2; i++) _mm256_stream_ps(p + 8 * i, v.half[i]); }
static inline i32x16 load_words(const void* p) { return BOTH(i32x16, _mm256_loadu_si256((const __m256i*)p + i)); }
static inline void store_words(void* p, i32x16 v) { for (int i = 0; i < 2; i++) _mm256_storeu_si256((__m256i*)p + i, v.half[i]); }
static inline i32x16 load_u8(const uint8_t* p) { return BOTH(i32x16, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8 * i)))); }
static inline i32x16 load_u16(const void* p) { return BOTH(i32x16, _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p + i))); }
// The low halves of words: of both registers' words, put back into their order.
static inline void store_u16(void* p, i32x16 v) {
  const __m256i low = _mm256_set1_epi32(0xffff);
  const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(v.half[0], low), _mm256_and_si256(v.half[1], low));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
static inline void store_i8(void* p, i32x16 v) {  // limited to what fits
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.half[0], v.half[1]), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

static inline f32x16 operator+(f32x16 a, f32x16 b) { return BOTH(f32x16, _mm256_add_ps(a.half[i], b.half[i])); }
static inline f32x16 operator-(f32x16 a, f32x16 b) { return BOTH(f32x16, _mm256_sub_ps(a.half[i], b.half[i])); }
static inline f32x16 operator*(f32x16 a, f32x16 b) { return BOTH(f32x16, _mm256_mul_ps(a.half[i], b.half[i])); }
static inline f32x16 operator/(f32x16 a, f32x16 b) { return BOTH(f32x16, _mm256_div_ps(a.half[i], b.half[i])); }
static inline f32x16 operator-(f32x16 a) { return BOTH(f32x16, _mm256_xor_ps(a.half[i], _mm256_set1_ps(-0.f))); }
static inline f32x16 operator+(f32x16 a, float b) { return a + splat(b); }
static inline f32x16 operator+(float a, f32x16 b) { return splat(a) + b; }
static inline f32x16 operator-(f32x16 a, float b) { return a - splat(b); }
static inline f32x16 operator*(f32x16 a, float b) { return a * splat(b); }
static inline f32x16 operator*(float a, f32x16 b) { return splat(a) * b; }
static inline f32x16 operator/(f32x16 a, float b) { return a / splat(b); }
// a * b + c, rounded once; the compiler contracts nothing by itself.
static inline f32x16 muladd(f32x16 a, f32x16 b, f32x16 c) { return BOTH(f32x16, _mm256_fmadd_ps(a.half[i], b.half[i], c.half[i])); }
static inline f32x16 maximum(f32x16 a, f32x16 b) { return BOTH(f32x16, _mm256_max_ps(a.half[i], b.half[i])); }
static inline f32x16 minimum(f32x16 a, f32x16 b) { return BOTH(f32x16, _mm256_min_ps(a.half[i], b.half[i])); }
static inline f32x16& operator+=(f32x16& a, f32x16 b) { return a = a + b; }
static inline i32x16 operator<=(f32x16 a, float b) { return BOTH(i32x16, _mm256_castps_si256(_mm256_cmp_ps(a.half[i], _mm256_set1_ps(b), _CMP_LE_OQ))); }

static inline i32x16 operator+(i32x16 a, int32_t b) { return BOTH(i32x16, _mm256_add_epi32(a.half[i], _mm256_set1_epi32(b))); }
static inline i32x16 operator&(i32x16 a, i32x16 b) { return BOTH(i32x16, _mm256_and_si256(a.half[i], b.half[i])); }
static inline i32x16 operator|(i32x16 a, i32x16 b) { return BOTH(i32x16, _mm256_or_si256(a.half[i], b.half[i])); }
static inline i32x16 operator~(i32x16 a) { return BOTH(i32x16, _mm256_xor_si256(a.half[i], _mm256_set1_epi32(-1))); }
static inline i32x16 operator&(i32x16 a, int32_t b) { return a & splat(b); }
static inline i32x16 operator<<(i32x16 a, int b) { return BOTH(i32x16, _mm256_slli_epi32(a.half[i], b)); }
static inline i32x16 operator>>(i32x16 a, int b) { return BOTH(i32x16, _mm256_srli_epi32(a.half[i], b)); }
static inline i32x16 operator>(i32x16 a, int32_t b) { return BOTH(i32x16, _mm256_cmpgt_epi32(a.half[i], _mm256_set1_epi32(b))); }
static inline i32x16 operator<(i32x16 a, int32_t b) { return BOTH(i32x16, _mm256_cmpgt_epi32(_mm256_set1_epi32(b), a.half[i])); }
static inline i32x16 operator<=(i32x16 a, int32_t b) { return ~(a > b); }

static inline i32x16 maximum(i32x16 a, i32x16 b) { return BOTH(i32x16, _mm256_max_epi32(a.half[i], b.half[i])); }
static inline float largest(f32x16 v) {
  __m256 a = _mm256_max_ps(v.half[0], v.half[1]);
  a = _mm256_max_ps(a, _mm256_permute2f128_ps(a, a, 1));
  a = _mm256_max_ps(a, _mm256_permute_ps(a, 0x4e));
  return _mm256_cvtss_f32(_mm256_max_ps(a, _mm256_permute_ps(a, 0xb1)));
}
static inline float lowest(f32x16 v) { return -largest(-v); }
static inline int32_t largest(i32x16 v) {
  int32_t most = v[0];
  for (int i = 1; i < 16; i++) most = v[i] > most ? v[i] : most;
  return most;
}

static inline f32x16 nearest(f32x16 v) { return BOTH(f32x16, _mm256_round_ps(v.half[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }  // whole, ties to even
static inline i32x16 whole(f32x16 v) { return BOTH(i32x16, _mm256_cvtps_epi32(v.half[i])); }  // rounded so
static inline f32x16 floats(i32x16 v) { return BOTH(f32x16, _mm256_cvtepi32_ps(v.half[i])); }

// Words whose upper halves are the numbers rounded to bfloat16: to nearest, ties to even. (A NaN stays a NaN.)
static inline i32x16 rounded(f32x16 v) {
  auto one = [](__m256 x) __attribute__((always_inline)) {
    const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256 nan = _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(up), nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  };
  return {{one(v.half[0]), one(v.half[1])}};
}
static inline void store_bf16(bf16* p, f32x16 v) { store_u16(p, rounded(v) >> 16); }
// Pairs of bfloat16 whose first numbers are `even`, rounded, and whose second are `odd`.
static inline i32x16 pair_up(f32x16 even, f32x16 odd) { return (rounded(even) >> 16) | (rounded(odd) & (int32_t)0xffff0000); }

// acc + a.even * b.even + a.odd * b.odd over 16 pairs of bfloat16.
static inline f32x16 dot_pairs(f32x16 acc, i32x16 a, i32x16 b) {
  acc = muladd(as_floats(a << 16), as_floats(b << 16), acc);
  return muladd(as_floats(a & (int32_t)0xffff0000), as_floats(b & (int32_t)0xffff0000), acc);
}

// The value of lane i ^ STRIDE.
template <int STRIDE> static inline f32x16 opposite(f32x16 v) {
  if constexpr (STRIDE == 1) return BOTH(f32x16, _mm256_permute_ps(v.half[i], 0xb1));
  if constexpr (STRIDE == 2) return BOTH(f32x16, _mm256_permute_ps(v.half[i], 0x4e));
  if constexpr (STRIDE == 4) return BOTH(f32x16, _mm256_permute2f128_ps(v.half[i], v.half[i], 1));
  return {{v.half[1], v.half[0]}};
}
#undef BOTH
