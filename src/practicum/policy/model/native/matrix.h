// Weights of one matrix as a product reads them: bfloat16 in place, or quantised copies.
//
// int8: one scale per row, and the tokens are int8 too (round.h). int4: 16 levels for every 64 weights of a
// row, looked up as bfloat16 when a group of rows is multiplied; the tokens stay bfloat16.
#pragma once
#include <algorithm>
#include "numeric.h"

constexpr int64_t LANES = 16;  // tokens of a packed block, and rows of a weight tile
constexpr int64_t STEP = 64;   // bytes of a row that one step multiplies: 32 bfloat16 or 64 int8
constexpr int64_t SHARERS = 64;  // weights of an int4 row that share their levels

#ifdef __AVX512BF16__
constexpr int64_t WIDER = 1;  // tokens are packed as they are,
#else
constexpr int64_t WIDER = 2;  // or at twice the width
#endif

enum Kind { BF16, INT8, INT4 };

struct Matrix {
  Kind kind;
  const char* data;
  const void* scales;  // INT8: float [rows]; INT4: bfloat16 [rows][K / 64][lowest level, distance]
  int64_t rows, K, stride;  // stride in bytes

  Matrix(int kind_, const void* data_, const void* scales_, int64_t rows_, int64_t K_)
      : kind((Kind)kind_), data((const char*)data_), scales(scales_), rows(rows_), K(K_),
        stride(kind_ == BF16 ? 2 * K : kind_ == INT8 ? width_of_int8(K) : K / 2) {}
  static int64_t width_of_int8(int64_t K) { return (K + STEP - 1) / STEP * STEP; }
  const char* row(int64_t n) const { return data + n * stride; }

  // Rows n .. n + 15 as products read them, `width` bytes apart: in place, or made in `room`, where
  // rows past the end are whatever was there.
  const char* sixteen(int64_t n, int64_t width, char* room) const {
    if (kind != INT4 && n + LANES <= rows) return row(n);
    for (int64_t i = 0; i < std::min(LANES, rows - n); i++) {
      if (kind == INT4) decode(n + i, (bf16*)(room + i * width));
      else memcpy(room + i * width, row(n + i), width);
    }
    return room;
  }

  // Sums of int8 products of rows n .. n + 15, in units of their tokens' scales.
  f32x16 scaled(f32x16 sums, int64_t n) const {
    const f32x16 values = floats(as_words(sums));
    const int64_t there = rows - n;
    if (there >= LANES) return values * load((const float*)scales + n);
    float units[LANES] = {};
    if (there > 0) memcpy(units, (const float*)scales + n, 4 * there);
    return values * load(units);
  }

 private:
  void decode(int64_t n, bf16* to) const {
    const bf16* grid = (const bf16*)scales + n * (K / SHARERS) * 2;
    const uint8_t* codes = (const uint8_t*)row(n);
    for (int64_t k = 0; k < K; k += SHARERS, grid += 2, codes += SHARERS / 2, to += SHARERS) {
      const f32x16 lowest_level = splat(widen(grid[0])), distance = splat(widen(grid[1]));
#ifdef __AVX512BF16__
      const f32x16 count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      const __m512i table = _mm512_castsi256_si512((__m256i)_mm512_cvtneps_pbh((__m512)(distance * count + lowest_level)));
      const __m512i pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)codes));
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_and_si512(pairs, _mm512_set1_epi16(15)), table));
      _mm512_storeu_si512(to + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(pairs, 4), table));
#else
      for (int i = 0; i < 2; i++) {
        const i32x16 both = load_u8(codes + 16 * i);
        store_bf16(to + 16 * i, distance * floats(both & 15) + lowest_level);
        store_bf16(to + 32 + 16 * i, distance * floats(both >> 4) + lowest_level);
      }
#endif
    }
  }
};

// One row of bfloat16 as numbers of 16 evenly spaced levels for every 64 weights, of which the first
// 32 are the low halves of bytes. grid [K / 64][lowest level, distance].
static inline void quantise_groups(const bf16* x, int64_t K, uint8_t* codes, bf16* grid) {
  for (int64_t k = 0; k < K; k += SHARERS, grid += 2) {
    f32x16 part[4];
    for (int i = 0; i < 4; i++) part[i] = load_bf16(x + k + 16 * i);
    const float low = -largest(-minimum(minimum(part[0], part[1]), minimum(part[2], part[3])));
    const float high = largest(maximum(maximum(part[0], part[1]), maximum(part[2], part[3])));
    grid[0] = narrow(low);
    grid[1] = narrow((high - low) / 15.f);
    const float distance = widen(grid[1]), factor = distance == 0.f ? 0.f : 1.f / distance;
    i32x16 code[4];
    for (int i = 0; i < 4; i++) code[i] = whole(minimum(splat(15.f), maximum(splat(0.f), (part[i] - widen(grid[0])) * factor)));
    for (int i = 0; i < 2; i++, codes += 16) {
      alignas(64) int32_t both[16];
      store_words(both, code[i] | code[i + 2] << 4);
      for (int j = 0; j < 16; j++) codes[j] = (uint8_t)both[j];
    }
  }
}
