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
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#endif

#ifdef __AMX_BF16__
struct alignas(64) TileConfig { uint8_t palette = 1, start_row = 0, reserved[14] = {}; uint16_t row_bytes[16] = {}; uint8_t rows[16] = {}; };
static inline bool allow_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
static inline void use_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; i++) { config.row_bytes[i] = 64; config.rows[i] = 16; }
  _tile_loadconfig(&config);
}
#endif

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

// Pack up to 16 rows of `width` bytes; rows that are not there become zeros.
static inline void pack_block(const char* x, int64_t stride, int64_t rows, int64_t width, char* packed) {
  for (int64_t k = 0; k < width; k += STEP) {
    if (rows == LANES) { transpose(x + k, stride, packed + k * LANES, 64); continue; }
    alignas(64) char padded[LANES * STEP] = {};
    for (int64_t r = 0; r < rows; r++) memcpy(padded + r * STEP, x + r * stride + k, STEP);
    transpose(padded, 64, packed + k * LANES, 64);
  }
}

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
  float* place() { return sums_[turn_]; }  // of [2 groups of weight rows][blocks][16 rows][16 tokens]
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
    if (part < 2) return transpose(taken_ + (part * blocks_ + block) * 256, 64, turned_[part], 64);
    for (int64_t i = 4 * (part - 2); i < 4 * (part - 1); i++)
      if (block * LANES + i < tokens_)
        write_(first_ + block * LANES + i, n0_, load(turned_[0] + i * LANES), n1_, load(turned_[1] + i * LANES));
  }
  const Write& write_;
  alignas(64) float sums_[2][4 * 256], turned_[2][256];
  const float* taken_ = nullptr;
  int turn_ = 0, blocks_ = 0, slice_ = 0, num_slices_ = 0, each_ = 0;
  int64_t first_ = 0, tokens_ = 0, n0_ = 0, n1_ = 0;
};

#ifdef __AMX_BF16__
#define DOT(sum, rows, tokens) do { if constexpr (INT8) _tile_dpbssd(sum, rows, tokens); else _tile_dpbf16ps(sum, rows, tokens); } while (0)
template <bool INT8, int BLOCKS, class Out> static inline void product(const char* const* w, int64_t width, const char* const* x, Ahead& ahead, Out& out) {
  _tile_zero(0); _tile_zero(1);
  if (BLOCKS == 2) { _tile_zero(2); _tile_zero(3); }
  for (int64_t k = 0; k < width; k += STEP) {
    ahead.step();
    _tile_loadd(6, x[0] + k * LANES, 64);
    _tile_loadd(4, w[0] + k, width);
    DOT(0, 4, 6);
    _tile_loadd(5, w[1] + k, width);
    DOT(1, 5, 6);
    if (BLOCKS == 2) {
      _tile_loadd(7, x[1] + k * LANES, 64);
      DOT(2, 4, 7);
      DOT(3, 5, 7);
    }
    out.step();
  }
  out.finish();
  float* c = out.place();
  _tile_stored(0, c, 64);
  _tile_stored(1, c + BLOCKS * 256, 64);
  if (BLOCKS == 2) { _tile_stored(2, c + 256, 64); _tile_stored(3, c + 768, 64); }
}
#undef DOT
#else
// int8 tokens are lifted to unsigned by 128 as the instruction asks; `lifted` is what that adds.
static inline int32_t lifted(const char* w, int64_t width) {
  __m512i sums = _mm512_setzero_si512();
  for (int64_t k = 0; k < width; k += STEP) sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(-128), _mm512_loadu_si512(w + k));
  return _mm512_reduce_add_epi32(sums);
}

template <bool INT8, int ROWS, int BLOCKS> static inline void few_rows(const char* w, int64_t width, const char* const* x, float* c) {
  f32x16 acc[ROWS][BLOCKS] = {};
  if (INT8) for (int r = 0; r < ROWS; r++) for (int b = 0; b < BLOCKS; b++) acc[r][b] = (f32x16)(i32x16{} - lifted(w + r * width, width));
  for (int64_t k = 0; k < width; k += 4) {
    u32x16 tokens[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) { memcpy(&tokens[b], x[b] + k * LANES, 64); if (INT8) tokens[b] ^= 0x80808080u; }
    for (int r = 0; r < ROWS; r++) {
      uint32_t few; memcpy(&few, w + r * width + k, 4);
      for (int b = 0; b < BLOCKS; b++) acc[r][b] = INT8 ? dot_quads(acc[r][b], tokens[b], few) : dot_pairs(acc[r][b], tokens[b], few);
    }
  }
  for (int r = 0; r < ROWS; r++) for (int b = 0; b < BLOCKS; b++) store(c + (b * LANES + r) * LANES, acc[r][b]);
}

template <bool INT8, int BLOCKS, class Out> static inline void product(const char* const* w, int64_t width, const char* const* x, Ahead&, Out& out) {
  out.finish();
  for (int half = 0; half < 2; half++)
    for (int r = 0; r < LANES; r += 8)
      few_rows<INT8, 8, BLOCKS>(w[half] + r * width, width, x, out.place() + half * BLOCKS * 256 + r * LANES);
}
#endif

constexpr int64_t CHUNK_BYTES = 768 << 10;  // packed tokens that stay in the second-level cache

template <bool INT8, class Write>
static void multiply_as(const Packed& x, const Matrix& w, int64_t begin, int64_t end, int64_t gap, const Write& write) {
  const int64_t width = x.width, step = gap == LANES ? 2 * LANES : LANES;
  const int64_t chunk = std::max<int64_t>(2, CHUNK_BYTES / (LANES * width) / 2 * 2);
  std::vector<char> scratch(2 * LANES * width);
  Outgoing<Write> out(write);
  for (int64_t first = 0; first < x.blocks(); first += chunk) {
    const int64_t last = std::min(first + chunk, x.blocks()), steps = (last - first + 1) / 2 * (width / STEP);
    const int lines = (int)((LANES * w.stride / 64 + steps - 1) / steps);
    for (int64_t n = begin; n < end; n += step) {
      const char* rows[2];
      for (int i = 0; i < 2; i++) rows[i] = w.sixteen(n + i * gap, width, scratch.data() + i * LANES * width);
      const bool more = n + step < w.rows;
      Ahead ahead{{w.row(n + step), w.row(std::min(n + step + gap, w.rows - 1))}, more ? lines : 0};
      for (int64_t b = first; b < last; b += 2) {
        const char* blocks[2] = {x.block(b), x.block(b + 1)};
        const int pair = b + 1 < last ? 2 : 1;
        if (pair == 2) product<INT8, 2>(rows, width, blocks, ahead, out);
        else product<INT8, 1>(rows, width, blocks, ahead, out);
        out.take(pair, b * LANES, std::min(pair * LANES, x.tokens - b * LANES), n, n + gap, width / STEP);
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
#ifdef __AMX_BF16__
  use_tiles();
#endif
  if (w.kind == INT8) multiply_as<true>(x, w, begin, end, gap, [&](int64_t m, int64_t n0, f32x16 a, int64_t n1, f32x16 b) {
    write(m, n0, w.scaled(a, n0) * x.scales[m], n1, w.scaled(b, n1) * x.scales[m]);
  });
  else multiply_as<false>(x, w, begin, end, gap, write);
#ifdef __AMX_BF16__
  _tile_release();
#endif
  _mm_sfence();  // results that went around the caches are there for other threads
}
