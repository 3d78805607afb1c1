// Pages of keys and values in 8 or 4 bits: keys per channel over the page's 32 tokens, values per
// token over its channels (KIVI, 2402.02750).
//
// A code q stands for low + q * step, rounded to bfloat16. Both are bfloat16 and the step is rounded
// up, so every code is within half a step of what it stands for. What is read is a page of bfloat16
// again: attention knows nothing of codes.
//
// A head of a page, in bytes: codes of keys, their lows and steps [C], codes of values, theirs [32].
#pragma once
#include <algorithm>
#include "numeric.h"

constexpr int64_t PAGE = 32;

struct CodedHead {  // where the parts of one coded head of a page are
  int64_t bits, C;
  int64_t codes() const { return PAGE * C * bits / 8; }
  int64_t key_scales() const { return codes(); }
  int64_t value_codes() const { return codes() + 4 * C; }
  int64_t value_scales() const { return 2 * codes() + 4 * C; }
  int64_t bytes() const { return 2 * codes() + 4 * C + 4 * PAGE; }
};

struct Scale { float low, step; };

static inline Scale scale_of(f32x16 low, f32x16 high, float levels) {
  const float bottom = lowest(low), range = (largest(high) - bottom) / levels;
  uint32_t u; memcpy(&u, &range, 4);
  u = (u + 0xffffu) & 0xffff0000u;  // up to the next bfloat16
  Scale s{bottom, 0.f}; memcpy(&s.step, &u, 4);
  return s;
}
static inline i32x16 encode(f32x16 x, Scale s, float levels) {
  if (!(s.step > 0.f)) return splat(0);
  return whole(minimum(maximum((x - s.low) / s.step, splat(0.f)), splat(levels)));
}

// A group is `count` vectors of 16 pairs, `stride` apart: all first elements of the pairs share one
// scale and all second ones another. Of keys it is two channels, of values two tokens.
static inline uint8_t* encode_group(const bf16* from, int64_t stride, int64_t count, int64_t bits, uint8_t* codes, bf16* lows, bf16* steps) {
  f32x16 low[2] = {splat(INFINITY), splat(INFINITY)}, high[2] = {splat(-INFINITY), splat(-INFINITY)};
  for (int64_t i = 0; i < count; i++) {
    const i32x16 w = load_words(from + i * stride);
    low[0] = minimum(low[0], even(w)); high[0] = maximum(high[0], even(w));
    low[1] = minimum(low[1], odd(w)); high[1] = maximum(high[1], odd(w));
  }
  const float levels = (float)((1 << bits) - 1);
  const Scale first = scale_of(low[0], high[0], levels), second = scale_of(low[1], high[1], levels);
  lows[0] = narrow(first.low); lows[1] = narrow(second.low);
  steps[0] = narrow(first.step); steps[1] = narrow(second.step);
  for (int64_t i = 0; i < count; i += bits == 4 ? 2 : 1, codes += 32) {
    i32x16 q = splat(0);
    for (int64_t part = 0; part < (bits == 4 ? 2 : 1); part++) {
      const i32x16 w = load_words(from + (i + part) * stride);
      q = q | (encode(even(w), first, levels) | encode(odd(w), second, levels) << 8) << (int)(4 * part);
    }
    store_u16(codes, q);
  }
  return codes;
}

template <int BITS> static inline __attribute__((always_inline)) const uint8_t* decode_group(const uint8_t* codes, const bf16* lows, const bf16* steps, int64_t count, bf16* to, int64_t stride) {
  const f32x16 low[2] = {splat(widen(lows[0])), splat(widen(lows[1]))}, step[2] = {splat(widen(steps[0])), splat(widen(steps[1]))};
#ifdef __AVX512BF16__
  if constexpr (BITS == 4) {  // look all codes up in a table of what they stand for
    const f32x16 all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const __m512i table = (__m512i)_mm512_cvtne2ps_pbh((__m512)muladd(all, step[1], low[1]), (__m512)muladd(all, step[0], low[0]));
    const __m512i second = _mm512_set1_epi32(16 << 16), four = _mm512_set1_epi16(15);
    for (int64_t i = 0; i < count; i += 2, codes += 32) {
      const __m512i q = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)codes));
      _mm512_storeu_si512(to + i * stride, _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_and_si512(q, four), second), table));
      _mm512_storeu_si512(to + (i + 1) * stride, _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_srli_epi16(q, 4), second), table));
    }
    return codes;
  }
#endif
  auto meaning = [&](i32x16 first, i32x16 second) {
    return pair_up(muladd(floats(first), step[0], low[0]), muladd(floats(second), step[1], low[1]));
  };
  for (int64_t i = 0; i < count; i += 8 / BITS, codes += 32) {
    const i32x16 q = load_u16(codes);
    if constexpr (BITS == 8) store_words(to + i * stride, meaning(q & 255, q >> 8));
    else {
      store_words(to + i * stride, meaning(q & 15, (q >> 8) & 15));
      store_words(to + (i + 1) * stride, meaning((q >> 4) & 15, q >> 12));
    }
  }
  return codes;
}

// One head of a page: keys [2][C/2][16][2], values [16][C][2].
static inline void encode_page(const CodedHead& head, const bf16* keys, const bf16* values, uint8_t* to) {
  const int64_t C = head.C;
  uint8_t* codes = to;
  bf16 *lows = (bf16*)(to + head.key_scales()), *steps = lows + C;
  for (int64_t c = 0; c < C; c += 2) codes = encode_group(keys + c * 16, 16 * C, 2, head.bits, codes, lows + c, steps + c);
  codes = to + head.value_codes();
  lows = (bf16*)(to + head.value_scales()), steps = lows + PAGE;
  for (int64_t t = 0; t < PAGE; t += 2) codes = encode_group(values + t * C, 32, C / 16, head.bits, codes, lows + t, steps + t);
}
template <int BITS> static inline void decode_page(int64_t C, const uint8_t* from, bf16* keys, bf16* values) {
  const CodedHead head{BITS, C};
  const uint8_t* codes = from;
  const bf16 *lows = (const bf16*)(from + head.key_scales()), *steps = lows + C;
  for (int64_t c = 0; c < C; c += 2) codes = decode_group<BITS>(codes, lows + c, steps + c, 2, keys + c * 16, 16 * C);
  codes = from + head.value_codes();
  lows = (const bf16*)(from + head.value_scales()), steps = lows + PAGE;
  for (int64_t t = 0; t < PAGE; t += 2) codes = decode_group<BITS>(codes, lows + t, steps + t, C / 16, values + t * C, 32);
}
static inline void decode_page(const CodedHead& head, const uint8_t* from, bf16* keys, bf16* values) {
  if (head.bits == 4) decode_page<4>(head.C, from, keys, values); else decode_page<8>(head.C, from, keys, values);
}

// Lowest and highest key of every channel of a page, as [low, high] of each.
static inline void bound_page(const bf16* keys, int64_t C, bf16* to) {
  for (int64_t c = 0; c < C; c += 2) {
    const i32x16 a = load_words(keys + c * 16), b = load_words(keys + 16 * C + c * 16);
    to[2 * c] = narrow(lowest(minimum(even(a), even(b))));
    to[2 * c + 1] = narrow(largest(maximum(even(a), even(b))));
    to[2 * c + 2] = narrow(lowest(minimum(odd(a), odd(b))));
    to[2 * c + 3] = narrow(largest(maximum(odd(a), odd(b))));
  }
}
