// A block of 128 keys met by some query heads: scores, weights relative to the block's own highest
// score, and the values so weighted. Nothing here knows of other blocks.
#pragma once
#include "gemm.h"
#include "quantise.h"

constexpr int64_t BLOCK = 128, PAGES = BLOCK / PAGE;

struct Rule { float scale, softcap; int64_t window, sinks; };  // softcap 0 and window 0: none

// Whether a query at `position` sees the key at `key`.
static inline bool sees(const Rule& rule, int64_t position, int64_t key) {
  return key <= position && (!rule.window || key > position - rule.window || key < rule.sinks);
}
static inline bool sees_any(const Rule& rule, int64_t position, int64_t first, int64_t last) {
  return first <= position && (!rule.window || last > position - rule.window || first < rule.sinks);
}

struct Block {
  const bf16 *keys[PAGES], *values[PAGES];
  int64_t num_pages;
  int64_t first;  // position of the first key; -1 if all are seen by everybody
};

static inline void bring_near(const bf16* page, int64_t C) {
  for (int64_t i = 0; i < PAGE * C; i += 32) _mm_prefetch((const char*)(page + i), _MM_HINT_T1);
}

#if defined(__AMX_BF16__)
#include "block_products_amx.h"
#elif defined(__AVX512BF16__)
#include "block_products_avx512.h"
#else
#include "block_products_avx2.h"
#endif

// Results for each of up to GROUP query heads: highest score, sum of weights, weighted values.
struct Met {
  float peak[GROUP], total[GROUP];
  alignas(64) float values[GROUP * 256];
};

struct BlockWork {
  const Rule& rule;
  const int64_t C;
  const Block& block;
  const Block* ahead;  // read next

  // Minus infinity for the keys from `key` on that a query at `position` does not see.
  f32x16 hide(f32x16 v, int64_t position, int64_t key) const {
    alignas(64) static const int32_t PLACES[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const i32x16 keys = load_words(PLACES) + (int32_t)key;
    i32x16 seen = keys <= (int32_t)position;
    if (rule.window) seen = seen & ((keys > (int32_t)(position - rule.window)) | (keys < (int32_t)rule.sinks));
    return as_floats((as_words(v) & seen) | (as_words(splat(-INFINITY)) & ~seen));
  }

  // s: scores in, weights relative to the block's peak out, as pairs of bfloat16 in `pairs`.
  void weigh(int64_t position, float* s, uint32_t* pairs, float* peak, float* total) const {
    const int64_t count = block.num_pages * PAGE, first = block.first;
    const bool whole = first < 0 || (sees(rule, position, first) && sees(rule, position, first + count - 1) &&
                                     (!rule.window || first + count <= rule.sinks || first > position - rule.window));
    f32x16 top = splat(-INFINITY);
    for (int64_t i = 0; i < count; i += 16) {
      f32x16 v = load(s + i) * rule.scale;
      if (rule.softcap > 0) v = squash(v, rule.softcap);
      if (!whole) v = hide(v, position, first + i);
      store(s + i, v);
      top = maximum(top, v);
    }
    *peak = largest(top);
    f32x16 sums = splat(0.f);
    for (int64_t i = 0; i < count; i += 16) {
      const f32x16 w = exponential(load(s + i) - *peak);
      sums += w;
      store_bf16((bf16*)pairs + i, w);
    }
    *total = sum(sums);
  }

  void meet(int count, const bf16* query, const int64_t* positions, Met& met) const {
    alignas(64) float s[GROUP][BLOCK];
    alignas(64) uint32_t pairs[GROUP][BLOCK / 2];
    const BlockProducts products{C, block, ahead};
    products.scores(count, query, s);
    for (int q = 0; q < count; q++) weigh(positions[q], s[q], pairs[q], met.peak + q, met.total + q);
    products.blend(count, pairs, met.values);
  }
};

// What is known of one query head after some blocks: the highest score, sum and weighted values.
struct Running {
  float peak, total;
  float* values;

  void add(float new_peak, float new_total, const float* new_values, int64_t C) {
    const float higher = std::max(peak, new_peak);
    const float old_share = peak == -INFINITY ? 0.f : exponential(peak - higher);
    const float share = exponential(new_peak - higher);
    total = total * old_share + new_total * share;
    peak = higher;
    for (int64_t c = 0; c < C; c += 16) store(values + c, muladd(load(values + c), splat(old_share), load(new_values + c) * share));
  }
};
