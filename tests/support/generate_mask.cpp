#include <algorithm>

#include "tests/support/generate.hpp"

namespace tessera::generate {
namespace {

using Integers = std::vector<std::int64_t>;

std::size_t index_of(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Drawn lists of one kind (full or partial): the blocks of each (batch, head, row).
struct DrawnLists {
  std::int64_t batch = 1, heads = 1, rows = 0;
  std::vector<Integers> blocks;
};

Pattern named_pattern(const MaskOptions& options, std::int64_t rows, std::int64_t cols) {
  Pattern pattern{rows, cols, {0}, {}};
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col)
      if (options.names(row, col)) pattern.indices.push_back(col);
    pattern.offsets.push_back(static_cast<std::int64_t>(pattern.indices.size()));
  }
  return pattern;
}

DrawnLists draw_lists(Random& random, std::int64_t batch, std::int64_t sets, std::int64_t rows,
                      std::int64_t cols, const std::vector<char>& mine,
                      const MaskOptions& options) {
  DrawnLists lists;
  lists.batch = random.chance(0.5) ? batch : 1;
  lists.heads = options.by_keys == Presence::always || random.chance(0.5) ? sets : 1;
  lists.rows = rows;
  for (std::int64_t n = 0; n < lists.batch * lists.heads; ++n) {
    const Pattern pattern =
        options.names ? named_pattern(options, rows, cols) : wild_pattern(random, rows, cols);
    for (std::int64_t row = 0; row < rows; ++row) {
      Integers blocks;
      for (auto p = pattern.offsets[index_of(row)]; p < pattern.offsets[index_of(row + 1)]; ++p) {
        const std::int64_t col = pattern.indices[index_of(p)];
        if (mine[index_of(row * cols + col)]) blocks.push_back(col);
      }
      random.shuffle(blocks);
      lists.blocks.push_back(std::move(blocks));
    }
  }
  return lists;
}

/// Puts drawn lists into tensors of either form; `tiles` > 0 also gives each entry a bit tile.
BlockList store_lists(Random& random, Memory& memory, const DrawnLists& lists, DType index,
                      std::int64_t tiles, Tensor& bit_tile) {
  BlockList list;
  Integers sizes, entries, tile_of;
  const auto add = [&](std::int64_t block) {
    entries.push_back(block);
    tile_of.push_back(block < 0 || tiles == 0 ? -1 : random.between(0, tiles - 1));
  };
  Integers shape;
  if (random.chance(0.5)) {
    std::int64_t capacity = random.between(0, 2);
    for (const Integers& row : lists.blocks) {
      capacity = std::max(capacity, static_cast<std::int64_t>(row.size()));
    }
    for (const Integers& row : lists.blocks) {
      sizes.push_back(static_cast<std::int64_t>(row.size()));
      for (std::int64_t block : row) add(block);
      for (auto n = static_cast<std::int64_t>(row.size()); n < capacity; ++n) add(-1);
    }
    list.counts = memory.list(index, {lists.batch, lists.heads, lists.rows}, sizes);
    shape = {lists.batch, lists.heads, lists.rows, capacity};
  } else {
    for (std::size_t n = 0; n < lists.blocks.size(); ++n) {
      if (n % index_of(lists.rows) == 0) sizes.push_back(static_cast<std::int64_t>(entries.size()));
      for (std::int64_t block : lists.blocks[n]) add(block);
      sizes.push_back(static_cast<std::int64_t>(entries.size()));
    }
    if (lists.rows == 0) sizes.assign(index_of(lists.batch * lists.heads), 0);
    list.offsets = memory.list(index, {lists.batch, lists.heads, lists.rows + 1}, sizes);
    shape = {static_cast<std::int64_t>(entries.size())};
  }
  list.indices = memory.list(index, shape, entries);
  if (tiles > 0) bit_tile = memory.list(index, shape, tile_of);
  return list;
}

Tensor draw_bits(Random& random, Memory& memory, std::int64_t tiles, std::int64_t block_q,
                 std::int64_t block_kv) {
  const std::int64_t bytes = (block_kv + 7) / 8;
  Integers bits;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const double density = random.pick({0.0, 0.1, 0.5, 0.9, 1.0});
    for (std::int64_t n = 0; n < block_q * bytes; ++n) {
      std::int64_t byte = 0;
      for (int bit = 0; bit < 8; ++bit) byte |= (random.chance(density) ? 1 : 0) << bit;
      bits.push_back(byte);
    }
  }
  return memory.list(DType::u8, {tiles, block_q, bytes}, bits);
}

}  // namespace

BlockMask wild_mask(Random& random, Memory& memory, std::int64_t batch, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t q_length, std::int64_t kv_length,
                    const MaskOptions& options) {
  BlockMask mask;
  // Lists that are not for all heads are per head or per KV head.
  const bool by_keys = heads != kv_heads && options.by_keys != Presence::never &&
                       (options.by_keys == Presence::always || random.chance(0.5));
  const std::int64_t sets = by_keys ? kv_heads : heads;
  const auto block = [&] {
    const auto size = random.pick<std::int64_t>({1, 3, 4, 8, 9, 16, 16, 32, 48, 64, 128});
    const std::int64_t least = std::max(size, options.smallest_block);
    return (least + options.block_step - 1) / options.block_step * options.block_step;
  };
  mask.block_q = options.block_q > 0 ? options.block_q : block();
  mask.block_kv = options.block_kv > 0 ? options.block_kv : block();
  const std::int64_t rows =
      (q_length + mask.block_q - 1) / mask.block_q + (random.chance(0.2) ? 1 : 0);
  const std::int64_t cols = (kv_length + mask.block_kv - 1) / mask.block_kv;
  const bool has_full = random.chance(0.7);
  const bool has_partial = !has_full || random.chance(0.5);
  // Each block may be in one kind of list only.
  std::vector<char> is_full(index_of(rows * cols)), is_partial(is_full.size());
  for (std::size_t n = 0; n < is_full.size(); ++n) {
    is_full[n] = has_full && (!has_partial || random.chance(0.5));
    is_partial[n] = !is_full[n];
  }
  const DType index = random.pick({DType::i32, DType::i64});
  Tensor unused;
  if (has_full) {
    mask.full =
        store_lists(random, memory, draw_lists(random, batch, sets, rows, cols, is_full, options),
                    index, 0, unused);
  }
  if (has_partial) {
    const std::int64_t tiles = random.chance(0.8) ? random.between(1, 5) : 0;
    mask.partial = store_lists(random, memory,
                               draw_lists(random, batch, sets, rows, cols, is_partial, options),
                               index, tiles, mask.bit_tile);
    if (tiles > 0) mask.bits = draw_bits(random, memory, tiles, mask.block_q, mask.block_kv);
  }
  return mask;
}

}  // namespace tessera::generate
