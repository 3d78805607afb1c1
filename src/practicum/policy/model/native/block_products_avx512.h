// Scores of a block's keys, and its values weighted, by products of pairs.
#pragma once

constexpr int GROUP = 12;  // query heads that are worked on side by side

struct BlockProducts {
  const int64_t C;
  const Block& block;
  const Block* ahead;  // read next: brought nearer meanwhile

  template <int Q> void scores_of(const bf16* query, float (*s)[BLOCK]) const {
    for (int64_t p = 0; p < block.num_pages; p++) {
      const bf16* keys = block.keys[p];
      if (ahead) bring_near(ahead->keys[std::min(p, ahead->num_pages - 1)], C);
      for (int64_t half = 0; half < 2; half++, keys += 16 * C) {
        f32x16 acc[Q] = {};
        for (int64_t c = 0; c < C / 2; c++) {
          const i32x16 key = load_words(keys + c * 32);
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
        if (ahead && c == 0) bring_near(ahead->values[std::min(p, ahead->num_pages - 1)], C);
        const bf16* values = block.values[p] + 2 * c;
        for (int64_t i = 0; i < PAGE / 2; i++) {
          const i32x16 value = load_words(values + i * 2 * C);
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
};
