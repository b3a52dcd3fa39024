#pragma once

#include <cstdint>
#include <optional>

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

/// What `execution.workspace` has to hold for the calls that need scratch memory; a caller who
/// brings none leaves that to the library. In host memory: 0.
TESSERA_EXPORT std::int64_t select_blocks_workspace(const Tensor& norms);
TESSERA_EXPORT std::int64_t transpose_lists_workspace(const BsrMatrix& matrix);

}  // namespace tessera
