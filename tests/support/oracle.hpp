#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include <tessera/tessera.hpp>

// The truth that every kernel is measured against: each operation written once more in double
// precision, as plain loops straight from the public headers. It shares no code with the library
// beyond the problem structs, so that a mistake in one cannot hide in the other. All tensors must
// be in host memory. Outputs of a problem are never written here, and read only where the problem
// says so (`beta` without a `c`).
namespace tessera::oracle {

/// A row-major array of doubles.
struct DenseArray {
  std::vector<std::int64_t> shape;
  std::vector<double> values;

  DenseArray() = default;
  explicit DenseArray(std::vector<std::int64_t> dims, double fill = 0.0);

  bool empty() const { return values.empty(); }
  std::int64_t size(int dim) const { return shape[static_cast<std::size_t>(dim)]; }
  std::size_t offset(std::initializer_list<std::int64_t> index) const;
  double& operator()(std::initializer_list<std::int64_t> index) { return values[offset(index)]; }
  double operator()(std::initializer_list<std::int64_t> index) const {
    return values[offset(index)];
  }
};

// ---- Element types -----------------------------------------------------------------------------

/// A tensor of any dtype and strides as doubles.
DenseArray read(const Tensor& tensor);
/// Writes doubles into a tensor of any strides, rounded to its dtype (nearest even).
void write(const Tensor& tensor, const DenseArray& array);
/// The nearest value of a float dtype, ties to even; overflow gives an infinity.
double round_to(DType dtype, double value);
/// The distance between neighbouring values of a float dtype around `value`.
double ulp(DType dtype, double value);
/// The largest finite value of a float dtype.
double largest(DType dtype);

// ---- Products ----------------------------------------------------------------------------------

/// A product's true value and, for each element, how far f32 accumulation in any order may be from
/// it before the result is rounded to the output's dtype.
struct Product {
  DenseArray value;
  DenseArray slack;
};

/// Shape of `out`. `former` are the contents of out from before the run; it is read (or else out
/// itself) where beta != 0 and there is no c.
Product matmul(const MatmulProblem& problem, const DenseArray* former = nullptr);
/// Shape of `out.values`; `former` likewise are its values from before the run. Positions that no
/// row lists keep their former value.
Product sddmm(const SddmmProblem& problem, const DenseArray* former = nullptr);
/// Values of the product at the pattern that `out` has.
Product spgemm(const SpgemmProblem& problem, const BsrMatrix& out,
               const DenseArray* former = nullptr);
/// Where the product of two BSR matrices has blocks.
Pattern spgemm_pattern(const SpgemmProblem& problem);

// ---- Attention ---------------------------------------------------------------------------------

/// Lengths and positions of one sequence of a batch, with the defaults filled in.
struct Sequence {
  std::int64_t q_begin = 0, q_length = 0;  // rows of packed tensors
  std::int64_t kv_row = 0, kv_length = 0;  // likewise; paged: capacity of the table's row
  std::int64_t kv_begin = 0, kv_end = 0;   // used keys
  std::int64_t q_position = 0, kv_position = 0;
};
/// Batches of a problem, and what it says of one.
std::int64_t batches(const AttentionProblem& problem);
Sequence sequence(const AttentionProblem& problem, std::int64_t batch);
/// Whether query i of a sequence sees key j of it, under head `head` of the queries.
bool visible(const AttentionProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t i,
             std::int64_t j);
/// How many (query, key) pairs are visible, over all batches and heads.
std::int64_t visible_pairs(const AttentionProblem& problem);

/// `*_slack`: what an f32 evaluation may be off by for reasons that an emulation can miss by luck
/// (order of sums, an exp of a few ulps). Same shapes as out and lse.
struct Attention {
  DenseArray out, lse;
  DenseArray out_slack, lse_slack;
};
Attention attention(const AttentionProblem& problem);
/// The same with the working precision of a good kernel: f32 scores and softmax, probabilities
/// rounded to the inputs' dtype, out and lse rounded. Its distance from the truth is the yardstick
/// of the error budget. No slacks.
Attention attention_emulated(const AttentionProblem& problem);

/// Those that the problem asks for (its tensor is present); the others stay empty.
struct AttentionGradients {
  DenseArray dq, dk, dv, dsinks;
  DenseArray dq_slack, dk_slack, dv_slack, dsinks_slack;
};
/// Analytic gradients from the inputs alone: forward.out and forward.lse are recomputed, not read.
AttentionGradients attention_backward(const AttentionBackwardProblem& problem);
/// With the working precision of a good kernel, from out and lse rounded to their dtypes:
/// probabilities and score gradients rounded to the inputs' dtype before they are multiplied.
AttentionGradients attention_backward_emulated(const AttentionBackwardProblem& problem);

struct Merged {
  Product out;
  Product lse;
};
/// Shapes of out and of lse. Parts whose lse is -inf are not looked at.
Merged merge_states(const MergeStatesProblem& problem);

}  // namespace tessera::oracle
