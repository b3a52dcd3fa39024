#include <algorithm>
#include <vector>

#include "src/plan/check.hpp"

namespace tessera::planning {
namespace {

// Where row (batch, head, row) of a list tensor begins; a batch or head of one stands for all.
std::int64_t place(const Tensor& list, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return (list.size(0) == 1 ? 0 : batch * list.stride(0)) +
         (list.size(1) == 1 ? 0 : head * list.stride(1)) + row * list.stride(2);
}

// The lists that start at rows: counts or offsets, whichever the form has.
const Tensor& heads_of_rows(const BlockList& list) {
  return list.offsets ? list.offsets : list.counts;
}

class MaskChecker {
 public:
  MaskChecker(const Where& where, const BlockMask& mask, const AttentionShape& shape)
      : where_(where),
        mask_(mask),
        seen_(static_cast<std::size_t>((shape.kv_length + mask.block_kv - 1) / mask.block_kv)) {}

  // One row of both lists: a block that came twice would count twice.
  void check_row(std::int64_t batch, std::int64_t head, std::int64_t row) {
    ++round_;
    if (mask_.full) check_entries(where_ / "full", mask_.full, Tensor{}, batch, head, row);
    if (mask_.partial) {
      check_entries(where_ / "partial", mask_.partial, mask_.bit_tile, batch, head, row);
    }
  }

 private:
  void check_entries(const Where& where, const BlockList& list, const Tensor& tiles,
                     std::int64_t batch, std::int64_t head, std::int64_t row) {
    const std::int64_t at = place(heads_of_rows(list), batch, head, row);
    // Entries are a row of a table, or a piece of the one pool.
    std::int64_t base = 0, tile_base = 0, first = 0, count = 0;
    if (list.offsets) {
      OffsetsRule rule;
      rule.total = list.indices.size(0);
      rule.from_zero = false;
      check_offsets(where / "offsets", list.offsets, at, 1, rule);
      first = read_entry(list.offsets, at, 0);
      count = read_entry(list.offsets, at, 1) - first;
    } else {
      count = read_index(list.counts, at);
      const std::int64_t capacity = list.indices.size(3);
      if (count < 0 || count > capacity) {
        refuse(where / "counts", words("counts 0 to ", capacity, ", what indices can hold"),
               words(count, " in row ", row));
      }
      base = place(list.indices, batch, head, row);
      if (tiles) tile_base = place(tiles, batch, head, row);
    }
    const auto columns = static_cast<std::int64_t>(seen_.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t column = read_entry(list.indices, base, first + i);
      if (column < 0 || column >= columns) {
        refuse(where / "indices", words("key blocks in [0, ", columns, ")"),
               words(column, " in row ", row));
      }
      std::int64_t& seen = seen_[static_cast<std::size_t>(column)];
      if (seen == round_) {
        refuse(where / "indices", "key blocks that are unique in a row of full and partial lists",
               words(column, " twice in row ", row));
      }
      seen = round_;
      if (tiles) check_tile(read_entry(tiles, tile_base, first + i), row);
    }
  }

  void check_tile(std::int64_t tile, std::int64_t row) const {
    if (tile < 0 || tile >= mask_.bits.size(0)) {
      refuse(where_ / "bit_tile", words("tiles in [0, ", mask_.bits.size(0), ")"),
             words(tile, " in row ", row));
    }
  }

  Where where_;
  const BlockMask& mask_;
  std::vector<std::int64_t> seen_;  // the round in which a block of keys came last
  std::int64_t round_ = 0;
};

}  // namespace

void check_mask_lists(const Where& where, const BlockMask& mask, const AttentionShape& shape,
                      const Tensor& q_offsets) {
  const BlockList& any = mask.full ? mask.full : mask.partial;
  if (!on_host(any.indices)) return;
  std::int64_t batch = 1, heads = 1;
  for (const BlockList& list : {mask.full, mask.partial}) {
    for (const Tensor& tensor : {list.counts, list.offsets, list.indices}) {
      if (tensor.rank < 3) continue;  // absent, or one pool for all
      if (tensor.size(0) != 1) batch = tensor.size(0);
      if (tensor.size(1) != 1) heads = tensor.size(1);
    }
  }
  // Rows beyond a sequence's own queries are never read, so they may hold anything.
  const auto queries = [&](std::int64_t sequence) {
    return q_offsets ? read_entry(q_offsets, 0, sequence + 1) - read_entry(q_offsets, 0, sequence)
                     : shape.q_length;
  };
  MaskChecker checker(where, mask, shape);
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t length = 0;
    if (batch == shape.batch) {
      length = queries(b);
    } else {
      for (std::int64_t s = 0; s < shape.batch; ++s) length = std::max(length, queries(s));
    }
    const std::int64_t rows = (length + mask.block_q - 1) / mask.block_q;
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t row = 0; row < rows; ++row) checker.check_row(b, h, row);
    }
  }
}

}  // namespace tessera::planning
