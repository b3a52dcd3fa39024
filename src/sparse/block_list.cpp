#include "src/sparse/block_list.hpp"

#include <algorithm>

#include "src/sparse/support.hpp"

namespace tessera::sparse {
namespace {

using std::to_string;

// A batch or head dimension is one, for all, or the common size.
void join(std::int64_t& common, std::int64_t own, const std::string& argument, const char* what) {
  if (own != 1 && common != 1 && own != common) {
    refuse(argument + ": expected a " + what + " dimension of 1 or " + to_string(common) +
           ", got " + to_string(own));
  }
  if (own != 1) common = own;
}

std::int64_t at(const Tensor& tensor, int dim, std::int64_t index) {
  return tensor.size(dim) == 1 ? 0 : index * tensor.stride(dim);
}

}  // namespace

BlockLists::BlockLists(const BlockList& list, const std::string& name)
    : list_(list), name_("mask: " + name) {
  const auto& [counts, offsets, indices] = list_;
  if (!indices) {
    if (counts || offsets) refuse(name_ + ".indices: expected a list, got none");
    return;
  }
  if (static_cast<bool>(counts) == static_cast<bool>(offsets)) {
    refuse(name_ + ": expected either counts or offsets with the indices, got " +
           (counts ? "both" : "neither"));
  }
  const Tensor& lengths = counts ? counts : offsets;
  const std::string lengths_name = name_ + (counts ? ".counts" : ".offsets");
  require_host(lengths, 3, lengths_name);
  require_index_dtype(lengths, lengths_name);
  require_host(indices, counts ? 4 : 1, name_ + ".indices");
  if (indices.dtype != lengths.dtype) {
    refuse(name_ + ".indices: expected " + tessera::to_string(lengths.dtype) +
           " as the row lengths, got " + tessera::to_string(indices));
  }
  join(batch_, lengths.size(0), lengths_name, "batch");
  join(heads_, lengths.size(1), lengths_name, "head");
  rows_ = counts ? counts.size(2) : offsets.size(2) - 1;
  if (rows_ < 0) refuse(lengths_name + ": expected one more than the rows, got none");
  if (counts) {
    join(batch_, indices.size(0), name_ + ".indices", "batch");
    join(heads_, indices.size(1), name_ + ".indices", "head");
    if (indices.size(2) != rows_) {
      refuse(name_ + ".indices: expected " + to_string(rows_) + " rows as in counts, got " +
             tessera::to_string(indices));
    }
  }
}

std::string BlockLists::place(const char* part, std::int64_t b, std::int64_t h,
                              std::int64_t row) const {
  return name_ + "." + part + "[" + to_string(b) + ", " + to_string(h) + ", " + to_string(row) +
         "]";
}

std::int64_t BlockLists::offset(std::int64_t b, std::int64_t h, std::int64_t position) const {
  const Tensor& offsets = list_.offsets;
  return load_index(offsets, at(offsets, 0, b) + at(offsets, 1, h) + position * offsets.stride(2));
}

std::int64_t BlockLists::count(std::int64_t b, std::int64_t h, std::int64_t row) const {
  if (!present()) return 0;
  if (const Tensor& counts = list_.counts) {
    const std::int64_t count =
        load_index(counts, at(counts, 0, b) + at(counts, 1, h) + row * counts.stride(2));
    if (count < 0 || count > list_.indices.size(3)) {
      refuse(place("counts", b, h, row) + ": expected 0 to the capacity " +
             to_string(list_.indices.size(3)) + ", got " + to_string(count));
    }
    return count;
  }
  const std::int64_t begin = offset(b, h, row), end = offset(b, h, row + 1);
  if (begin < 0 || begin > end || end > list_.indices.size(0)) {
    refuse(place("offsets", b, h, row) + ": expected a range within 0 to the " +
           to_string(list_.indices.size(0)) + " indices, got " + to_string(begin) + " to " +
           to_string(end));
  }
  return end - begin;
}

std::int64_t BlockLists::entry(const Tensor& tensor, std::int64_t b, std::int64_t h,
                               std::int64_t row, std::int64_t position) const {
  if (!list_.counts) return load_index(tensor, (offset(b, h, row) + position) * tensor.stride(0));
  return load_index(tensor, at(tensor, 0, b) + at(tensor, 1, h) + row * tensor.stride(2) +
                                position * tensor.stride(3));
}

std::vector<std::int64_t> BlockLists::row(std::int64_t b, std::int64_t h, std::int64_t row,
                                          std::int64_t kv_blocks) const {
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(count(b, h, row)));
  for (std::size_t t = 0; t < blocks.size(); ++t) {
    blocks[t] = entry(list_.indices, b, h, row, static_cast<std::int64_t>(t));
    if (blocks[t] < 0 || blocks[t] >= kv_blocks) {
      refuse(place("indices", b, h, row) + ": expected key blocks below " + to_string(kv_blocks) +
             ", got " + to_string(blocks[t]));
    }
  }
  return blocks;
}

MaskLists::MaskLists(const BlockMask& mask)
    : full(mask.full, "full"), partial(mask.partial, "partial") {
  require_at_least(mask.block_q, 1, "mask: block_q");
  require_at_least(mask.block_kv, 1, "mask: block_kv");
  batch = full.batch();
  heads = full.heads();
  join(batch, partial.batch(), partial.name(), "batch");
  join(heads, partial.heads(), partial.name(), "head");
  if (static_cast<bool>(mask.bit_tile) != static_cast<bool>(mask.bits)) {
    refuse("mask: bit_tile and bits: expected both or neither, got " +
           std::string(mask.bits ? "bits" : "bit_tile") + " alone");
  }
  if (!mask.bits) return;
  if (!partial.present()) refuse("mask: bits: expected a partial list that uses them, got none");
  require_host(mask.bit_tile, mask.partial.indices.rank, "mask: bit_tile");
  require_index_dtype(mask.bit_tile, "mask: bit_tile");
  for (int i = 0; i < mask.bit_tile.rank; ++i) {
    if (mask.bit_tile.size(i) != mask.partial.indices.size(i)) {
      refuse("mask: bit_tile: expected the shape of partial.indices " +
             tessera::to_string(mask.partial.indices) + ", got " +
             tessera::to_string(mask.bit_tile));
    }
  }
  require_host(mask.bits, 3, "mask: bits");
  const std::int64_t bytes = blocks_of(mask.block_kv, 8);
  if (mask.bits.dtype != DType::u8 || mask.bits.size(1) != mask.block_q ||
      mask.bits.size(2) != bytes) {
    refuse("mask: bits: expected u8[tiles, " + to_string(mask.block_q) + ", " + to_string(bytes) +
           "], got " + tessera::to_string(mask.bits));
  }
}

}  // namespace tessera::sparse
