// Which pages a query reads when it may not read all (Quest, 2406.10774).
//
// No key of a page scores higher than the sum over channels of max(q * low, q * high). The pages
// with the highest such bounds are read, and the first one always.
#pragma once
#include <algorithm>
#include <vector>
#include "quantise.h"

struct PageChoice {
  const bf16* bounds;  // [pages][kv_heads][C][low, high]
  int64_t kv_heads, C, top;

  // The chosen ones of the table's first `there` pages for the query heads [width][C] of one
  // key-value head, in order of position. `rank` and `weights` are scratch.
  void choose(const bf16* query, int64_t width, const int32_t* table, int64_t there, int64_t head, std::vector<std::pair<float, int32_t>>& rank, std::vector<bf16>& weights, std::vector<int32_t>& chosen) const {
    chosen.clear();
    if (there <= top) {
      for (int64_t p = 0; p < there; p++) chosen.push_back((int32_t)p);
      return;
    }
    weights.assign(2 * width * C, 0);  // a positive q meets the high, a negative one the low
    for (int64_t i = 0; i < width * C; i++) weights[2 * i + !(query[i] >> 15)] = query[i];
    rank.clear();
    for (int64_t p = 1; p < there; p++) {
      const bf16* bound = bounds + (table[p] * kv_heads + head) * 2 * C;
      float best = -INFINITY;
      for (int64_t q = 0; q < width; q++) {
        f32x16 acc = splat(0.f);
        for (int64_t c = 0; c < 2 * C; c += 32) acc = dot_pairs(acc, load_words(bound + c), load_words(weights.data() + q * 2 * C + c));
        best = std::max(best, sum(acc));
      }
      rank.push_back({best, (int32_t)p});
    }
    auto higher = [](const auto& a, const auto& b) { return a.first > b.first || (a.first == b.first && a.second > b.second); };
    std::nth_element(rank.begin(), rank.begin() + (top - 1), rank.end(), higher);
    chosen.push_back(0);
    for (int64_t i = 0; i + 1 < top; i++) chosen.push_back(rank[i].second);
    std::sort(chosen.begin(), chosen.end());
  }
};
