// Products of 32 weight rows with up to 32 tokens, by the vector units.
#pragma once

struct Tiles {  // there are none
  static bool allow() { return true; }
  ~Tiles() {}
};

// acc + products of quads of int8, in whole numbers: a is unsigned, b is one quad for all lanes.
static inline f32x16 dot_quads(f32x16 acc, i32x16 a, uint32_t b) {
  return (f32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, _mm512_set1_epi32((int)b));
}

// int8 tokens are lifted to unsigned by 128 as the instruction asks; `lifted` is what that adds.
static inline int32_t lifted(const char* w, int64_t width) {
  __m512i sums = _mm512_setzero_si512();
  for (int64_t k = 0; k < width; k += STEP) sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(-128), _mm512_loadu_si512(w + k));
  return _mm512_reduce_add_epi32(sums);
}

template <bool INT8, int ROWS, int BLOCKS> static inline void few_rows(const char* w, int64_t width, const char* const* x, float* c) {
  f32x16 acc[ROWS][BLOCKS] = {};
  if (INT8) for (int r = 0; r < ROWS; r++) for (int b = 0; b < BLOCKS; b++) acc[r][b] = (f32x16)(i32x16{} - lifted(w + r * width, width));
  for (int64_t k = 0; k < width; k += 4) {
    i32x16 tokens[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) { memcpy(&tokens[b], x[b] + k * LANES, 64); if (INT8) tokens[b] ^= (int32_t)0x80808080; }
    for (int r = 0; r < ROWS; r++) {
      uint32_t few; memcpy(&few, w + r * width + k, 4);
      for (int b = 0; b < BLOCKS; b++) acc[r][b] = INT8 ? dot_quads(acc[r][b], tokens[b], few) : dot_pairs(acc[r][b], tokens[b], few);
    }
  }
  for (int r = 0; r < ROWS; r++) for (int b = 0; b < BLOCKS; b++) store(c + (b * LANES + r) * LANES, acc[r][b]);
}

template <bool INT8, int BLOCKS, class Out>
static inline void product(const char* const* w, int64_t width, const char* const* x, int64_t, Ahead&, Out& out) {
  out.finish();
  for (int half = 0; half < 2; half++)
    for (int r = 0; r < LANES; r += 8)
      few_rows<INT8, 8, BLOCKS>(w[half] + r * width, width, x, out.place() + half * BLOCKS * 256 + r * LANES);
}
