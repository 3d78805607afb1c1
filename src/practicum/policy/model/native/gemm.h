// Products of activations with weights: out[m][n] = sum over k of x[m][k] * w[n][k].
//
// Weights are read as the trainer keeps them, row by row, without a copy. The activations, which are
// few, are packed instead: blocks of 16 tokens, turned so that a weight row meets 16 tokens at once.
// Every element of the result sums over k in the same order however many tokens there are.
#pragma once
#include <algorithm>
#include "matrix.h"
#include "numeric.h"
#include "threads.h"

// Tokens as a product reads them: blocks of [width / 4][16 tokens][4 bytes].
struct Packed {
  const char* data;
  const float* scales;  // of the tokens' int8 values; nullptr for bfloat16
  int64_t tokens, width;
  int64_t blocks() const { return (tokens + LANES - 1) / LANES; }
  const char* block(int64_t i) const { return data + i * LANES * width; }
  Packed part(int64_t first, int64_t count) const {  // first is a multiple of 16
    return {data + first * width, scales ? scales + first : nullptr, std::min(count, tokens - first), width};
  }
};

// The weights that come next, on their way to the second-level cache while others are multiplied:
// two streams, some lines of each per step. (Lines that are asked for further in wait at the first
// level, which has fewer places to wait in: a quarter less bandwidth.)
struct Ahead {
  const char* streams[2];
  int lines;
  void step() {
    for (int i = 0; i < lines; i++, streams[0] += 64, streams[1] += 64) {
      _mm_prefetch(streams[0], _MM_HINT_T1);
      _mm_prefetch(streams[1], _MM_HINT_T1);
    }
  }
};

// Finished sums, written out in slices between the steps of the next product: that one keeps the
// tiles busy and leaves the vector units free.
template <class Write> class Outgoing {
 public:
  explicit Outgoing(const Write& write) : write_(write) {}
  float* place() { return sums_[turn_]; }  // of [2 groups of weight rows][blocks][16 x 16 sums]
  void take(int blocks, int64_t first, int64_t tokens, int64_t n0, int64_t n1, int64_t steps) {
    finish();
    taken_ = sums_[turn_]; turn_ ^= 1;
    blocks_ = blocks; first_ = first; tokens_ = tokens; n0_ = n0; n1_ = n1;
    slice_ = 0; num_slices_ = blocks * SLICES; each_ = (int)((num_slices_ + steps - 1) / steps);
  }
  void step() { for (int i = 0; i < each_ && slice_ < num_slices_; i++) advance(); }  // one of `steps`
  void finish() { while (slice_ < num_slices_) advance(); }

 private:
  static constexpr int SLICES = 6;  // of a block: turn, turn, and four tokens four times
  void advance() {
    const int block = slice_ / SLICES, part = slice_ % SLICES;
    slice_++;
    const float* sums[2];
    for (int i = 0; i < 2; i++) sums[i] = taken_ + (i * blocks_ + block) * 256;
#ifdef __AVX512BF16__  // they come as [16 weight rows][16 tokens]
    if (part < 2) return transpose(sums[part], 64, turned_[part], 64);
    sums[0] = turned_[0], sums[1] = turned_[1];
#else                  // they come as [16 tokens][16 weight rows]
    if (part < 2) return;
#endif
    for (int64_t i = 4 * (part - 2); i < 4 * (part - 1); i++)
      if (block * LANES + i < tokens_)
        write_(first_ + block * LANES + i, n0_, load(sums[0] + i * LANES), n1_, load(sums[1] + i * LANES));
  }
  const Write& write_;
  alignas(64) float sums_[2][4 * 256], turned_[2][256];
  const float* taken_ = nullptr;
  int turn_ = 0, blocks_ = 0, slice_ = 0, num_slices_ = 0, each_ = 0;
  int64_t first_ = 0, tokens_ = 0, n0_ = 0, n1_ = 0;
};

#ifdef __AVX512BF16__
// Pack up to 16 rows of `bytes` bytes, turned word by word; rows that are not there become zeros.
static inline void pack_block(bool, const char* x, int64_t bytes, int64_t rows, char* packed) {
  for (int64_t k = 0; k < bytes; k += STEP, packed += LANES * STEP) {
    if (rows == LANES) { transpose(x + k, bytes, packed, STEP); continue; }
    alignas(64) char padded[LANES * STEP] = {};
    for (int64_t r = 0; r < rows; r++) memcpy(padded + r * STEP, x + r * bytes + k, STEP);
    transpose(padded, STEP, packed, STEP);
  }
}
#endif

#if defined(__AMX_BF16__)
#include "product_amx.h"
#elif defined(__AVX512BF16__)
#include "product_avx512.h"
#else
#include "product_avx2.h"
#endif

struct alignas(64) Line { char bytes[64]; };  // vectors of these begin where a cache line does

constexpr int64_t CHUNK_BYTES = 768 << 10;  // packed tokens that stay in the second-level cache

template <bool INT8, class Write>
static void multiply_as(const Packed& x, const Matrix& w, int64_t begin, int64_t end, int64_t gap, const Write& write) {
  const int64_t width = x.width, step = gap == LANES ? 2 * LANES : LANES;
  const int64_t chunk = std::max<int64_t>(2, CHUNK_BYTES / (LANES * width) / 2 * 2);
  std::vector<Line> scratch(2 * LANES * width / WIDER / 64);
  char* room = (char*)scratch.data();
  Outgoing<Write> out(write);
  for (int64_t first = 0; first < x.blocks(); first += chunk) {
    const int64_t last = std::min(first + chunk, x.blocks()), steps = (last - first + 1) / 2 * (width / STEP);
    const int lines = (int)((LANES * w.stride / 64 + steps - 1) / steps);
    for (int64_t n = begin; n < end; n += step) {
      const char* rows[2];
      for (int i = 0; i < 2; i++) rows[i] = w.sixteen(n + i * gap, width / WIDER, room + i * LANES * width / WIDER);
      const bool more = n + step < w.rows;
      Ahead ahead{{w.row(n + step), w.row(std::min(n + step + gap, w.rows - 1))}, more ? lines : 0};
      for (int64_t b = first; b < last; b += 2) {
        const char* blocks[2] = {x.block(b), x.block(b + 1)};
        const int pair = b + 1 < last ? 2 : 1;
        const int64_t tokens = std::min(pair * LANES, x.tokens - b * LANES);
        if (pair == 2) product<INT8, 2>(rows, width, blocks, tokens, ahead, out);
        else product<INT8, 1>(rows, width, blocks, tokens, ahead, out);
        out.take(pair, b * LANES, tokens, n, n + gap, width / STEP);
      }
    }
  }
  out.finish();
}

// For every token m and every 16 rows n of the weights: write(m, n0, sixteen results, n1, sixteen).
// n0 and n1 = n0 + gap are two groups of 16 rows; gap is 16, or the distance of a gate to its up.
// Rows [begin, end) are counted in n0; results past the last row are to be ignored.
template <class Write>
static void multiply(const Packed& x, const Matrix& w, int64_t begin, int64_t end, int64_t gap, const Write& write) {
  const Tiles tiles;
  if (w.kind == INT8) multiply_as<true>(x, w, begin, end, gap, [&](int64_t m, int64_t n0, f32x16 a, int64_t n1, f32x16 b) {
    write(m, n0, w.scaled(a, n0) * x.scales[m], n1, w.scaled(b, n1) * x.scales[m]);
  });
  else multiply_as<false>(x, w, begin, end, gap, write);
  _mm_sfence();  // results that went around the caches are there for other threads
}
