#include <algorithm>

#include "src/plan/check.hpp"

namespace tessera::planning {
namespace {

struct ListShape {
  std::int64_t rows = 0, capacity = 0;
  std::int64_t batch = 1, heads = 1;  // 1: shared by all
};

std::int64_t blocks_of(std::int64_t length, std::int64_t block) {
  return (length + block - 1) / block;
}

bool any_part(const BlockList& list) { return list || list.counts || list.offsets; }

// Either form of lists; `rows` is how many the queries need.
ListShape check_block_list(const Where& where, const BlockList& list, std::int64_t rows,
                           const AttentionShape& shape) {
  const bool by_offsets = static_cast<bool>(list.offsets);
  if (by_offsets && list.counts) refuse(where, "either counts or offsets", "both");
  if (!by_offsets && !list.counts) refuse(where, "counts or offsets beside indices", "neither");
  const Where head = where / (by_offsets ? "offsets" : "counts");
  const Tensor& heads_of_rows = by_offsets ? list.offsets : list.counts;
  const Dim dims[] = {{"batch", shape.batch, true},
                      {"heads", shape.heads, true},
                      {by_offsets ? "rows + 1" : "rows"}};
  check_list(head, heads_of_rows, shape.device, dims);
  ListShape result;
  result.rows = heads_of_rows.size(2) - (by_offsets ? 1 : 0);
  if (result.rows < rows) {
    refuse(head,
           words("at least ", rows, " rows, for ", shape.q_length, " queries in blocks of ",
                 shape.mask_block.rows,
                 shape.q_packed ? " (max_q_length bounds the longest sequence)" : ""),
           to_string(heads_of_rows));
  }

  const Where indices = where / "indices";
  const Dim flat[] = {{"total"}};
  const Dim table[] = {{"batch", shape.batch, true},
                       {"heads", shape.heads, true},
                       {"rows", result.rows},
                       {"capacity"}};
  check_list(indices, list.indices, shape.device, by_offsets ? Dims(flat) : Dims(table));
  check_same_dtype(indices, list.indices, heads_of_rows.dtype, by_offsets ? "offsets" : "counts");
  result.capacity = list.indices.size(list.indices.rank - 1);
  result.batch = heads_of_rows.size(0);
  result.heads = heads_of_rows.size(1);
  if (!by_offsets) {
    result.batch = std::max(result.batch, list.indices.size(0));
    result.heads = std::max(result.heads, list.indices.size(1));
  }
  return result;
}

// The element masks of partial blocks.
void check_bits(const Where& where, const BlockMask& mask, const AttentionShape& shape) {
  if (!mask.bit_tile && !mask.bits) return;
  if (!mask.partial) refuse(where / "partial", "lists, as bit_tile or bits is given", "none");
  if (!mask.bit_tile) refuse(where / "bit_tile", "a tile for each partial block", "none");

  const Tensor& indices = mask.partial.indices;
  const Dim entries[] = {{"batch", indices.size(0)},
                         {"heads", indices.size(1)},
                         {"rows", indices.size(2)},
                         {"capacity", indices.size(3)}};
  const Dim total[] = {{"total", indices.size(0)}};
  check_list(where / "bit_tile", mask.bit_tile, shape.device,
             indices.rank == 1 ? Dims(total) : Dims(entries));
  check_same_dtype(where / "bit_tile", mask.bit_tile, indices.dtype, "partial.indices");
  const Dim bits[] = {
      {"tiles"}, {"block_q", mask.block_q}, {"ceil(block_kv / 8)", blocks_of(mask.block_kv, 8)}};
  check_list(where / "bits", mask.bits, shape.device, bits, dtypes({DType::u8}));
}

}  // namespace

void check_mask(const Where& where, const BlockMask& mask, AttentionShape& shape) {
  const bool full = any_part(mask.full), partial = any_part(mask.partial);
  if (!full && !partial && !mask.bit_tile && !mask.bits && mask.block_q == 0 &&
      mask.block_kv == 0) {
    return;
  }
  const auto check_block = [&](const char* name, std::int64_t block) {
    if (block < 1 || block > kMaxSize) refuse(where / name, "a block of 1 to 2^60", words(block));
  };
  check_block("block_q", mask.block_q);
  check_block("block_kv", mask.block_kv);
  if (!full && !partial) refuse(where, "full or partial lists of blocks", "neither");
  shape.masked = true;
  shape.mask_block = {mask.block_q, mask.block_kv};
  const std::int64_t rows = blocks_of(shape.q_length, mask.block_q);
  const std::int64_t columns = blocks_of(shape.kv_length, mask.block_kv);
  if (columns > kMaxKeyBlocks) {
    refuse(where / "block_kv", words("at most 2^28 blocks of keys, of ", shape.kv_length, " keys"),
           words(mask.block_kv));
  }

  ListShape lists[2];
  if (full) lists[0] = check_block_list(where / "full", mask.full, rows, shape);
  if (partial) lists[1] = check_block_list(where / "partial", mask.partial, rows, shape);
  if (full && partial && lists[0].rows != lists[1].rows) {
    refuse(where / "partial", words(lists[0].rows, " rows as full has"), words(lists[1].rows));
  }
  check_bits(where, mask, shape);
  shape.mask_rows = std::max(lists[0].rows, lists[1].rows);
  shape.mask_batch = std::max(lists[0].batch, lists[1].batch);
  shape.mask_heads = std::max(lists[0].heads, lists[1].heads);
  shape.mask_capacity = std::min(lists[0].capacity + lists[1].capacity, columns);
}

}  // namespace tessera::planning
