// What is done to each token by itself: norm, gate, rotation, and the reading of logits.
#pragma once
#include "numeric.h"

// Root-mean-square norm of D floats into bfloat16.
static inline void norm_row(const float* x, const bf16* weight, bool plus_one, float eps, int64_t D, bf16* out) {
  f32x16 squares = splat(0.f);
  for (int64_t i = 0; i < D; i += 16) { const f32x16 v = load(x + i); squares = muladd(v, v, squares); }
  const float factor = 1.f / std::sqrt(sum(squares) / (float)D + eps);
  const float one = plus_one ? 1.f : 0.f;
  for (int64_t i = 0; i < D; i += 16) store_bf16(out + i, load(x + i) * factor * (load_bf16(weight + i) + one));
}

enum Activation { SILU, GELU_TANH };

static inline f32x16 gated(int activation, f32x16 gate, f32x16 up) {
  f32x16 z = gate;  // x * sigmoid(z), and tanh is a sigmoid too
  if (activation == GELU_TANH) z = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
  return gate / (1.f + exponential(-z)) * up;
}

// Rotate [heads][C] floats into bfloat16; cos and sin hold C/2 values.
static inline void rotate_heads(const float* x, const float* cos, const float* sin, int64_t heads, int64_t C, bf16* out) {
  for (int64_t h = 0; h < heads; h++, x += C, out += C)
    for (int64_t i = 0; i < C / 2; i += 16) {
      const f32x16 a = load(x + i), b = load(x + C / 2 + i), c = load(cos + i), s = load(sin + i);
      store_bf16(out + i, a * c + (-b) * s);
      store_bf16(out + C / 2 + i, b * c + a * s);
    }
}

// The vocabulary is read in blocks: each has a peak and a sum of exponentials relative to it.
constexpr int64_t VOCABULARY_BLOCK = 256;

static inline void summarise(const float* logits, int64_t count, float* peak, float* total) {
  f32x16 top = splat(-INFINITY), sums = splat(0.f);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) top = maximum(top, load(logits + i));
  float rest[16]; std::fill(rest, rest + 16, -INFINITY);
  if (i < count) { memcpy(rest, logits + i, 4 * (count - i)); top = maximum(top, load(rest)); }
  *peak = largest(top);
  const float base = *peak == -INFINITY ? 0.f : *peak;
  for (int64_t j = 0; j < i; j += 16) sums += exponential(load(logits + j) - base);
  if (i < count) sums += exponential(load(rest) - base);
  *total = sum(sums);
}

// log of the sum of all exponentials, from the blocks.
static inline double log_total(const float* peaks, const float* totals, int64_t blocks, float* highest) {
  float peak = -INFINITY;
  for (int64_t b = 0; b < blocks; b++) peak = std::max(peak, peaks[b]);
  double all = 0;
  for (int64_t b = 0; b < blocks; b++) if (totals[b] != 0) all += totals[b] * (double)std::exp(peaks[b] - peak);
  *highest = peak;
  return peak + std::log(all);
}

// Inverse transform: the first token at which the cumulative probability exceeds `uniform`.
static inline int64_t draw(const float* logits, const float* peaks, const float* totals, int64_t vocabulary, double uniform) {
  const int64_t blocks = (vocabulary + VOCABULARY_BLOCK - 1) / VOCABULARY_BLOCK;
  float peak = -INFINITY;
  for (int64_t b = 0; b < blocks; b++) peak = std::max(peak, peaks[b]);
  double all = 0;
  for (int64_t b = 0; b < blocks; b++) if (totals[b] != 0) all += totals[b] * (double)std::exp(peaks[b] - peak);
  const double target = uniform * all;
  double before = 0;
  int64_t chosen = -1;
  for (int64_t b = 0; b < blocks; b++) {
    const double mass = totals[b] * (double)std::exp(peaks[b] - peak);
    if (!(mass > 0)) continue;
    chosen = b;
    if (before + mass > target) break;
    before += mass;
  }
  if (chosen < 0) return -1;  // nothing can be drawn
  const double share = std::exp(peaks[chosen] - peak);
  const int64_t first = chosen * VOCABULARY_BLOCK, last = std::min(first + VOCABULARY_BLOCK, vocabulary);
  int64_t token = -1;
  for (int64_t i = first; i < last; i += 16) {
    float x[16]; std::fill(x, x + 16, -INFINITY);
    memcpy(x, logits + i, 4 * std::min<int64_t>(16, last - i));
    const f32x16 weights = exponential(load(x) - peaks[chosen]);
    for (int64_t j = 0; j < 16; j++) {
      if (weights[j] <= 0) continue;
      token = i + j;
      before += weights[j] * share;
      if (before > target) return token;
    }
  }
  return token;  // rounding lifted the target to the very end
}
