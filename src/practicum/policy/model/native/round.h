// From bfloat16 rows to int8: spread, then rounded with one scale per row.
//
// A row of activations has a few values that are far larger than all others, and a scale made for
// them leaves few levels to the rest. So every 64 values are first turned by a Hadamard matrix, which
// spreads large ones over all 64 and, being orthogonal, changes no product of rows that are both
// turned. (QuaRot, 2404.00456; within blocks, so that there is nothing to fold into other weights.)
#pragma once
#include <array>
#include "matrix.h"

constexpr int64_t SPREAD = 64;

// For lanes i and i ^ STRIDE: their sum in the lower of both, their difference in the other.
template <int STRIDE> static inline f32x16 butterfly(f32x16 v) {
  alignas(64) static constexpr auto SIGNS = [] {
    std::array<float, 16> signs{};
    for (int i = 0; i < 16; i++) signs[i] = i & STRIDE ? -1.f : 1.f;
    return signs;
  }();
  return muladd(v, load(SIGNS.data()), opposite<STRIDE>(v));
}

static inline void spread(f32x16* v) {
  for (int i = 0; i < 4; i++) v[i] = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(v[i]))));
  const f32x16 a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = (a + c) * .125f; v[1] = (b + d) * .125f; v[2] = (a - c) * .125f; v[3] = (b - d) * .125f;
}

// One row as int8 times the returned scale, padded with zeros to whole steps; room [padded K].
// A NaN or an infinity makes the scale one, so that it is not lost.
static inline float quantise_row(const bf16* x, int64_t K, int8_t* out, float* room) {
  const int64_t width = Matrix::width_of_int8(K);
  i32x16 largest_bits = splat(0);
  for (int64_t k = 0; k < width; k += SPREAD) {
    f32x16 v[4];
    for (int i = 0; i < 4; i++) v[i] = k + 16 * i < K ? load_bf16(x + k + 16 * i) : splat(0.f);
    spread(v);
    for (int i = 0; i < 4; i++) {
      store(room + k + 16 * i, v[i]);
      largest_bits = maximum(largest_bits, as_words(v[i]) & 0x7fffffff);  // ordered as the magnitudes are
    }
  }
  const int32_t bits = largest(largest_bits);
  float most; memcpy(&most, &bits, 4);
  if (bits == 0) most = 127.f;
  const float factor = 127.f / most;
  for (int64_t k = 0; k < width; k += 16) store_i8(out + k, whole(load(room + k) * factor));
  return most / 127.f;
}
