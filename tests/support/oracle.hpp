#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include <tessera/tessera.hpp>

// The truth that every kernel is compared with: a second implementation of each operation in double
// precision, as plain loops that follow the public headers. It shares no code with the library
// except the problem structs, so that a mistake in one cannot hide in the other. All tensors must
// be in host memory. The oracle never writes outputs of a problem, and reads them only where the
// problem does
// (`beta` without a `c`).
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

/// A product's true values, and per element the largest error of f32 accumulation in any order,
/// before rounding to the output's dtype.
struct Product {
  DenseArray value;
  DenseArray slack;
};

/// Where products are added up: in f32; or in the tensor cores' sums of FP8, which align the 32
/// products of a step to the largest one and keep 13 bits below it, before they are added in f32.
enum class Sums : std::uint8_t { f32, fp8 };
/// Error of the latter, relative to the sum of the products' sizes. Of the 33 numbers of a step
/// each loses half a bit of the 13 on average, and their largest is about a fifth of the sum of the
/// sizes of normal values: 33 / 2 / 5 units of 2^-13, times two.
inline constexpr double kFp8Unit = 0x1p-10;

/// Results in the shape of `out`. `former`: contents of out before the run; if beta != 0 and there
/// is no c, they are read, or out itself if `former` is null.
Product matmul(const MatmulProblem& problem, const DenseArray* former = nullptr,
               Sums sums = Sums::f32);
/// Results in the shape of `out.values`; `former`: its values before the run. Positions that no row
/// lists keep their former value.
Product sddmm(const SddmmProblem& problem, const DenseArray* former = nullptr);
/// Values of the product at the pattern of `out`.
Product spgemm(const SpgemmProblem& problem, const BsrMatrix& out,
               const DenseArray* former = nullptr);
/// The pattern of the product of two BSR matrices.
Pattern spgemm_pattern(const SpgemmProblem& problem);

// ---- Attention ---------------------------------------------------------------------------------

/// Lengths and positions of one sequence of a batch, with the defaults filled in.
struct Sequence {
  std::int64_t q_begin = 0, q_length = 0;  // rows of packed tensors
  std::int64_t kv_row = 0, kv_length = 0;  // the same; paged: capacity of the table's row
  std::int64_t kv_begin = 0, kv_end = 0;   // used keys
  std::int64_t q_position = 0, kv_position = 0;
};
/// The number of sequences of a problem, and one of them.
std::int64_t batches(const AttentionProblem& problem);
Sequence sequence(const AttentionProblem& problem, std::int64_t batch);
/// Whether query i of a sequence sees its key j, for query head `head`.
bool visible(const AttentionProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t i,
             std::int64_t j);
/// How many (query, key) pairs are visible, over all batches and heads.
std::int64_t visible_pairs(const AttentionProblem& problem);

/// `*_slack`: error of an f32 evaluation that the emulation may not show by chance (order of sums,
/// an exp with an error of a few ulps). Same shapes as out and lse.
struct Attention {
  DenseArray out, lse;
  DenseArray out_slack, lse_slack;
};
Attention attention(const AttentionProblem& problem, Sums sums = Sums::f32);
/// The same with the precision of a good kernel: scores and softmax in f32, P rounded to the
/// inputs' dtype, out and lse rounded. The error budget derives from its distance from the truth.
/// No slacks.
Attention attention_emulated(const AttentionProblem& problem);

/// The requested gradients, whose tensors are present; the others stay empty.
struct AttentionGradients {
  DenseArray dq, dk, dv, dsinks;
  DenseArray dq_slack, dk_slack, dv_slack, dsinks_slack;
};
/// Analytic gradients from the inputs alone: forward.out and forward.lse are recomputed, not read.
AttentionGradients attention_backward(const AttentionBackwardProblem& problem);
/// With the precision of a good kernel, from out and lse rounded to their dtypes: P and the
/// gradients of scores are rounded to the inputs' dtype before they are multiplied.
AttentionGradients attention_backward_emulated(const AttentionBackwardProblem& problem);

struct Merged {
  Product out;
  Product lse;
};
/// Results in the shapes of out and lse. Parts whose lse is -inf are not read.
Merged merge_states(const MergeStatesProblem& problem);

}  // namespace tessera::oracle
