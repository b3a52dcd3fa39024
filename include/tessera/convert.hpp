#pragma once

#include <cstdint>
#include <optional>

#include <tessera/block_mask.hpp>
#include <tessera/bsr.hpp>
#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

/// Conversions on the device that the tensors are on: all in host memory, or all on one GPU. No
/// call waits for the GPU or depends on a size that only the data determines, so every call can be
/// captured in a graph and replayed with other contents. Results are deterministic. Lists in GPU
/// memory are not checked; entries out of range are skipped.
namespace tessera {

/// Converts a BSR matrix to dense. `dense` [rows, cols] or [batch, rows, cols] has the dtype of the
/// values; every element is written, with zeros where no block is stored.
TESSERA_EXPORT void to_dense(const BsrMatrix& matrix, const Tensor& dense,
                             const Execution& execution = {});

/// Copies the stored blocks of `out` from a dense tensor: out.values is written, the lists of `out`
/// are inputs. `dense` is [rows, cols] or [batch, rows, cols], of the dtype of the values.
TESSERA_EXPORT void gather_blocks(const Tensor& dense, const BsrMatrix& out,
                                  const Execution& execution = {});

/// The norms that `block_norms` computes.
enum class BlockNorm : std::uint8_t {
  largest,         ///< max |x|
  sum_of_squares,  ///< sum of x^2, rounded to f32 once
};

/// Computes the norm of every block of `dense` [rows, cols] or [batch, rows, cols], a float tensor.
/// `norms` is f32 [block rows, block cols], with the batch of `dense`; its shape determines the
/// block size. The norm of a block with a NaN is NaN.
TESSERA_EXPORT void block_norms(const Tensor& dense, BlockNorm norm, const Tensor& norms,
                                const Execution& execution = {});

/// The blocks that `select_blocks` keeps. Set exactly one of the two.
struct BlockChoice {
  std::optional<float> above{};  ///< keep blocks with norm > above
  /// Keep the blocks with the largest norms, this many or all. Ties go to the first in row order.
  std::optional<std::int64_t> keep{};
};

/// The lists that `select_blocks` writes: contiguous, i32 or i64, all of one dtype.
struct SelectedBlocks {
  Tensor row_offsets{};  ///< [block rows + 1]
  Tensor col_indices{};  ///< [capacity]; entries after the last offset are not written
  Tensor count{};        ///< [1]: selected blocks, even if they exceed the capacity
};

/// Selects blocks by their norms, f32 [block rows, block cols], and writes BSR lists with sorted
/// columns. If more blocks are selected than the capacity allows, the lists hold the first ones in
/// row order, and the last offset equals the capacity. NaN counts as larger than any number.
TESSERA_EXPORT void select_blocks(const Tensor& norms, const BlockChoice& choice,
                                  const SelectedBlocks& out, const Execution& execution = {});

/// The lists by block column that `transpose_lists` writes: contiguous, i32 or i64, all of one
/// dtype, with a leading batch dimension if the matrix has batched lists.
struct ColumnLists {
  Tensor col_offsets{};  ///< [block cols + 1]
  Tensor row_indices{};  ///< [stored]: block rows, ascending within a block column
  Tensor positions{};    ///< [stored]: position of the block in values
};

/// Lists the stored blocks of a BSR matrix by block column. Values are not moved.
TESSERA_EXPORT void transpose_lists(const BsrMatrix& matrix, const ColumnLists& out,
                                    const Execution& execution = {});

// ---- Block masks -------------------------------------------------------------------------------

// These calls write counts and indices, contiguous, i32 or i64. The last dimension of the indices
// is the capacity of a row; the caller chooses it. A row with more entries keeps the first ones, so
// that its count is at most the capacity. Indices after a row's count are not written. No call
// needs a workspace.

/// Lists the nonzero blocks of each row of `blocks`, u8 [batch|1, heads|1, rows, cols], in
/// ascending order. `out` has contiguous counts and indices with the same batch, heads and rows. If
/// a row has more blocks than the capacity of out.indices, the first ones are kept.
TESSERA_EXPORT void list_blocks(const Tensor& blocks, const BlockList& out,
                                const Execution& execution = {});
/// Writes both lists of a mask from two tensors of one shape: `full_out` lists the blocks set in
/// `full`, and `partial_out` those set in `partial` but not in `full`.
TESSERA_EXPORT void list_blocks(const Tensor& full, const Tensor& partial,
                                const BlockList& full_out, const BlockList& partial_out,
                                const Execution& execution = {});

/// Lists the blocks with the `k` largest scores of each row, in ascending order of columns; among
/// equal scores the first columns win. `scores` is f32, f16 or bf16 [batch|1, heads|1, rows, cols];
/// `out` is as for `list_blocks`, with a capacity of at least min(k, cols). Scores of -inf and NaN
/// are never selected, so a row may list fewer than k blocks: use -inf to exclude blocks.
TESSERA_EXPORT void top_k_blocks(const Tensor& scores, std::int64_t k, const BlockList& out,
                                 const Execution& execution = {});

/// The lists of a block mask by column, as the backward pass walks them.
struct BlockColumns {
  BlockList lists{};  ///< counts [batch|1, heads|1, cols], indices [.., capacity]: ascending rows
  Tensor entries{};   ///< optional, shape of the indices: the block's entry in its row's list
};

/// Lists the blocks of a mask by column; `out` determines the number of columns. `list` is in
/// either form, with the batch and heads of `out` or 1. `entries` locates per-block data such as
/// bit tiles. A block that occurs twice in a row of a list in GPU memory is listed once.
TESSERA_EXPORT void transpose_lists(const BlockList& list, const BlockColumns& out,
                                    const Execution& execution = {});

/// Bytes of `Execution::workspace` for `select_blocks`; 0 for host memory. The library allocates
/// the workspace if the caller gives none.
TESSERA_EXPORT std::int64_t select_blocks_workspace(const Tensor& norms);
/// Bytes of `Execution::workspace` for `transpose_lists` of a BSR matrix; 0 for host memory.
TESSERA_EXPORT std::int64_t transpose_lists_workspace(const BsrMatrix& matrix);

}  // namespace tessera
