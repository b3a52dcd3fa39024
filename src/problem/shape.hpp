#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include <tessera/plan.hpp>

// The shape of a problem: plain numbers, no pointers, made from tensors whose shapes have been
// checked against each other. Planning and kernels read these instead of deriving them again.
// `shape_of` throws Error(invalid_argument) for invalid shapes, dtypes, strides or parameters. It
// reads no tensor data and accepts null pointers, so that planning works from shapes alone.
namespace tessera::planning {

/// The device of the tensors. Shapes are equal for all devices of one kind: a plan serves all of
/// them.
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

/// Which elements of an operand share a factor; of a batch, `matrix` has one for each. A line is a
/// row of A or a column of B.
enum class ScaleForm : std::uint8_t {
  none,
  tensor,
  matrix,
  line,
  line_128,
  block_128,
  stored_block
};

/// An operand of a product. `rows` and `cols` are those after transposition.
struct OperandShape {
  bool sparse = false;
  bool transposed = false;
  DType dtype = DType::none;
  std::int64_t rows = 0, cols = 0;
  std::int64_t batch = 1;     // 1: shared by all
  BlockShape block;           // sparse: as stored, before transposition
  std::int64_t stored = 0;    // sparse: stored blocks; an upper bound if matrices share a pool
  DType index = DType::none;  // sparse: dtype of the lists
  // Whether TMA can read the matrix (or each stored block): rows or columns are contiguous, and the
  // other strides and the address are multiples of 16 bytes.
  bool tma_readable = true;
  // Whether the matrix (or each block), as stored, has a stride of 1 between rows, and between
  // columns.
  bool unit_row_stride = false, unit_col_stride = true;
  bool pool_fits = true;  // stored blocks, or the matrices of a batch, span at most 64 GiB
  ScaleForm scale = ScaleForm::none;
  bool scale_fits = true;  // factors span less than 2^31 elements

  /// Whether the depth of the product (its inner dimension) is the contiguous dimension for TMA,
  /// rather than the other dimension.
  bool lies_along_depth(bool depth_is_rows) const {
    const std::int64_t stored_rows = sparse ? block.rows : transposed ? cols : rows;
    const std::int64_t stored_cols = sparse ? block.cols : transposed ? rows : cols;
    const std::int64_t depth = depth_is_rows ? stored_rows : stored_cols;
    const bool unit_depth = depth_is_rows ? unit_row_stride : unit_col_stride;
    const bool unit_extent = depth_is_rows ? unit_col_stride : unit_row_stride;
    // With a depth of 1, both dimensions may be contiguous: the other one decides.
    return depth == 1 ? !unit_extent : unit_depth;
  }
  friend bool operator==(const OperandShape&, const OperandShape&) = default;
};

/// What keeps a dense product from a BLAS (src/problem/blas_rules.hpp): the first argument that it
/// does not support. Not looked at on a CPU, with groups, or where a side is sparse.
enum class BlasLimit : std::uint8_t {
  none,
  a,
  b,
  out,
  alpha,
  activation,
  c,
  bias,
  // Of operands in FP8 alone (src/problem/blas_fp8.hpp).
  fp8_a,
  fp8_b,
  fp8_depth,
  fp8_out,
  fp8_scales,
  fp8_a_scale,
  fp8_b_scale,
  fp8_block_sizes
};

struct MatmulShape : OnDevice {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;  // number of results: the batch, or the number of groups
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

/// The scale and softcap of scores. They are not compared: a plan serves all values, and depends
/// only on whether scores need a transform (AttentionShape::transforms_scores).
struct ScoreScale {
  float scale = 0, softcap = 0;
  friend bool operator==(const ScoreScale&, const ScoreScale&) { return true; }
};

struct AttentionShape : OnDevice, ScoreScale {
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t q_length = 0;               // of the longest sequence; packed: an upper bound
  std::int64_t kv_length = 0;              // likewise; paged: max_pages * page
  std::int64_t q_total = 0, kv_total = 0;  // rows in memory: batch * length unless packed
  std::int64_t dim = 0, dim_v = 0;
  bool q_packed = false;
  KvLayout kv_layout = KvLayout::dense;
  std::int64_t page = 0, pages = 0, max_pages = 0;
  DType dtype = DType::none, out = DType::none;
  DType narrow_kv = DType::none;  // of k and v, where it is not that of q
  bool has_kv_scales = false, has_q_scale = false;
  bool kv_scales_by_rows = false;  // a factor for each 64 or 128 rows
  // Whether there is a softcap, or a scale of 0 or less, which does not keep the order of scores.
  bool transforms_scores = false;
  // Of FP8, where not `tma_readable`: whether it is true but for v, whose keys are contiguous
  // instead.
  bool v_by_keys = false;
  std::int64_t window_left = -1,
               window_right = -1;                 // -1: no limit; causal is right = 0
  bool masked = false;                            // whether there is a block mask
  BlockShape mask_block;                          // rows: block_q, cols: block_kv
  std::int64_t mask_rows = 0, mask_capacity = 0;  // rows of lists; upper bound of a list's length
  std::int64_t mask_batch = 1, mask_heads = 1;    // sets of lists; 1: shared by all
  bool mask_bits = false;                         // partial blocks have element masks
  bool has_lse = false, has_sinks = false;
  bool batch_invariant = false;  // a sequence's bits do not depend on the rest of the batch
  bool has_kv_range = false;     // kv_begin or kv_end: valid keys may differ between sequences
  // Whether TMA can read q, k and v: rows are contiguous, and the other strides and the address are
  // multiples of 16 bytes.
  bool tma_readable = true;

  bool causal() const { return window_right == 0; }
  /// The dtype of k and v.
  DType kv_dtype() const { return narrow_kv == DType::none ? dtype : narrow_kv; }
  /// The number of adjacent query heads that share a set of lists.
  std::int64_t heads_per_list() const {
    return mask_heads > 0 && heads > mask_heads ? heads / mask_heads : 1;
  }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

/// The shape of a backward problem: that of its forward pass, and how dout lies in memory.
struct AttentionBackwardShape : AttentionShape {
  // Whether TMA can read dout as an operand of the inputs' dtype.
  bool dout_readable = true;
  bool any_order = false;  // sums of dq may be added in any order

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

// Check what planning does not look at: null pointers of tensors with elements, and the contents of
// lists in host memory (offsets, counts, indices, page tables, key ranges). Called before each run,
// before anything is written. Lists in GPU memory are not read.
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
