// Scores of a block's keys, and its values weighted, in matrix tiles.
#pragma once

constexpr int GROUP = 16;  // query heads that are worked on side by side

struct BlockProducts {
  const int64_t C;
  const Block& block;
  const Block* ahead;  // read next: brought nearer meanwhile

  // s [GROUP][128] = query [GROUP][C] times keys; rows past the last are whatever stands there, and so are their results.
  void scores(int, const bf16* query, float (*s)[BLOCK]) const {
    for (int64_t p = 0; p < block.num_pages; p += 2) {
      const int64_t next = std::min(p + 1, block.num_pages - 1);
      const bf16 *a = block.keys[p], *b = block.keys[next];
      if (ahead) { bring_near(ahead->keys[std::min(p, ahead->num_pages - 1)], C); bring_near(ahead->keys[std::min(p + 1, ahead->num_pages - 1)], C); }
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
        if (ahead && c == 0) bring_near(ahead->values[std::min(p, ahead->num_pages - 1)], C);
        _tile_loadd(4, pairs[0] + p * PAGE / 2, 2 * BLOCK);
        _tile_loadd(5, block.values[p] + 2 * c, 4 * C); _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, block.values[p] + 2 * c + 32, 4 * C); _tile_dpbf16ps(1, 4, 6);
      }
      _tile_stored(0, out + c, 4 * C); _tile_stored(1, out + c + 16, 4 * C);
    }
  }
};
