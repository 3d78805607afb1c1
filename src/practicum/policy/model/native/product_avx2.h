// Products of 32 weight rows with up to 32 tokens, along the rows: eight partial sums for each result.
//
// Tokens are not turned but widened once: bfloat16 to float32, of every sixteen first the even and then
// the odd ones, as a shift and a mask bring them forth from a weight row; int8 to int16.
#pragma once
#include <utility>

struct Tiles {  // there are none
  static bool allow() { return true; }
  ~Tiles() {}
};

// body(0), ..., body(N - 1), written out: arrays that are indexed so stay in registers.
template <int N, class Body> static inline __attribute__((always_inline)) void each(const Body& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) { (body(std::integral_constant<int, I>{}), ...); }(std::make_integer_sequence<int, N>{});
}

static inline void widen_row(bool int8, const char* from, int64_t bytes, char* to) {
  for (int64_t i = 0; i < bytes; i += 32) {
    const __m256i raw = _mm256_loadu_si256((const __m256i*)(from + i));
    __m256i *first = (__m256i*)(to + 2 * i), *second = first + 1;
    _mm256_store_si256(first, int8 ? _mm256_cvtepi8_epi16(_mm256_castsi256_si128(raw)) : _mm256_slli_epi32(raw, 16));
    _mm256_store_si256(second, int8 ? _mm256_cvtepi8_epi16(_mm256_extracti128_si256(raw, 1)) : _mm256_and_si256(raw, _mm256_set1_epi32((int32_t)0xffff0000)));
  }
}

// Up to 16 rows of `bytes` stored bytes, one after the other.
static inline void pack_block(bool int8, const char* x, int64_t bytes, int64_t rows, char* packed) {
  for (int64_t r = 0; r < rows; r++) widen_row(int8, x + r * bytes, bytes, packed + 2 * r * bytes);
}

// The eight lanes of each of four vectors added up, always in this order.
template <bool INT8> static inline __m128 sums_of(__m256 a, __m256 b, __m256 c, __m256 d) {
  if constexpr (INT8) {
    auto add = [](__m256 x, __m256 y) __attribute__((always_inline)) { return _mm256_castsi256_ps(_mm256_hadd_epi32(_mm256_castps_si256(x), _mm256_castps_si256(y))); };
    const __m256i all = _mm256_castps_si256(add(add(a, b), add(c, d)));
    return _mm_castsi128_ps(_mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
  } else {
    const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  }
}

// c [tokens][16 rows] of some rows, `bytes` apart, and some tokens: twelve sums fill the registers.
template <bool INT8, int TOKENS, int ROWS> static inline void tile(const char* w, int64_t bytes, const char* x, float* c) {
  __m256 acc[TOKENS + 1][ROWS];
  each<TOKENS + 1>([&](auto t) { each<ROWS>([&](auto r) { acc[t][r] = _mm256_setzero_ps(); }); });
  for (int64_t k = 0; k < bytes; k += 32)
    each<2>([&](auto second) {
      __m256 weight[ROWS];
      each<ROWS>([&](auto r) {
        const char* from = w + r * bytes + k;
        if constexpr (INT8) weight[r] = _mm256_castsi256_ps(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(from + 16 * second))));
        else {
          const __m256i raw = _mm256_loadu_si256((const __m256i*)from);
          weight[r] = _mm256_castsi256_ps(second ? _mm256_and_si256(raw, _mm256_set1_epi32((int32_t)0xffff0000)) : _mm256_slli_epi32(raw, 16));
        }
      });
      each<TOKENS>([&](auto t) {
        __m256 token = _mm256_load_ps((const float*)(x + 2 * (t * bytes + k) + 32 * second));
        asm("" : "+x"(token));  // loaded once, not with every product: there are two loads in a cycle
        each<ROWS>([&](auto r) {
          if constexpr (INT8) acc[t][r] = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(acc[t][r]), _mm256_madd_epi16(_mm256_castps_si256(token), _mm256_castps_si256(weight[r]))));
          else acc[t][r] = _mm256_fmadd_ps(token, weight[r], acc[t][r]);
        });
      });
    });
  if constexpr (ROWS == 4) each<TOKENS>([&](auto t) { _mm_store_ps(c + t * LANES, sums_of<INT8>(acc[t][0], acc[t][1], acc[t][2], acc[t][3])); });
  else each<(TOKENS + 1) / 2>([&](auto i) {
    const __m128 sums = sums_of<INT8>(acc[2 * i][0], acc[2 * i][1], acc[2 * i + 1][0], acc[2 * i + 1][1]);
    _mm_storel_pi((__m64*)(c + 2 * i * LANES), sums);
    if (2 * i + 1 < TOKENS) _mm_storeh_pi((__m64*)(c + (2 * i + 1) * LANES), sums);
  });
}

template <bool INT8, int TOKENS> static inline void sixteen_rows(const char* w, int64_t bytes, const char* x, float* c) {
  constexpr int ROWS = TOKENS > 3 ? 2 : 4;
  for (int r = 0; r < LANES; r += ROWS) tile<INT8, TOKENS, ROWS>(w + r * bytes, bytes, x, c + r);
}

template <bool INT8, int BLOCKS, class Out>
static inline void product(const char* const* w, int64_t width, const char* const* x, int64_t tokens, Ahead& ahead, Out& out) {
  out.finish();
  const int64_t bytes = width / 2, steps = width / STEP;
  int64_t fetched = 0;
  for (int64_t t = 0; t < tokens; t += 6) {
    for (; fetched < steps * std::min(t + 6, tokens) / tokens; fetched++) ahead.step();
    for (int half = 0; half < 2; half++) {
      const char* some = x[0] + t * width;  // blocks follow one another
      float* c = out.place() + (half * BLOCKS * LANES + t) * LANES;
      switch (std::min<int64_t>(6, tokens - t)) {
        case 1: sixteen_rows<INT8, 1>(w[half], bytes, some, c); break;
        case 2: sixteen_rows<INT8, 2>(w[half], bytes, some, c); break;
        case 3: sixteen_rows<INT8, 3>(w[half], bytes, some, c); break;
        case 4: sixteen_rows<INT8, 4>(w[half], bytes, some, c); break;
        case 5: sixteen_rows<INT8, 5>(w[half], bytes, some, c); break;
        case 6: sixteen_rows<INT8, 6>(w[half], bytes, some, c); break;
      }
    }
  }
}
