#pragma once

#include <cstdint>

#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// Lists of key blocks, one a row of query blocks, in one of two forms.
///   counts + indices (FlexAttention): counts [batch|1, heads, rows],
///                                     indices [batch|1, heads, rows, capacity]
///   offsets + indices:                offsets [batch|1, heads, rows + 1], absolute positions in
///                                     indices [total]
/// `heads` is one of three numbers: attention's heads, each with lists of its own; its kv_heads, a
/// set of lists for each head of keys, which the query heads of its group share; or 1 for all. Two
/// tensors of a mask that have more than one have the same number.
/// All tensors i32 or i64, of one dtype. Entries come in any order and are unique within a row.
struct BlockList {
  Tensor counts{};
  Tensor offsets{};
  Tensor indices{};

  explicit operator bool() const { return static_cast<bool>(indices); }
};

/// Which (query block, key block) pairs attention visits. Query i is in block i / block_q and key j
/// in block j / block_kv, counted inside the sequence; the last block of each side may be ragged.
///
/// `full` blocks are computed whole; `partial` blocks element by element under a bit tile.
/// Causality, windows and key ranges apply to both. A pair in neither list is never read.
struct BlockMask {
  std::int64_t block_q = 0, block_kv = 0;
  BlockList full{}, partial{};

  /// For each entry of partial.indices (same shape), which tile of `bits` it uses. Absent: the
  /// partial blocks have no element mask of their own.
  Tensor bit_tile{};
  /// [tiles, block_q, ceil(block_kv / 8)] u8: key j of the block is visible to query i where bit j
  /// % 8 of byte j / 8 in row i is set. Equal tiles are stored once.
  Tensor bits{};

  explicit operator bool() const { return block_q != 0 || full || partial; }
};

/// Checks the contents of a mask whose lists are in host memory against the lengths it is used
/// with. Throws `Error` naming the first offence.
TESSERA_EXPORT void validate(const BlockMask& mask, std::int64_t q_length, std::int64_t kv_length);

}  // namespace tessera
