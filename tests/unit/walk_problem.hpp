#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include <tessera/attention.hpp>
#include <tessera/host_tensor.hpp>

#include "src/kernels/row.hpp"
#include "src/problem/shape.hpp"
#include "tests/support/random.hpp"

namespace tessera::testing {

/// One bit per key, or per query.
class Bits {
 public:
  explicit Bits(std::int64_t size = 0) : words_(static_cast<std::size_t>(size + 63) / 64) {}

  bool operator[](std::int64_t at) const {
    return words_[static_cast<std::size_t>(at / 64)] >> at % 64 & 1;
  }
  void set(std::int64_t at) {
    words_[static_cast<std::size_t>(at / 64)] |= std::uint64_t{1} << at % 64;
  }
  /// The 64 bits from `at` on, a multiple of 64; none outside.
  std::uint64_t word(std::int64_t at) const {
    const auto index = static_cast<std::size_t>(at / 64);
    return at >= 0 && index < words_.size() ? words_[index] : 0;
  }
  /// Adds bits from `at` on. False where one is set already, or lies outside.
  bool add(std::int64_t at, std::uint64_t bits) {
    if (bits == 0) return true;
    const auto index = static_cast<std::size_t>(at / 64);
    if (at < 0 || index >= words_.size() || (words_[index] & bits) != 0) return false;
    words_[index] |= bits;
    return true;
  }
  std::int64_t count() const {
    std::int64_t sum = 0;
    for (const std::uint64_t word : words_) sum += std::popcount(word);
    return sum;
  }
  friend bool operator==(const Bits&, const Bits&) = default;

 private:
  std::vector<std::uint64_t> words_;
};

/// A random attention problem of small sequences, without values: q, k and v have no memory. It
/// keeps its parameters as plain numbers, from which `sees` decides by brute force.
class WalkProblem {
 public:
  using Integers = std::vector<std::int64_t>;
  generate::Random random;
  AttentionProblem problem;
  planning::AttentionShape shape;
  std::int64_t batch = 0, heads = 0, kv_heads = 0, q_length = 0, kv_length = 0;

  WalkProblem(std::uint64_t seed, const planning::Tile& tile) : random(seed) {
    draw_sizes(tile);
    draw_positions(tile);
    if (tile.row_groups > 1 || random.chance(0.5)) draw_mask(tile);
    shape = planning::shape_of(problem);
  }

  std::int64_t queries(std::int64_t b) const { return q_lengths_[index_of(b)]; }
  std::int64_t keys(std::int64_t b) const { return kv_lengths_[index_of(b)]; }
  std::int64_t q_begin(std::int64_t b) const { return q_begins_[index_of(b)]; }
  std::int64_t kv_begin(std::int64_t b) const { return kv_begins_[index_of(b)]; }
  /// The number of sets of lists. Heads that share a set see the same keys.
  std::int64_t sets() const { return problem.mask ? mask_heads_ : 1; }
  std::int64_t set_of(std::int64_t head) const { return head / (heads / sets()); }

  /// Whether a query sees a key by position and range.
  bool in_sight(std::int64_t b, std::int64_t i, std::int64_t j) const {
    const std::int64_t at = at_or(kv_position_, b, 0);
    const std::int64_t end = at_or(used_end_, b, keys(b)), key = at + j;
    const std::int64_t query = at_or(q_position_, b, at + end - queries(b)) + i;
    return j >= at_or(used_begin_, b, 0) && j < end && (left_ < 0 || key - query >= -left_) &&
           (right_ < 0 || key - query <= right_);
  }
  /// Whether the mask shows a key to a query.
  bool in_mask(std::int64_t b, std::int64_t set, std::int64_t i, std::int64_t j) const {
    if (!problem.mask) return true;
    const Block& block = block_at(b, set, i / problem.mask.block_q, j / problem.mask.block_kv);
    if (block.kind == Kind::none) return false;
    return block.tile < 0 ||
           in_tile(block.tile, i % problem.mask.block_q, j % problem.mask.block_kv);
  }
  bool in_tile(std::int64_t tile, std::int64_t i, std::int64_t j) const {
    return bits_[index_of((tile * problem.mask.block_q + i) * row_bytes_ + j / 8)] >> j % 8 & 1;
  }
  bool sees(std::int64_t b, std::int64_t set, std::int64_t i, std::int64_t j) const {
    return in_sight(b, i, j) && in_mask(b, set, i, j);
  }

  /// All keys that a query sees. Equal to calls of `sees` for each key, without their divisions.
  Bits keys_of(std::int64_t b, std::int64_t set, std::int64_t i) const {
    const std::int64_t at = at_or(kv_position_, b, 0), used_end = at_or(used_end_, b, keys(b));
    const std::int64_t diagonal = at_or(q_position_, b, at + used_end - queries(b)) + i - at;
    std::int64_t begin = at_or(used_begin_, b, 0), end = used_end;
    if (left_ >= 0) begin = std::max(begin, diagonal - left_);
    if (right_ >= 0) end = std::min(end, diagonal + right_ + 1);
    const std::int64_t block_q = problem.mask.block_q, block_kv = problem.mask.block_kv;
    Bits seen(keys(b));
    for (std::int64_t j = begin; j < end;) {
      Block block{.kind = Kind::full};
      std::int64_t first = 0, stop = end;  // keys of the block
      if (problem.mask) {
        block = block_at(b, set, i / block_q, j / block_kv);
        first = j / block_kv * block_kv, stop = std::min(end, first + block_kv);
      }
      for (; j < stop; ++j)
        if (block.kind != Kind::none &&
            (block.tile < 0 || in_tile(block.tile, i % block_q, j - first)))
          seen.set(j);
    }
    return seen;
  }

  /// A block mask that has these lists by column: row c names the rows whose lists name column c.
  /// Partial entries keep their bit tile. Invalid entries are left out.
  struct Columns {
    std::deque<HostTensor> owned;
    BlockMask mask;
  };
  Columns columns() {
    Columns made;
    made.mask.block_q = problem.mask.block_kv;
    made.mask.block_kv = problem.mask.block_q;
    Lists full, partial;
    for (std::int64_t list = 0; list < mask_batch_ * mask_heads_; ++list)
      for (std::int64_t col = 0; col < mask_cols_; ++col) {
        full.rows.emplace_back(), partial.rows.emplace_back(), partial.tiles.emplace_back();
        for (std::int64_t row = 0; row < mask_rows_; ++row) {
          const Block& block = blocks_[index_of((list * mask_rows_ + row) * mask_cols_ + col)];
          if (block.kind == Kind::full) full.rows.back().push_back(row);
          if (block.kind != Kind::partial) continue;
          partial.rows.back().push_back(row);
          partial.tiles.back().push_back(block.tile);
        }
      }
    made.mask.full = stored(full, mask_cols_, made.owned, nullptr);
    made.mask.partial =
        stored(partial, mask_cols_, made.owned, tiles_ > 0 ? &made.mask.bit_tile : nullptr);
    made.mask.bits = problem.mask.bits;
    return made;
  }

 private:
  enum class Kind : std::uint8_t { none, full, partial };
  struct Block {
    Kind kind = Kind::none;
    std::int64_t tile = -1;
  };
  struct Lists {
    std::vector<Integers> rows, tiles;
  };

  static std::size_t index_of(std::int64_t i) { return static_cast<std::size_t>(i); }
  static std::int64_t at_or(const Integers& list, std::int64_t b, std::int64_t otherwise) {
    return list.empty() ? otherwise : list[index_of(b)];
  }

  std::int64_t draw_length(std::int64_t longest) {
    if (random.chance(0.06)) return random.between(0, 1);
    if (random.chance(0.25)) return std::min(longest, 64 * random.between(1, 4));
    return random.between(0, random.chance(0.5) ? longest : longest / 4);
  }

  static Tensor store(std::deque<HostTensor>& owned, DType dtype, const Integers& sizes,
                      const Integers& values) {
    HostTensor& made = owned.emplace_back(dtype, sizes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::i64) {
        made.data<std::int64_t>()[i] = values[i];
      } else {
        made.data<std::int32_t>()[i] = static_cast<std::int32_t>(values[i]);
      }
    }
    return made.view();
  }
  DType index_type() { return random.pick({DType::i32, DType::i64}); }
  Tensor list(const Integers& values) {
    return store(owned_, index_type(), {static_cast<std::int64_t>(values.size())}, values);
  }

  /// A tensor without memory.
  static Tensor unread(std::initializer_list<std::int64_t> sizes) {
    return tensor(nullptr, DType::bf16, sizes);
  }

  void draw_sizes(const planning::Tile& tile) {
    // Sometimes many short sequences: more tiles than SMs.
    const bool many = random.chance(0.15);
    batch = many ? random.between(4, 40) : random.between(1, 3);
    kv_heads = random.between(1, many ? 4 : 3);
    heads = kv_heads * random.pick<std::int64_t>({1, 1, 1, 2, 3, 4, 8});
    const std::int64_t longest = many ? 150 : 300;
    q_length = draw_length(longest);
    kv_length = draw_length(longest);
    if (!many && random.chance(0.04)) kv_length = random.between(300, 3000);
    // Tiles whose row groups all have rows.
    if (tile.row_groups > 2 && random.chance(0.6))
      q_length = random.between(130, 300), kv_length = random.between(130, 300);
    q_lengths_.assign(index_of(batch), q_length);
    kv_lengths_.assign(index_of(batch), kv_length);
    q_begins_.assign(index_of(batch), 0);
    kv_begins_.assign(index_of(batch), 0);
    if (random.chance(0.25)) {
      q_length = pack(q_lengths_, q_begins_, longest, problem.q_offsets);
      problem.max_q_length = q_length;
      problem.q = unread({rows_of(q_lengths_, q_begins_), heads, tile.k});
      problem.out = unread({problem.q.size(0), heads, tile.v});
    } else {
      problem.q = unread({batch, q_length, heads, tile.k});
      problem.out = unread({batch, q_length, heads, tile.v});
    }
    if (random.chance(0.2)) {
      kv_length = pack(kv_lengths_, kv_begins_, longest, problem.kv_offsets);
      problem.max_kv_length = kv_length;
      const std::int64_t rows = rows_of(kv_lengths_, kv_begins_);
      problem.k = unread({rows, kv_heads, tile.k});
      problem.v = unread({rows, kv_heads, tile.v});
    } else {
      problem.k = unread({batch, kv_length, kv_heads, tile.k});
      problem.v = unread({batch, kv_length, kv_heads, tile.v});
    }
  }

  /// Returns the longest length; at least 1 if there is a row, as 0 means "not known".
  std::int64_t pack(Integers& lengths, Integers& begins, std::int64_t longest, Tensor& offsets) {
    Integers all{0};
    for (std::int64_t b = 0; b < batch; ++b) {
      lengths[index_of(b)] = draw_length(longest);
      begins[index_of(b)] = all.back();
      all.push_back(all.back() + lengths[index_of(b)]);
    }
    offsets = list(all);
    const std::int64_t found = *std::max_element(lengths.begin(), lengths.end());
    return std::max(found, std::min<std::int64_t>(all.back(), 1));
  }
  std::int64_t rows_of(const Integers& lengths, const Integers& begins) const {
    return begins.back() + lengths.back();
  }

  void draw_positions(const planning::Tile& tile) {
    const auto each = [&](std::int64_t least, std::int64_t most) {
      Integers values;
      for (std::int64_t b = 0; b < batch; ++b) values.push_back(random.between(least, most));
      return values;
    };
    if (random.chance(0.2)) {
      used_end_.clear(), used_begin_.clear();
      for (std::int64_t b = 0; b < batch; ++b) {
        used_end_.push_back(random.between(0, keys(b)));
        used_begin_.push_back(random.chance(0.5) ? 0 : random.between(0, used_end_.back()));
      }
      problem.kv_end = list(used_end_);
      if (random.chance(0.5)) {
        problem.kv_begin = list(used_begin_);
      } else {
        used_begin_.clear();
      }
    }
    if (random.chance(0.15)) problem.q_position = list(q_position_ = each(-20, 320));
    if (random.chance(0.15)) problem.kv_position = list(kv_position_ = each(-20, 320));
    // Narrow windows on both sides leave gaps between what row groups see.
    const bool narrow = tile.row_groups > 2 && random.chance(0.6);
    const std::int64_t widest = narrow ? 40 : random.pick<std::int64_t>({5, 70, 300});
    if (narrow) {
      problem.window_left = left_ = random.between(1, widest);
      problem.window_right = right_ = random.between(1, widest);
      return;
    }
    if (random.chance(0.35)) problem.causal = true, right_ = 0;
    if (random.chance(0.3)) problem.window_left = left_ = random.between(0, widest);
    if (!problem.causal && random.chance(0.25))
      problem.window_right = right_ = random.between(0, widest);
  }

  Block& block_at(std::int64_t b, std::int64_t set, std::int64_t row, std::int64_t col) {
    const std::int64_t list = (mask_batch_ > 1 ? b : 0) * mask_heads_ + set;
    return blocks_[index_of((list * mask_rows_ + row) * mask_cols_ + col)];
  }
  const Block& block_at(std::int64_t b, std::int64_t set, std::int64_t row,
                        std::int64_t col) const {
    return const_cast<WalkProblem*>(this)->block_at(b, set, row, col);
  }

  void draw_mask(const planning::Tile& tile) {
    BlockMask& mask = problem.mask;
    // Most rows with several lists per tile require blocks of as many queries as a row group has
    // rows.
    const bool fits = tile.row_groups > 1 && random.chance(0.6);
    mask.block_q =
        fits ? 64
             : random.pick<std::int64_t>({64, 64, 128, 128, 192, 256, 384, 16, 32, 48, 100, 7});
    mask.block_kv = random.pick<std::int64_t>({64, 64, 64, 128, 128, 192, 256, 16, 32, 48, 100, 9});
    if (fits && mask.block_kv % 64 != 0) mask.block_kv = 64;
    mask_rows_ = (q_length + mask.block_q - 1) / mask.block_q;
    mask_cols_ = (kv_length + mask.block_kv - 1) / mask.block_kv;
    mask_batch_ = random.chance(0.5) ? batch : 1;
    mask_heads_ = random.pick({std::int64_t{1}, kv_heads, heads});
    row_bytes_ = (mask.block_kv + 7) / 8;
    const bool has_full = random.chance(0.8), has_partial = !has_full || random.chance(0.5);
    tiles_ = has_partial && random.chance(0.7) ? random.between(1, 4) : 0;
    const double density = random.pick({0.0, 0.15, 0.5, 0.9, 1.0});
    blocks_.assign(index_of(mask_batch_ * mask_heads_ * mask_rows_ * mask_cols_), Block{});
    Lists full, partial;
    for (std::int64_t row = 0, at = 0; row < mask_batch_ * mask_heads_ * mask_rows_; ++row) {
      full.rows.emplace_back(), partial.rows.emplace_back(), partial.tiles.emplace_back();
      const double here = random.chance(0.1) ? 0.0 : random.chance(0.1) ? 1.0 : density;
      for (std::int64_t col = 0; col < mask_cols_; ++col, ++at) {
        if (!random.chance(here)) continue;
        const bool whole = has_full && (!has_partial || random.chance(0.5));
        blocks_[index_of(at)].kind = whole ? Kind::full : Kind::partial;
        (whole ? full : partial).rows.back().push_back(col);
      }
      random.shuffle(full.rows.back());
      random.shuffle(partial.rows.back());
      for (const std::int64_t col : partial.rows.back()) {
        const std::int64_t bits = tiles_ > 0 ? random.between(0, tiles_ - 1) : -1;
        partial.tiles.back().push_back(bits);
        blocks_[index_of(at - mask_cols_ + col)].tile = bits;
      }
      // Entries that name no block, or no bit tile, are ignored.
      if (random.chance(0.04)) full.rows.back().push_back(random.pick<std::int64_t>({-1, 9999}));
      if (random.chance(0.04)) {
        partial.rows.back().push_back(random.pick<std::int64_t>({-1, 9999}));
        partial.tiles.back().push_back(0);
      }
      if (tiles_ > 0 && mask_cols_ > 0 && random.chance(0.04)) {
        const std::int64_t col = random.between(0, mask_cols_ - 1);
        if (blocks_[index_of(at - mask_cols_ + col)].kind == Kind::none) {
          partial.rows.back().push_back(col);
          partial.tiles.back().push_back(random.pick<std::int64_t>({-1, 9999}));
        }
      }
    }
    if (has_full) mask.full = stored(full, mask_rows_, owned_, nullptr);
    if (has_partial)
      mask.partial = stored(partial, mask_rows_, owned_, tiles_ > 0 ? &mask.bit_tile : nullptr);
    if (tiles_ > 0) draw_bits();
  }

  BlockList stored(const Lists& lists, std::int64_t rows, std::deque<HostTensor>& owned,
                   Tensor* tiles) {
    BlockList made;
    Integers sizes, entries, of_entries;
    Integers entry_sizes;
    const bool by_counts = random.chance(0.5);
    const std::int64_t sets = static_cast<std::int64_t>(lists.rows.size());
    std::int64_t capacity = 0;
    for (const Integers& row : lists.rows)
      capacity = std::max(capacity, static_cast<std::int64_t>(row.size()));
    capacity += random.between(0, 1);
    for (std::int64_t at = 0; at < sets; ++at) {
      const Integers& row = lists.rows[index_of(at)];
      if (!by_counts && at % rows == 0) sizes.push_back(static_cast<std::int64_t>(entries.size()));
      entries.insert(entries.end(), row.begin(), row.end());
      if (tiles)
        of_entries.insert(of_entries.end(), lists.tiles[index_of(at)].begin(),
                          lists.tiles[index_of(at)].end());
      if (by_counts) {
        sizes.push_back(static_cast<std::int64_t>(row.size()));
        entries.resize(index_of((at + 1) * capacity), 0);
        if (tiles) of_entries.resize(entries.size(), 0);
      } else {
        sizes.push_back(static_cast<std::int64_t>(entries.size()));
      }
    }
    if (sets == 0 && !by_counts) sizes.assign(index_of(mask_batch_ * mask_heads_), 0);
    const DType index = index_type();
    Integers size_shape{mask_batch_, mask_heads_, by_counts ? rows : rows + 1};
    if (by_counts) {
      made.counts = store(owned, index, size_shape, sizes);
      entry_sizes = {mask_batch_, mask_heads_, rows, capacity};
    } else {
      made.offsets = store(owned, index, size_shape, sizes);
      entry_sizes = {static_cast<std::int64_t>(entries.size())};
    }
    made.indices = store(owned, index, entry_sizes, entries);
    if (tiles) *tiles = store(owned, index, entry_sizes, of_entries);
    return made;
  }

  void draw_bits() {
    HostTensor& bits =
        owned_.emplace_back(DType::u8, Integers{tiles_, problem.mask.block_q, row_bytes_});
    auto* const bytes = bits.data<std::uint8_t>();
    const std::int64_t count = tiles_ * problem.mask.block_q * row_bytes_;
    const std::int64_t denser = random.between(0, 2);
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint64_t drawn = random.bits();
      for (std::int64_t n = 0; n < denser; ++n) drawn |= random.bits();
      bytes[i] = static_cast<std::uint8_t>(drawn);
    }
    bits_ = bytes;
    problem.mask.bits = bits.view();
  }

  std::deque<HostTensor> owned_;
  Integers q_lengths_, kv_lengths_, q_begins_, kv_begins_;
  Integers used_begin_, used_end_, q_position_, kv_position_;
  std::int64_t left_ = -1, right_ = -1;
  std::int64_t mask_rows_ = 0, mask_cols_ = 0, mask_batch_ = 1, mask_heads_ = 1;
  std::int64_t tiles_ = 0, row_bytes_ = 0;
  std::vector<Block> blocks_;
  const std::uint8_t* bits_ = nullptr;
};

}  // namespace tessera::testing
