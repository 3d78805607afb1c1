// The C interface: plain pointers and sizes. One call at a time; Python holds no lock meanwhile.
#include <algorithm>
#include <mutex>
#include "attention.h"
#include "gemm.h"
#include "matrix.h"
#include "round.h"
#include "rows.h"

namespace {
std::mutex one_at_a_time;
std::unique_ptr<Threads> crew = std::make_unique<Threads>(1);
std::vector<char> packed_tokens, token_scales;

constexpr int64_t SMALL = 64 << 10;  // elements below which a second thread does not pay
constexpr int64_t CACHED_BYTES = 512 << 10;  // results that are still in a cache when they are read

// Run body(begin, end) over rows, on several threads if there is enough to do.
template <class Body> void over_rows(int64_t rows, int64_t width, int64_t grain, const Body& body) {
  if (rows * width < SMALL) body(0, rows); else crew->share(rows, grain, body);
}

// Storage that is kept from call to call, aligned to cache lines.
char* room_for(std::vector<char>& storage, int64_t bytes) {
  if ((int64_t)storage.size() < bytes + 64) storage.resize(bytes + 64);
  return (char*)(((uintptr_t)storage.data() + 63) / 64 * 64);
}

// Pack M tokens of K features for a matrix; rows(m, count, to) puts `count` of them into `to`.
template <class Rows> Packed pack_rows(int64_t M, int64_t K, Kind kind, const Rows& rows) {
  const int64_t bytes = kind == INT8 ? Matrix::width_of_int8(K) : 2 * K, width = WIDER * bytes, padded = (M + LANES - 1) / LANES * LANES;
  char* data = room_for(packed_tokens, padded * width);
  float* scales = kind == INT8 ? (float*)room_for(token_scales, padded * 4) : nullptr;
  over_rows(M, K, LANES, [&](int64_t begin, int64_t end) {
    std::vector<bf16> exact(LANES * K);
    std::vector<int8_t> whole(kind == INT8 ? LANES * bytes : 0);
    std::vector<float> spread(kind == INT8 ? bytes : 0);
    for (int64_t m = begin; m < end; m += LANES) {
      const int64_t count = std::min(LANES, M - m);
      const bf16* from = rows(m, count, exact.data());
      if (kind == INT8) {
        for (int64_t i = 0; i < count; i++) scales[m + i] = quantise_row(from + i * K, K, whole.data() + i * bytes, spread.data());
        pack_block(true, (const char*)whole.data(), bytes, count, data + m * width);
      } else pack_block(false, (const char*)from, bytes, count, data + m * width);
    }
  });
  return {data, scales, M, width};
}

Packed pack(const bf16* x, int64_t M, int64_t K, Kind kind) {
  return pack_rows(M, K, kind, [&](int64_t m, int64_t, bf16*) { return x + m * K; });
}

struct Norm { const bf16* weight; bool plus_one; float eps; };

Packed norm_and_pack(const float* x, const Norm& norm, int64_t M, int64_t K, Kind kind) {
  return pack_rows(M, K, kind, [&](int64_t m, int64_t count, bf16* to) {
    for (int64_t i = 0; i < count; i++) norm_row(x + (m + i) * K, norm.weight, norm.plus_one, norm.eps, K, to + i * K);
    return to;
  });
}

constexpr int64_t HEAD_ROWS = 256;  // tokens whose logits of one vocabulary block stay in a cache

template <class Write> void multiply_all(const Packed& x, const Matrix& w, int64_t end, int64_t gap, const Write& write) {
  crew->share(end, gap == LANES ? 2 * LANES : LANES, [&](int64_t from, int64_t to) { multiply(x, w, from, to, gap, write); });
}

// Results that no one will read soon are put past the caches, which need not fetch the line first.
bool outgrows_caches(const float* out, int64_t M, int64_t N) {
  return M * N * 4 > CACHED_BYTES && N % LANES == 0 && (uintptr_t)out % 64 == 0;
}

// out [M][N] = or += x W^T + bias
void linear_into(const Packed& x, const Matrix& w, const float* bias, float* out, bool add) {
  const int64_t N = w.rows;
  const bool far = !add && outgrows_caches(out, x.tokens, N);
  multiply_all(x, w, N, LANES, [&](int64_t m, int64_t n0, f32x16 a, int64_t n1, f32x16 b) {
    float* row = out + m * N;
    auto finish = [&](int64_t n, f32x16 v) {
      const int64_t there = N - n;
      if (there <= 0) return;
      if (there < LANES) {
        for (int64_t j = 0; j < there; j++) row[n + j] = (bias ? v[j] + bias[n + j] : v[j]) + (add ? row[n + j] : 0.f);
        return;
      }
      if (bias) v = v + load(bias + n);
      if (add) v = v + load(row + n);
      if (far) store_past_caches(row + n, v); else store(row + n, v);
    };
    finish(n0, a);
    finish(n1, b);
  });
}

// hidden [M][I] = activation(gate) * up, both products of x with w [2I][K]
void gate_into(const Packed& x, const Matrix& w, int activation, bf16* hidden) {
  const int64_t I = w.rows / 2;
  multiply_all(x, w, I, I, [&](int64_t m, int64_t n, f32x16 gate, int64_t, f32x16 up) {
    store_bf16(hidden + m * I + n, gated(activation, gate, up));
  });
}
}  // namespace

extern "C" {
#define LOCKED std::lock_guard<std::mutex> guard(one_at_a_time)

int practicum_start(int num_threads) {
  LOCKED;
  if (!Tiles::allow()) return 1;
  if (crew->count() != num_threads) crew = std::make_unique<Threads>(num_threads);
  return 0;
}

void practicum_norm(const float* x, const bf16* weight, int plus_one, float eps, bf16* out, int64_t M, int64_t D) {
  LOCKED;
  over_rows(M, D, 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; m++) norm_row(x + m * D, weight, plus_one, eps, D, out + m * D);
  });
}

void practicum_gate(const float* gate_up, int activation, bf16* out, int64_t M, int64_t I) {
  LOCKED;
  over_rows(M, I, 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; m++)
      for (int64_t i = 0; i < I; i += 16)
        store_bf16(out + m * I + i, gated(activation, load(gate_up + m * 2 * I + i), load(gate_up + m * 2 * I + I + i)));
  });
}

// In what follows a matrix is its kind, its values and, if quantised, its scales; see matrix.h.

// out [M][N] = x [M][K] w^T + bias; with `add`, onto what out holds.
void practicum_linear(const bf16* x, int kind, const void* w, const void* scales, const float* bias, float* out, int64_t M, int64_t K, int64_t N, int add) {
  LOCKED;
  const Matrix matrix(kind, w, scales, N, K);
  linear_into(pack(x, M, K, matrix.kind), matrix, bias, out, add);
}

// The same of the norm of x.
void practicum_norm_linear(const float* x, const bf16* norm, int plus_one, float eps, int kind, const void* w, const void* scales, const float* bias, float* out, int64_t M, int64_t K, int64_t N) {
  LOCKED;
  const Matrix matrix(kind, w, scales, N, K);
  linear_into(norm_and_pack(x, {norm, (bool)plus_one, eps}, M, K, matrix.kind), matrix, bias, out, false);
}

// hidden [M][I] = activation(gate) * up, both products of the norm of x [M][D].
void practicum_norm_gate(const float* x, const bf16* norm, int plus_one, float eps, int kind, const void* w, const void* scales, bf16* hidden, int64_t M, int64_t D, int64_t I, int activation) {
  LOCKED;
  const Matrix matrix(kind, w, scales, 2 * I, D);
  gate_into(norm_and_pack(x, {norm, (bool)plus_one, eps}, M, D, matrix.kind), matrix, activation, hidden);
}

// qkv [T][(H + 2 kv) * C] floats: rotate queries into `query`, and keys and values into their slots.
void practicum_rotate_and_put(const float* qkv, const float* cos, const float* sin, bf16* query, bf16* pages, const int64_t* slots, int64_t T, int64_t heads, int64_t kv_heads, int64_t C) {
  LOCKED;
  const int64_t width = (heads + 2 * kv_heads) * C;
  over_rows(T, width, 1, [&](int64_t begin, int64_t end) {
    std::vector<bf16> key(kv_heads * C), value(kv_heads * C);
    for (int64_t t = begin; t < end; t++) {
      const float *row = qkv + t * width, *c = cos + t * C / 2, *s = sin + t * C / 2;
      rotate_heads(row, c, s, heads, C, query + t * heads * C);
      rotate_heads(row + heads * C, c, s, kv_heads, C, key.data());
      for (int64_t i = 0; i < kv_heads * C; i += 16) store_bf16(value.data() + i, load(row + (heads + kv_heads) * C + i));
      put(pages, kv_heads, C, slots[t], key.data(), value.data());
    }
  });
}

// Keys and values of tokens [.., kv_heads, C] into slots: count pairs of a token and a slot for it.
void practicum_put(const bf16* key, const bf16* value, bf16* pages, const int64_t* tokens, const int64_t* slots, int64_t count, int64_t kv_heads, int64_t C) {
  LOCKED;
  over_rows(count, kv_heads * C, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t from = tokens[i] * kv_heads * C;
      put(pages, kv_heads, C, slots[i], key + from, value + from);
    }
  });
}

void practicum_attend(const bf16* query, const bf16* pages, const int64_t* positions, const int32_t* tables, const int64_t* starts, bf16* out, int64_t T, int64_t heads, int64_t kv_heads, int64_t C, float scale, float softcap, int64_t window, int64_t sinks) {
  LOCKED;
  Attention{{pages, kv_heads, C}, {scale, softcap, window, sinks}, query, positions, tables, starts, out, heads}.run(*crew, T);
}

// logits [M][V] = hidden w^T * factor[m], with the peak and sum of every block of the vocabulary.
void practicum_head(const bf16* hidden, int kind, const void* w, const void* scales, const float* factor, float softcap, float* logits, float* peaks, float* totals, int64_t M, int64_t K, int64_t V) {
  LOCKED;
  const Matrix matrix(kind, w, scales, V, K);
  const Packed x = pack(hidden, M, K, matrix.kind);
  const int64_t blocks = (V + VOCABULARY_BLOCK - 1) / VOCABULARY_BLOCK;
  const bool far = outgrows_caches(logits, M, V);
  crew->share(V, VOCABULARY_BLOCK, [&](int64_t from, int64_t to) {
    std::vector<char> storage;
    float* block = (float*)room_for(storage, std::min(M, HEAD_ROWS) * VOCABULARY_BLOCK * 4);
    for (int64_t n = from; n < to; n += VOCABULARY_BLOCK)
      for (int64_t first = 0; first < M; first += HEAD_ROWS) {
        const Packed some = x.part(first, HEAD_ROWS);
        const int64_t end = std::min(n + VOCABULARY_BLOCK, to), width = end - n;
        multiply(some, matrix, n, end, LANES, [&](int64_t m, int64_t n0, f32x16 a, int64_t n1, f32x16 b) {
          if (softcap > 0) a = squash(a, softcap), b = squash(b, softcap);
          store(block + m * VOCABULARY_BLOCK + n0 - n, a * factor[first + m]);
          store(block + m * VOCABULARY_BLOCK + n1 - n, b * factor[first + m]);
        });
        for (int64_t m = 0; m < some.tokens; m++) {
          const float* row = block + m * VOCABULARY_BLOCK;
          float* out = logits + (first + m) * V + n;
          const int64_t place = (first + m) * blocks + n / VOCABULARY_BLOCK;
          summarise(row, width, peaks + place, totals + place);
          if (far) for (int64_t i = 0; i < width; i += LANES) store_past_caches(out + i, load(row + i));
          else memcpy(out, row, 4 * width);
        }
      }
    _mm_sfence();
  });
}

// A quantised copy of w [N][K]; `values` and `scales` are of the sizes that matrix.h gives.
void practicum_quantise(int kind, const bf16* w, void* values, void* scales, int64_t N, int64_t K) {
  LOCKED;
  const Matrix matrix(kind, values, scales, N, K);
  over_rows(N, K, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> spread(Matrix::width_of_int8(K));
    for (int64_t n = begin; n < end; n++) {
      if (kind == INT8) ((float*)scales)[n] = quantise_row(w + n * K, K, (int8_t*)values + n * matrix.stride, spread.data());
      else quantise_groups(w + n * K, K, (uint8_t*)values + n * matrix.stride, (bf16*)scales + n * (K / SHARERS) * 2);
    }
  });
}

// Natural log of each row's sum of exponentials.
void practicum_log_totals(const float* peaks, const float* totals, double* out, int64_t M, int64_t V) {
  const int64_t blocks = (V + VOCABULARY_BLOCK - 1) / VOCABULARY_BLOCK;
  float peak;
  for (int64_t m = 0; m < M; m++) out[m] = log_total(peaks + m * blocks, totals + m * blocks, blocks, &peak);
}

// A token for each draw from its row of logits.
void practicum_draw(const float* logits, const float* peaks, const float* totals, const int64_t* rows, const double* uniforms, int64_t* tokens, int64_t draws, int64_t V) {
  const int64_t blocks = (V + VOCABULARY_BLOCK - 1) / VOCABULARY_BLOCK;
  for (int64_t i = 0; i < draws; i++)
    tokens[i] = draw(logits + rows[i] * V, peaks + rows[i] * blocks, totals + rows[i] * blocks, V, uniforms[i]);
}

// Attention that reads pages before the recent ones coded in `bits`, or only `top` of them; see Far.
void practicum_attend_far(const bf16* query, const bf16* pages, const int64_t* positions, const int32_t* tables, const int64_t* starts, bf16* out, int64_t T, int64_t heads, int64_t kv_heads, int64_t C, float scale, float softcap, int64_t window, int64_t sinks,
                          int64_t recent, int64_t bits, const uint8_t* coded, const int32_t* far_tables, const bf16* bounds, int64_t top) {
  LOCKED;
  Attention{{pages, kv_heads, C}, {scale, softcap, window, sinks}, query, positions, tables, starts, out, heads, {recent, bits, coded, far_tables, bounds, top}}.run(*crew, T);
}

// Code `count` pages of one layer: from[i] of `pages` to to[i] of `coded`, and of `bounds`; either may be null.
void practicum_code(const bf16* pages, const int64_t* from, const int64_t* to, int64_t count, int64_t kv_heads, int64_t C, int64_t bits, uint8_t* coded, bf16* bounds) {
  LOCKED;
  const Pages source{pages, kv_heads, C};
  const CodedHead shape{bits, C};
  over_rows(count, kv_heads * PAGE * C, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      for (int64_t head = 0; head < kv_heads; head++) {
        const int64_t number = to[i] * kv_heads + head;
        if (coded) encode_page(shape, source.keys(from[i], head), source.values(from[i], head), coded + number * shape.bytes());
        if (bounds) bound_page(source.keys(from[i], head), C, bounds + number * 2 * C);
      }
  });
}

// The reverse, rounded to what the codes stand for.
void practicum_decode(const uint8_t* coded, const int64_t* from, const int64_t* to, int64_t count, int64_t kv_heads, int64_t C, int64_t bits, bf16* pages) {
  LOCKED;
  const Pages target{pages, kv_heads, C};
  const CodedHead shape{bits, C};
  over_rows(count, kv_heads * PAGE * C, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      for (int64_t head = 0; head < kv_heads; head++)
        decode_page(shape, coded + (from[i] * kv_heads + head) * shape.bytes(), (bf16*)target.keys(to[i], head), (bf16*)target.values(to[i], head));
  });
}
}  // extern "C"
