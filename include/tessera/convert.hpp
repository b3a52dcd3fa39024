#pragma once

#include <cstdint>
#include <optional>

#include <tessera/block_mask.hpp>
#include <tessera/bsr.hpp>
#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

/// Conversions where the tensors are: all in host memory, or all on one GPU. Nothing here waits for
/// a GPU or needs a size that only data tells, so that every call may be captured in a graph and
/// replayed with other contents. The same inputs give the same bits. Lists in GPU memory are not
/// read back: entries that do not exist are skipped.
namespace tessera {

/// Writes every element of `dense` [rows, cols], or [batch, rows, cols]: stored blocks and zeros.
TESSERA_EXPORT void to_dense(const BsrMatrix& matrix, const Tensor& dense,
                             const Execution& execution = {});

/// Fills out.values with the blocks of `dense` [rows, cols], or [batch, rows, cols], that out's
/// lists name.
TESSERA_EXPORT void gather_blocks(const Tensor& dense, const BsrMatrix& out,
                                  const Execution& execution = {});

/// What stands for a block when blocks are chosen.
enum class BlockNorm : std::uint8_t {
  largest,         ///< the largest |x|
  sum_of_squares,  ///< rounded to f32 once
};

/// One f32 for each block of `dense`; the shape of `norms` [block rows, block cols] says how it is
/// cut. Both may have a leading batch. A block with a NaN gets a NaN.
TESSERA_EXPORT void block_norms(const Tensor& dense, BlockNorm norm, const Tensor& norms,
                                const Execution& execution = {});

/// Which blocks to keep: exactly one of the two.
struct BlockChoice {
  std::optional<float> above{};  ///< those with norm > above
  std::optional<std::int64_t>
      keep{};  ///< this many, or all: the largest (ties: first in row order)
};

/// Lists that `select_blocks` writes, contiguous, i32 or i64.
struct SelectedBlocks {
  Tensor row_offsets{};  ///< [block rows + 1]
  Tensor col_indices{};  ///< [capacity], same dtype; entries beyond the last offset are not written
  Tensor count{};        ///< [1], same dtype: blocks chosen, whether they fit the capacity or not
};

/// Writes the lists of the chosen blocks, sorted. Where more are chosen than there is room for, the
/// first in row order are listed, and the last offset is the capacity. NaN is larger than any
/// number.
TESSERA_EXPORT void select_blocks(const Tensor& norms, const BlockChoice& choice,
                                  const SelectedBlocks& out, const Execution& execution = {});

/// Lists by column that `transpose_lists` writes, contiguous, i32 or i64; with a leading batch
/// where the matrix has lists of its own for each.
struct ColumnLists {
  Tensor col_offsets{};  ///< [block cols + 1]
  Tensor row_indices{};  ///< [stored], same dtype: rows ascend within a column
  Tensor positions{};    ///< [stored], same dtype: where the block is stored
};

/// The same blocks listed by column of blocks. Values stay where they are.
TESSERA_EXPORT void transpose_lists(const BsrMatrix& matrix, const ColumnLists& out,
                                    const Execution& execution = {});

// ---- Block masks -------------------------------------------------------------------------------

// What these write are counts and indices, contiguous, i32 or i64. The last size of the indices is
// the capacity of each row, the caller's to choose: a row that needs more keeps its first entries,
// and no count exceeds it. Entries beyond a row's count are not written. No call takes a workspace.

/// Lists the blocks that are set in each row of u8 `blocks` [batch|1, heads|1, rows, cols],
/// ascending. `out` has the same batch, heads and rows.
TESSERA_EXPORT void list_blocks(const Tensor& blocks, const BlockList& out,
                                const Execution& execution = {});
/// Both lists of a mask, from two tensors of one shape: blocks set in `full`, and blocks set in
/// `partial` alone.
TESSERA_EXPORT void list_blocks(const Tensor& full, const Tensor& partial,
                                const BlockList& full_out, const BlockList& partial_out,
                                const Execution& execution = {});

/// Lists the blocks of the `k` largest scores in each row (of equal ones the first), ascending.
/// `scores` [batch|1, heads|1, rows, cols] are f32, f16 or bf16; `out` is as above, with a
/// capacity of at least k or all columns. A score of -inf or NaN is never chosen, which is how a
/// row is bounded: it may then have less than k.
TESSERA_EXPORT void top_k_blocks(const Tensor& scores, std::int64_t k, const BlockList& out,
                                 const Execution& execution = {});

/// Lists by column of blocks, which the backward pass walks.
struct BlockColumns {
  BlockList lists{};  ///< counts [batch|1, heads|1, cols], indices [.., capacity]: ascending rows
  Tensor entries{};   ///< optional, like the indices: which entry of its row's list the block is
};

/// The same blocks listed by column, of as many columns as `out` has. `list` comes in either form,
/// with the batch and heads of `out`, or one for all. `entries` finds what belongs to a block, such
/// as its bit tile. In a GPU's lists that hold a block twice, it counts once.
TESSERA_EXPORT void transpose_lists(const BlockList& list, const BlockColumns& out,
                                    const Execution& execution = {});

/// What `execution.workspace` has to hold for the calls that need scratch memory; a caller who
/// brings none leaves that to the library. In host memory: 0.
TESSERA_EXPORT std::int64_t select_blocks_workspace(const Tensor& norms);
TESSERA_EXPORT std::int64_t transpose_lists_workspace(const BsrMatrix& matrix);

}  // namespace tessera
