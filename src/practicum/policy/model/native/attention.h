// Attention of query tokens over keys and values in pages, in blocks of 128 positions.
//
// A query's result depends on its own keys alone: whatever block a key stands in, it is met in the
// same place of the same sum. That is why prefill, decode and the trainer agree bit for bit. Tokens
// that read the same pages (a chunk of a prompt, the samples of a group) are worked on side by side.
//
// A page holds 32 tokens of one key-value head: keys as [2][C/2][16 tokens][2], values as
// [16 pairs of tokens][C][2]. Pages of blocks that lie far enough before a query's own may be read
// from a coded copy (quantise.h), or only those that matter most (page_choice.h); how far is
// decided by the query's position, so that too does not depend on who computes beside it.
#pragma once
#include "attention_block.h"
#include "page_choice.h"
#include "threads.h"

struct Pages {
  const bf16* data;
  int64_t kv_heads, head_size;
  int64_t half() const { return kv_heads * PAGE * head_size; }  // keys, then values
  const bf16* keys(int64_t page, int64_t head) const { return data + page * 2 * half() + head * PAGE * head_size; }
  const bf16* values(int64_t page, int64_t head) const { return keys(page, head) + half(); }
};

// How pages before the recent ones are read. None of it applies where `recent` is negative.
struct Far {
  int64_t recent = -1;               // positions before a query's own block that are read exactly
  int64_t bits = 16;                 // 16: from the same pages as the recent ones
  const uint8_t* data = nullptr;     // [pages][kv_heads] coded heads
  const int32_t* tables = nullptr;   // page numbers for `data` and `bounds`, placed as those of recent pages
  const bf16* bounds = nullptr;
  int64_t top = 0;                   // read so many pages at most; 0: all

  int64_t end(int64_t position) const { return recent < 0 ? 0 : std::max<int64_t>(0, position / BLOCK * BLOCK - recent); }
};

struct Attention {
  Pages pages;
  Rule rule;
  const bf16* query;         // [tokens][heads][C]
  const int64_t* positions;  // [tokens]
  const int32_t* tables;     // page numbers of all sequences
  const int64_t* starts;     // [tokens] where each token's table begins
  bf16* out;                 // [tokens][heads][C]
  int64_t heads;
  Far far;

  void run(Threads& threads, int64_t tokens) const;
};

// Some tokens and their query heads of one key-value head, with the scratch to work on them.
class Stripe {
 public:
  // Where the results of single blocks go if others work on other blocks of the same tokens.
  struct Results { float *shares, *values; };  // [blocks][rows][peak, total] and [blocks][rows][C]

  explicit Stripe(const Attention& attention) : a(attention), C(attention.pages.head_size), coded{attention.far.bits, C} {}

  // `from`, `width`: which of the query heads of key-value head `head`.
  void set(int64_t begin, int64_t end, int64_t head, int64_t from, int64_t width) {
    this->head = head; this->width = width; this->begin = begin;
    first_head = head * (a.heads / a.pages.kv_heads) + from;
    count = (end - begin) * width;
    lines.resize(((count + GROUP) * C + 31) / 32);
    query = (bf16*)lines.data();
    values.assign(count * C, 0.f);
    running.resize(count);
    position.resize(count);
    deepest = 0;
    for (int64_t i = 0; i < count; i++) {
      const int64_t token = begin + i / width;
      memcpy(query + i * C, a.query + (token * a.heads + first_head + i % width) * C, 2 * C);
      position[i] = a.positions[token];
      deepest = std::max(deepest, position[i]);
      running[i] = {-INFINITY, 0.f, values.data() + i * C};
    }
    held = nullptr;
  }
  int64_t num_blocks() const { return deepest / BLOCK + 1; }
  int64_t num_rows() const { return count; }

  // Blocks [from, to), added up or left in `results`.
  void work(int64_t from, int64_t to, const Results* results) {
    if (a.far.top) for (int64_t i = 0; i < count; i += width) meet_chosen(i);
    items.clear();
    for (int64_t b = from; b < to; b++) plan(b * BLOCK);
    for (size_t k = 0; k < items.size(); k++) {
      const Item& item = items[k];
      const Item* next = k + 1 < items.size() && items[k + 1].table[0] != item.table[0] ? &items[k + 1] : nullptr;
      Block block, ahead;
      gather(item.table, item.num_pages, item.is_far, block);
      block.first = item.first;
      if (next && is_coded(*next)) fetch_coded(*next), next = nullptr;
      if (next) gather(next->table, next->num_pages, next->is_far, ahead);
      meet(block, next ? &ahead : nullptr, item.i, item.n, item.first / BLOCK, results);
    }
  }

  void add_up(const Results& results) {
    for (int64_t b = 0; b < num_blocks(); b++)
      for (int64_t i = 0; i < count; i++) {
        const float* share = results.shares + (b * count + i) * 2;
        if (share[1] > 0.f) running[i].add(share[0], share[1], results.values + (b * count + i) * C, C);
      }
  }

  void finish() const {
    for (int64_t i = 0; i < count; i++) {
      bf16* to = a.out + ((begin + i / width) * a.heads + first_head + i % width) * C;
      const float factor = 1.f / running[i].total;
      for (int64_t c = 0; c < C; c += 16) store_bf16(to + c, load(running[i].values + c) * factor);
    }
  }

 private:
  // Query heads [i, i + n) that read the same pages of a block: they go together.
  struct Item { int64_t first, i, n, num_pages; const int32_t* table; bool is_far; };

  bool is_coded(const Item& item) const { return item.is_far && a.far.bits < 16; }

  void plan(int64_t first) {
    for (int64_t i = 0; i < count;) {
      const bool is_far = first < a.far.end(position[i]);
      int64_t next = i + width;
      if ((is_far && a.far.top) || !sees_any(a.rule, position[i], first, first + BLOCK - 1)) { i = next; continue; }
      const int64_t start = a.starts[begin + i / width];
      const int32_t* table = (is_far && a.far.bits < 16 ? a.far.tables : a.tables) + start + first / PAGE;
      int64_t last = std::min(position[i], first + BLOCK - 1);
      const int64_t there = last / PAGE + 1 - first / PAGE;
      for (; next + width <= count && next + width - i <= GROUP; next += width) {
        if (is_far != (first < a.far.end(position[next])) || !sees_any(a.rule, position[next], first, first + BLOCK - 1)) break;
        const int64_t other = a.starts[begin + next / width], its_last = std::min(position[next], first + BLOCK - 1);
        if (other != start && (its_last / PAGE + 1 - first / PAGE != there || memcmp(a.tables + other + first / PAGE, a.tables + start + first / PAGE, 4 * there) ||
                               (is_far && a.far.bits < 16 && memcmp(a.far.tables + other + first / PAGE, table, 4 * there)))) break;
        last = std::max(last, its_last);
      }
      items.push_back({first, i, next - i, last / PAGE + 1 - first / PAGE, table, is_far});
      i = next;
    }
  }

  // The pages that matter most to one token, four at a time.
  void meet_chosen(int64_t i) {
    const int64_t there = a.far.end(position[i]) / PAGE, start = a.starts[begin + i / width];
    const PageChoice choice{a.far.bounds, a.pages.kv_heads, C, a.far.top};
    choice.choose(query + i * C, width, a.far.tables + start, there, head, rank, weights, chosen);
    const int32_t* table = (a.far.bits < 16 ? a.far.tables : a.tables) + start;
    for (size_t p = 0; p < chosen.size(); p += PAGES) {
      int32_t some[PAGES];
      const int64_t n = std::min<int64_t>(PAGES, chosen.size() - p);
      for (int64_t j = 0; j < n; j++) some[j] = table[chosen[p + j]];
      Block block;
      gather(some, n, true, block);
      block.first = -1;
      meet(block, nullptr, i, width, 0, nullptr);
      held = nullptr;
    }
  }

  void gather(const int32_t* table, int64_t num_pages, bool is_far, Block& block) {
    block.num_pages = num_pages;
    if (!is_far || a.far.bits == 16) {
      for (int64_t p = 0; p < num_pages; p++) block.keys[p] = a.pages.keys(table[p], head), block.values[p] = a.pages.values(table[p], head);
      return;
    }
    decoded.resize(2 * BLOCK * C / 32);
    const bool again = held && held_pages == num_pages && !memcmp(held, table, 4 * num_pages);
    for (int64_t p = 0; p < num_pages; p++) {
      bf16 *keys = (bf16*)decoded.data() + 2 * p * PAGE * C, *values = keys + PAGE * C;
      block.keys[p] = keys, block.values[p] = values;
      if (!again) decode_page(coded, a.far.data + (table[p] * a.pages.kv_heads + head) * coded.bytes(), keys, values);
    }
    held = table; held_pages = num_pages;
  }

  void fetch_coded(const Item& item) const {
    for (int64_t p = 0; p < item.num_pages; p++) {
      const uint8_t* page = a.far.data + (item.table[p] * a.pages.kv_heads + head) * coded.bytes();
      for (int64_t i = 0; i < coded.bytes(); i += 64) _mm_prefetch((const char*)page + i, _MM_HINT_T1);
    }
  }

  void meet(const Block& block, const Block* ahead, int64_t i, int64_t n, int64_t number, const Results* results) {
    BlockWork{a.rule, C, block, ahead}.meet((int)n, query + i * C, position.data() + i, met);
    for (int64_t q = 0; q < n; q++) {
      if (results) {
        const int64_t at = number * count + i + q;
        results->shares[2 * at] = met.peak[q], results->shares[2 * at + 1] = met.total[q];
        memcpy(results->values + at * C, met.values + q * C, 4 * C);
      } else running[i + q].add(met.peak[q], met.total[q], met.values + q * C, C);
    }
  }

  const Attention& a;
  const int64_t C;
  const CodedHead coded;
  int64_t head = 0, first_head = 0, width = 0, begin = 0, count = 0, deepest = 0;
  std::vector<Line> lines, decoded;
  bf16* query = nullptr;  // [rows][C], in `lines`
  std::vector<bf16> weights;
  std::vector<float> values;
  std::vector<Running> running;
  std::vector<int64_t> position;
  const int32_t* held = nullptr;  // the table of the pages in `decoded`
  int64_t held_pages = 0;
  std::vector<std::pair<float, int32_t>> rank;
  std::vector<int32_t> chosen;
  std::vector<Item> items;
  Met met;
};

inline void Attention::run(Threads& threads, int64_t tokens) const {
  constexpr int64_t TALLEST = 64, LONG = 16;  // tokens of a stripe; blocks worth sharing out
  const int64_t per = heads / pages.kv_heads, slices = (per + GROUP - 1) / GROUP, tall = std::max<int64_t>(1, GROUP / per);
  const int64_t lanes = pages.kv_heads * slices, parts = threads.count();
  // Tall stripes bring a block near once for many tokens; short ones balance the threads.
  const int64_t height = std::min(TALLEST, std::max(tall, tokens * lanes / (8 * parts))), stripes = (tokens + height - 1) / height;
  auto set = [&](Stripe& stripe, int64_t unit) {
    const int64_t lane = unit / stripes, from = lane % slices * GROUP, begin = unit % stripes * height;
    stripe.set(begin, std::min(begin + height, tokens), lane / slices, from, std::min<int64_t>(per - from, GROUP));
  };
  int64_t deepest = 0;
  for (int64_t t = 0; t < tokens; t++) deepest = std::max(deepest, positions[t]);
  const int64_t blocks = deepest / BLOCK + 1, units = stripes * lanes;
  if (parts == 1 || units >= 4 * parts || blocks < LONG || far.top) {
    threads.run([&](int part, int) {
      const Tiles tiles;
      Stripe stripe(*this);
      // Neighbouring stripes have similar lengths, so dealing them out in turn balances the parts.
      for (int64_t unit = part; unit < units; unit += parts) {
        set(stripe, unit);
        stripe.work(0, stripe.num_blocks(), nullptr);
        stripe.finish();
      }
    });
    return;
  }
  // Few tokens and many keys: everybody takes blocks of all tokens, and the results are added up in
  // the order of the blocks, as one thread would have done.
  const int64_t rows = height * std::min<int64_t>(per, GROUP), C = pages.head_size;
  std::vector<float> shares(units * blocks * rows * 2, 0.f), values(units * blocks * rows * C);
  auto results = [&](int64_t unit) { return Stripe::Results{shares.data() + unit * blocks * rows * 2, values.data() + unit * blocks * rows * C}; };
  threads.run([&](int part, int) {
    const Tiles tiles;
    Stripe stripe(*this);
    for (int64_t unit = 0; unit < units; unit++) {
      set(stripe, unit);
      const int64_t n = stripe.num_blocks();
      const Stripe::Results here = results(unit);
      stripe.work(n * part / parts, n * (part + 1) / parts, &here);
    }
  });
  threads.run([&](int part, int) {
    Stripe stripe(*this);
    for (int64_t unit = part; unit < units; unit += parts) {
      set(stripe, unit);
      stripe.add_up(results(unit));
      stripe.finish();
    }
  });
}

// Put rotated keys and values [tokens][kv_heads][C] into their slots (page * 32 + place in it).
static inline void put(bf16* data, int64_t kv_heads, int64_t C, int64_t slot, const bf16* key, const bf16* value) {
  const int64_t half = kv_heads * PAGE * C, place = slot % PAGE;
  bf16* page = data + slot / PAGE * 2 * half;
  for (int64_t head = 0; head < kv_heads; head++, key += C, value += C) {
    uint32_t* k = (uint32_t*)(page + head * PAGE * C + place / 16 * 16 * C) + place % 16;
    for (int64_t c = 0; c < C / 2; c++) memcpy(k + c * 16, key + 2 * c, 4);
    bf16* v = page + half + head * PAGE * C + place / 2 * 2 * C + place % 2;
    for (int64_t c = 0; c < C; c++) v[2 * c] = value[c];
  }
}
