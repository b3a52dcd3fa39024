#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include <tessera/plan.hpp>

// What a problem is once its tensors' shapes have been checked against each other: plain numbers,
// no pointers. Everything that plans reads these; kernels read them instead of re-deriving shapes.
// `shape_of` throws Error(invalid_argument) for shapes, dtypes, strides or parameters that make no
// sense; it reads no tensor data and accepts null pointers, so that planning works from shapes
// alone.
namespace tessera::planning {

/// Where the tensors are. A plan serves every device of a kind that it was made for.
struct OnDevice {
  Device device;
  friend bool operator==(const OnDevice& a, const OnDevice& b) {
    return a.device.kind == b.device.kind;
  }
};

struct BlockShape {
  std::int64_t rows = 0, cols = 0;
  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

/// One operand of a product as the product sees it, transposition already applied to rows and cols.
struct OperandShape {
  bool sparse = false;
  bool transposed = false;
  DType dtype = DType::none;
  std::int64_t rows = 0, cols = 0;
  std::int64_t batch = 1;     // 1: shared by all
  BlockShape block;           // sparse: as stored, before transposition
  std::int64_t stored = 0;    // sparse: blocks in the list (the bound, where batches differ)
  DType index = DType::none;  // sparse
  // Whether TMA can read the matrix (or each stored block): rows or columns contiguous, everything
  // else at multiples of 16 bytes.
  bool tma_readable = true;
  // As stored: whether the matrix (or each block) has a stride of 1 from row to row, from column to
  // column.
  bool unit_row_stride = false, unit_col_stride = true;
  bool pool_fits = true;  // sparse: stored blocks span at most 64 GiB

  /// Whether TMA reads it line by line along the depth of a product; else along the other side.
  bool lies_along_depth(bool depth_is_rows) const {
    const std::int64_t stored_rows = sparse ? block.rows : transposed ? cols : rows;
    const std::int64_t stored_cols = sparse ? block.cols : transposed ? rows : cols;
    const std::int64_t depth = depth_is_rows ? stored_rows : stored_cols;
    const bool unit_depth = depth_is_rows ? unit_row_stride : unit_col_stride;
    const bool unit_extent = depth_is_rows ? unit_col_stride : unit_row_stride;
    // One element of depth lies either way; where extent is contiguous, its stride is no pitch.
    return depth == 1 ? !unit_extent : unit_depth;
  }
  friend bool operator==(const OperandShape&, const OperandShape&) = default;
};

/// What keeps a dense product from a BLAS (src/problem/blas_rules.hpp): the first argument that it
/// does not support. Not looked at on a CPU, with groups, or where a side is sparse.
enum class BlasLimit : std::uint8_t { none, a, b, out, alpha, activation, c, bias };

struct MatmulShape : OnDevice {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;  // results: batches, or groups
  bool grouped = false;
  GroupAxis group_axis = GroupAxis::rows;
  OperandShape a, b;
  DType out = DType::none;
  BlasLimit blas = BlasLimit::none;
  friend bool operator==(const MatmulShape&, const MatmulShape&) = default;
};

struct SddmmShape : OnDevice {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  OperandShape a, b, out;  // out is sparse
  bool pooled = false;     // the matrices of a batch share one pool of stored blocks
  friend bool operator==(const SddmmShape&, const SddmmShape&) = default;
};

struct SpgemmShape : OnDevice {
  std::int64_t m = 0, n = 0, k = 0;
  OperandShape a, b;
  friend bool operator==(const SpgemmShape&, const SpgemmShape&) = default;
};

enum class KvLayout : std::uint8_t { dense, packed, paged };

/// How scores are scaled. A plan serves every scale and cap: all that it depends on is whether the
/// softmax needs more than a scale above zero (AttentionShape::transforms_scores).
struct ScoreScale {
  float scale = 0, softcap = 0;
  friend bool operator==(const ScoreScale&, const ScoreScale&) { return true; }
};

struct AttentionShape : OnDevice, ScoreScale {
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t q_length = 0;               // longest sequence (bound where packed)
  std::int64_t kv_length = 0;              // likewise; paged: max_pages * page
  std::int64_t q_total = 0, kv_total = 0;  // rows in memory: batch * length where not packed
  std::int64_t dim = 0, dim_v = 0;
  bool q_packed = false;
  KvLayout kv_layout = KvLayout::dense;
  std::int64_t page = 0, pages = 0, max_pages = 0;
  DType dtype = DType::none, out = DType::none;
  // A softcap, or a scale of zero or less, which would turn the order of scores round.
  bool transforms_scores = false;
  std::int64_t window_left = -1,
               window_right = -1;                 // -1: no limit; causal is right = 0
  bool masked = false;                            // block mask present
  BlockShape mask_block;                          // rows: block_q, cols: block_kv
  std::int64_t mask_rows = 0, mask_capacity = 0;  // rows of lists, longest possible list
  std::int64_t mask_batch = 1, mask_heads = 1;    // sets of lists; 1: shared by all
  bool mask_bits = false;                         // partial blocks have element masks
  bool has_lse = false, has_sinks = false;
  bool has_kv_range = false;  // kv_begin or kv_end: used keys may differ between sequences
  // Whether TMA can read q, k and v: rows contiguous, everything else at multiples of 16 bytes.
  bool tma_readable = true;

  bool causal() const { return window_right == 0; }
  /// Query heads, one after the other, that share a set of lists.
  std::int64_t heads_per_list() const {
    return mask_heads > 0 && heads > mask_heads ? heads / mask_heads : 1;
  }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

/// The shape of the forward pass whose gradients are wanted.
struct AttentionBackwardShape : AttentionShape {
  friend bool operator==(const AttentionBackwardShape&, const AttentionBackwardShape&) = default;
};

struct MergeShape : OnDevice {
  std::int64_t parts = 0;
  std::int64_t batch = 1, length = 0, heads = 0, dim = 0;
  DType dtype = DType::none, out = DType::none;
  bool has_sinks = false;
  friend bool operator==(const MergeShape&, const MergeShape&) = default;
};

MatmulShape shape_of(const MatmulProblem& problem);
SddmmShape shape_of(const SddmmProblem& problem);
SpgemmShape shape_of(const SpgemmProblem& problem);
AttentionShape shape_of(const AttentionProblem& problem);
/// Also checks the gradients' shapes.
AttentionBackwardShape shape_of(const AttentionBackwardProblem& problem);
MergeShape shape_of(const MergeStatesProblem& problem);

// Checks what planning may not look at: null data with a nonzero size, and the contents of every
// list in host memory (offsets, counts, indices, page tables, key ranges). Called before each run;
// throws before anything is written. Lists in device memory are left alone.
void check_data(const MatmulProblem& problem, const MatmulShape& shape);
void check_data(const SddmmProblem& problem, const SddmmShape& shape);
void check_data(const SpgemmProblem& problem, const SpgemmShape& shape);
void check_data(const AttentionProblem& problem, const AttentionShape& shape);
void check_data(const AttentionBackwardProblem& problem, const AttentionShape& shape);
void check_data(const MergeStatesProblem& problem, const MergeShape& shape);

/// The shape of any problem, in the order of AnyProblem's alternatives.
using AnyShape = std::variant<MatmulShape, SddmmShape, SpgemmShape, AttentionShape,
                              AttentionBackwardShape, MergeShape>;
AnyShape shape_of(const AnyProblem& problem);
Op op_of(const AnyProblem& problem);
Op op_of(const AnyShape& shape);
Device device_of(const AnyShape& shape);
/// Equal shapes have equal hashes.
std::uint64_t hash_of(const AnyShape& shape);

}  // namespace tessera::planning
