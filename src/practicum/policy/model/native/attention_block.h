// A block of 128 keys met by some query heads: scores, weights relative to the block's own highest
// score, and the values so weighted. Nothing here knows of other blocks.
#pragma once
#include "gemm.h"
#include "quantise.h"

constexpr int64_t BLOCK = 128, PAGES = BLOCK / PAGE;

static const i32x16 PLACES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct Rule { float scale, softcap; int64_t window, sinks; };  // softcap 0 and window 0: none

// Whether a query at `position` sees the key at `key`.
static inline bool sees(const Rule& rule, int64_t position, int64_t key) {
  return key <= position && (!rule.window || key > position - rule.window || key < rule.sinks);
}
static inline bool sees_any(const Rule& rule, int64_t position, int64_t first, int64_t last) {
  return first <= position && (!rule.window || last > position - rule.window || first < rule.sinks);
}

#ifdef __AMX_BF16__
constexpr int GROUP = 16;  // query heads that are worked on side by side
#else
constexpr int GROUP = 12;
#endif

struct Block {
  const bf16 *keys[PAGES], *values[PAGES];
  int64_t num_pages;
  int64_t first;  // position of the first key; -1 if all are seen by everybody
};

// Results for each of up to GROUP query heads: highest score, sum of weights, weighted values.
struct Met {
  float peak[GROUP], total[GROUP];
  alignas(64) float values[GROUP * 256];
};

struct BlockWork {
  const Rule& rule;
  const int64_t C;
  const Block& block;
  const Block* ahead;  // read next: brought nearer meanwhile

  void fetch(const bf16* page) const {
    for (int64_t i = 0; i < PAGE * C; i += 32) _mm_prefetch((const char*)(page + i), _MM_HINT_T1);
  }

#ifdef __AMX_BF16__
  // query [16][C]; rows past the last are whatever stands there, and so are their results.
  void scores(int, const bf16* query, float (*s)[BLOCK]) const {
    for (int64_t p = 0; p < block.num_pages; p += 2) {
      const int64_t next = std::min(p + 1, block.num_pages - 1);
      const bf16 *a = block.keys[p], *b = block.keys[next];
      if (ahead) { fetch(ahead->keys[std::min(p, ahead->num_pages - 1)]); fetch(ahead->keys[std::min(p + 1, ahead->num_pages - 1)]); }
      _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
      for (int64_t c = 0; c < C; c += 32) {
        _tile_loadd(4, query + c, 2 * C);
        _tile_loadd(5, a + c * 16, 64); _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, a + (C + c) * 16, 64); _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(5, b + c * 16, 64); _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, b + (C + c) * 16, 64); _tile_dpbf16ps(3, 4, 6);
      }
      _tile_stored(0, s[0] + p * PAGE, 4 * BLOCK); _tile_stored(1, s[0] + p * PAGE + 16, 4 * BLOCK);
      _tile_stored(2, s[0] + next * PAGE, 4 * BLOCK); _tile_stored(3, s[0] + next * PAGE + 16, 4 * BLOCK);
    }
  }

  void blend(int, const uint32_t (*pairs)[BLOCK / 2], float* out) const {
    for (int64_t c = 0; c < C; c += 32) {
      _tile_zero(0); _tile_zero(1);
      for (int64_t p = 0; p < block.num_pages; p++) {
        if (ahead && c == 0) fetch(ahead->values[std::min(p, ahead->num_pages - 1)]);
        _tile_loadd(4, pairs[0] + p * PAGE / 2, 2 * BLOCK);
        _tile_loadd(5, block.values[p] + 2 * c, 4 * C); _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, block.values[p] + 2 * c + 32, 4 * C); _tile_dpbf16ps(1, 4, 6);
      }
      _tile_stored(0, out + c, 4 * C); _tile_stored(1, out + c + 16, 4 * C);
    }
  }
#else
  template <int Q> void scores_of(const bf16* query, float (*s)[BLOCK]) const {
    for (int64_t p = 0; p < block.num_pages; p++) {
      const bf16* keys = block.keys[p];
      if (ahead) fetch(ahead->keys[std::min(p, ahead->num_pages - 1)]);
      for (int64_t half = 0; half < 2; half++, keys += 16 * C) {
        f32x16 acc[Q] = {};
        for (int64_t c = 0; c < C / 2; c++) {
          const u32x16 key = load_pairs(keys + c * 32);
          for (int q = 0; q < Q; q++) {
            uint32_t pair; memcpy(&pair, query + q * C + 2 * c, 4);
            acc[q] = dot_pairs(acc[q], key, pair);
          }
        }
        for (int q = 0; q < Q; q++) store(s[q] + p * PAGE + half * 16, acc[q]);
      }
    }
  }

  template <int Q> void blend_of(const uint32_t (*pairs)[BLOCK / 2], float* out) const {
    for (int64_t c = 0; c < C; c += 16) {
      f32x16 acc[Q] = {};
      for (int64_t p = 0; p < block.num_pages; p++) {
        if (ahead && c == 0) fetch(ahead->values[std::min(p, ahead->num_pages - 1)]);
        const bf16* values = block.values[p] + 2 * c;
        for (int64_t i = 0; i < PAGE / 2; i++) {
          const u32x16 value = load_pairs(values + i * 2 * C);
          for (int q = 0; q < Q; q++) acc[q] = dot_pairs(acc[q], value, pairs[q][p * PAGE / 2 + i]);
        }
      }
      for (int q = 0; q < Q; q++) store(out + q * C + c, acc[q]);
    }
  }

#define FOR_EACH_COUNT(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
  void scores(int count, const bf16* query, float (*s)[BLOCK]) const {
#define CASE(Q) case Q: scores_of<Q>(query, s); break;
    switch (count) { FOR_EACH_COUNT(CASE) }
#undef CASE
  }
  void blend(int count, const uint32_t (*pairs)[BLOCK / 2], float* out) const {
#define CASE(Q) case Q: blend_of<Q>(pairs, out); break;
    switch (count) { FOR_EACH_COUNT(CASE) }
#undef CASE
  }
#undef FOR_EACH_COUNT
#endif

  // Minus infinity for the keys from `key` on that a query at `position` does not see.
  f32x16 hide(f32x16 v, int64_t position, int64_t key) const {
    const i32x16 keys = PLACES + (int32_t)key;
    i32x16 seen = keys <= (int32_t)position;
    if (rule.window) seen &= (keys > (int32_t)(position - rule.window)) | (keys < (int32_t)rule.sinks);
    return (f32x16)(((i32x16)v & seen) | ((i32x16)splat(-INFINITY) & ~seen));
  }

  // s: scores in, weights relative to the block's peak out, as pairs of bfloat16 in `pairs`.
  void weigh(int64_t position, float* s, uint32_t* pairs, float* peak, float* total) const {
    const int64_t count = block.num_pages * PAGE, first = block.first;
    const bool whole = first < 0 || (sees(rule, position, first) && sees(rule, position, first + count - 1) &&
                                     (!rule.window || first + count <= rule.sinks || first > position - rule.window));
    f32x16 top = splat(-INFINITY);
    for (int64_t i = 0; i < count; i += 16) {
      f32x16 v = load(s + i) * rule.scale;
      if (rule.softcap > 0) for (int j = 0; j < 16; j++) v[j] = std::tanh(v[j] / rule.softcap) * rule.softcap;
      if (!whole) v = hide(v, position, first + i);
      store(s + i, v);
      top = maximum(top, v);
    }
    *peak = largest(top);
    f32x16 sums = {};
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
    scores(count, query, s);
    for (int q = 0; q < count; q++) weigh(positions[q], s[q], pairs[q], met.peak + q, met.total + q);
    blend(count, pairs, met.values);
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
