#pragma once

#include <cstdint>

#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// For each block of queries (a row), the list of key blocks to visit. There are two forms:
///
/// - counts and indices, as in FlexAttention: counts [batch|1, heads, rows], indices [batch|1,
///   heads, rows, capacity];
/// - offsets and indices: offsets [batch|1, heads, rows + 1] are absolute positions in indices
///   [total].
///
/// `heads` is the number of query heads (one set of lists per head), the number of KV heads (the
/// query heads of a group share a set), or 1 (all heads share one set). Within a mask, tensors with
/// more than one set agree on the number. All tensors have one dtype, i32 or i64. The entries of a
/// row may be in any order and must be unique.
struct BlockList {
  Tensor counts{};
  Tensor offsets{};
  Tensor indices{};

  explicit operator bool() const { return static_cast<bool>(indices); }
};

/// The (query block, key block) pairs that attention visits. Within each sequence, query i is in
/// block i / block_q and key j in block j / block_kv; the last block on each side may be ragged.
///
/// In a `full` block every query sees every key; in a `partial` block an element mask (`bits`)
/// selects pairs. Causal masking, windows and key ranges apply on top of both. Blocks in neither
/// list are skipped: their keys are not read.
struct BlockMask {
  std::int64_t block_q = 0, block_kv = 0;  ///< queries and keys per block
  BlockList full{}, partial{};

  /// The index into `bits` of each entry of partial.indices; same shape and dtype as
  /// partial.indices. If absent, partial blocks have no element mask.
  Tensor bit_tile{};
  /// Element masks, u8 [tiles, block_q, ceil(block_kv / 8)]: query i sees key j of the block if bit
  /// j % 8 of byte j / 8 in row i is set. Several blocks may use one tile.
  Tensor bits{};

  /// True if a mask is given.
  explicit operator bool() const { return block_q != 0 || full || partial; }
};

/// Checks a mask whose lists are in host memory for use with `q_length` queries and `kv_length`
/// keys: shapes and dtypes, counts or offsets within the lists, key blocks in range and unique
/// within a row, and existing bit tiles. Throws `Error` for the first violation.
TESSERA_EXPORT void validate(const BlockMask& mask, std::int64_t q_length, std::int64_t kv_length);

}  // namespace tessera
