// Scores of a block's keys, and its values weighted, with all numbers widened to float32.
#pragma once

constexpr int GROUP = 12;  // query heads that are worked on side by side

struct BlockProducts {
  const int64_t C;
  const Block& block;
  const Block* ahead;  // read next: brought nearer meanwhile

  // s [count][128] = query [count][C] times keys
  void scores(int count, const bf16* query, float (*s)[BLOCK]) const {
    alignas(64) float wide[GROUP * 256];
    for (int64_t i = 0; i < count * C; i += 16) store(wide + i, load_bf16(query + i));
    in_sixes(count, [&]<int Q>(int first) { scores_of<Q>(wide + first * C, s + first); });
  }

  // out [count][C] = weights [count][128] times values
  void blend(int count, const uint32_t (*pairs)[BLOCK / 2], float* out) const {
    alignas(64) float weights[GROUP][BLOCK];
    for (int q = 0; q < count; q++)
      for (int64_t i = 0; i < block.num_pages * PAGE; i += 16) store(weights[q] + i, load_bf16((const bf16*)pairs[q] + i));
    in_sixes(count, [&]<int Q>(int first) { blend_of<Q>(weights + first, out + first * C); });
  }

 private:
  // Sums of six rows of sixteen fill the registers.
  template <class Body> static void in_sixes(int count, const Body& body) {
    int first = 0;
    for (; count - first > 6; first += 6) body.template operator()<6>(first);
    switch (count - first) {
      case 1: return body.template operator()<1>(first);
      case 2: return body.template operator()<2>(first);
      case 3: return body.template operator()<3>(first);
      case 4: return body.template operator()<4>(first);
      case 5: return body.template operator()<5>(first);
      case 6: return body.template operator()<6>(first);
    }
  }

  // acc [Q] += a.even * x[q][0] + a.odd * x[q][1], x[q] being `stride` apart
  template <int Q> static inline __attribute__((always_inline)) void add_pairs(__m256 (*acc)[2], const bf16* pairs, const float* x, int64_t stride) {
    __m256i raw[2];
    for (int h = 0; h < 2; h++) raw[h] = _mm256_loadu_si256((const __m256i*)pairs + h);
    for (int second = 0; second < 2; second++) {
      __m256 wide[2];
      for (int h = 0; h < 2; h++) wide[h] = _mm256_castsi256_ps(second ? _mm256_and_si256(raw[h], _mm256_set1_epi32((int32_t)0xffff0000)) : _mm256_slli_epi32(raw[h], 16));
      for (int q = 0; q < Q; q++) {
        const __m256 factor = _mm256_broadcast_ss(x + q * stride + second);
        for (int h = 0; h < 2; h++) acc[q][h] = _mm256_fmadd_ps(wide[h], factor, acc[q][h]);
      }
    }
  }

  template <int Q> void scores_of(const float* query, float (*s)[BLOCK]) const {
    for (int64_t p = 0; p < block.num_pages; p++) {
      const bf16* keys = block.keys[p];
      if (ahead) bring_near(ahead->keys[std::min(p, ahead->num_pages - 1)], C);
      for (int64_t half = 0; half < 2; half++, keys += 16 * C) {
        __m256 acc[Q][2] = {};
        for (int64_t c = 0; c < C / 2; c++) add_pairs<Q>(acc, keys + c * 32, query + 2 * c, C);
        for (int q = 0; q < Q; q++) for (int h = 0; h < 2; h++) _mm256_storeu_ps(s[q] + p * PAGE + half * 16 + 8 * h, acc[q][h]);
      }
    }
  }

  template <int Q> void blend_of(const float (*weights)[BLOCK], float* out) const {
    for (int64_t c = 0; c < C; c += 16) {
      __m256 acc[Q][2] = {};
      for (int64_t p = 0; p < block.num_pages; p++) {
        if (ahead && c == 0) bring_near(ahead->values[std::min(p, ahead->num_pages - 1)], C);
        for (int64_t i = 0; i < PAGE / 2; i++) add_pairs<Q>(acc, block.values[p] + 2 * c + i * 2 * C, weights[0] + p * PAGE + 2 * i, BLOCK);
      }
      for (int q = 0; q < Q; q++) for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + q * C + c + 8 * h, acc[q][h]);
    }
  }
};
