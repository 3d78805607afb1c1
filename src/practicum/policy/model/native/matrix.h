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

constexpr f32x16 COUNT = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

enum Kind { BF16, INT8, INT4 };

struct Matrix {
  Kind kind;
  const char* data;
  const void* scales;  // INT8: float [rows]; INT4: bfloat16 [rows][K / 64][lowest level, distance]
  int64_t rows, stride;  // stride in bytes

  Matrix(int kind_, const void* data_, const void* scales_, int64_t rows_, int64_t K)
      : kind((Kind)kind_), data((const char*)data_), scales(scales_), rows(rows_),
        stride(kind_ == BF16 ? 2 * K : kind_ == INT8 ? width_of_int8(K) : K / 2) {}
  static int64_t width_of_int8(int64_t K) { return (K + STEP - 1) / STEP * STEP; }
  const char* row(int64_t n) const { return data + n * stride; }

  // Rows n .. n + 15 as products read them, `width` bytes apart: in place, or made in `room`, where
  // rows past the end are whatever was there.
  const char* sixteen(int64_t n, int64_t width, char* room) const {
    if (kind != INT4 && n + LANES <= rows) return row(n);
    for (int64_t i = 0; i < std::min(LANES, rows - n); i++) {
      if (kind == INT4) decode(n + i, width / 2, (bf16*)(room + i * width));
      else memcpy(room + i * width, row(n + i), width);
    }
    return room;
  }

  // Sums of int8 products of rows n .. n + 15, in units of their tokens' scales.
  f32x16 scaled(f32x16 sums, int64_t n) const {
    const f32x16 values = __builtin_convertvector((i32x16)sums, f32x16);
    const int64_t there = rows - n;
    if (there >= LANES) return values * load((const float*)scales + n);
    f32x16 units = {};
    if (there > 0) memcpy(&units, (const float*)scales + n, 4 * there);
    return values * units;
  }

 private:
  void decode(int64_t n, int64_t K, bf16* out) const {
    const bf16* grid = (const bf16*)scales + n * (K / SHARERS) * 2;
    const uint8_t* codes = (const uint8_t*)row(n);
    const __m512i low_bits = _mm512_set1_epi16(15);
    for (int64_t k = 0; k < K; k += SHARERS, grid += 2, codes += SHARERS / 2, out += SHARERS) {
      const f32x16 levels = splat(widen(grid[1])) * COUNT + widen(grid[0]);
      const __m512i table = _mm512_castsi256_si512((__m256i)narrow(levels));
      const __m512i pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)codes));
      _mm512_storeu_si512(out, _mm512_permutexvar_epi16(_mm512_and_si512(pairs, low_bits), table));
      _mm512_storeu_si512(out + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(pairs, 4), table));
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
    __m128i code[4];
    for (int i = 0; i < 4; i++) {
      const f32x16 place = minimum(splat(15.f), maximum(splat(0.f), (part[i] - widen(grid[0])) * factor));
      code[i] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)place));
    }
    for (int i = 0; i < 2; i++, codes += 16)
      _mm_storeu_si128((__m128i*)codes, _mm_or_si128(code[i], _mm_slli_epi16(code[i + 2], 4)));
  }
}
