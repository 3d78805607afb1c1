// Products of 32 weight rows with up to 32 tokens in matrix tiles.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

// The thread's tiles, set up for as long as this lives.
struct Tiles {
  struct alignas(64) Config { uint8_t palette = 1, start_row = 0, reserved[14] = {}; uint16_t row_bytes[16] = {}; uint8_t rows[16] = {}; };
  static bool allow() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
  Tiles() {
    Config config;
    for (int i = 0; i < 8; i++) { config.row_bytes[i] = 64; config.rows[i] = 16; }
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
};

#define DOT(sum, rows, tokens) do { if constexpr (INT8) _tile_dpbssd(sum, rows, tokens); else _tile_dpbf16ps(sum, rows, tokens); } while (0)
template <bool INT8, int BLOCKS, class Out>
static inline void product(const char* const* w, int64_t width, const char* const* x, int64_t, Ahead& ahead, Out& out) {
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
