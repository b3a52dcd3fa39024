#pragma once

#include <concepts>
#include <cstdint>

#include <tessera/bsr.hpp>
#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// An operand of a product: a dense tensor [rows, cols] or [batch, rows, cols], or a BSR matrix.
/// With `transposed`, the product uses its transpose; no data is moved. Both operands have one
/// dtype, or each is e4m3 or e5m2.
struct Operand {
  Tensor dense{};
  BsrMatrix sparse{};
  bool transposed = false;
  /// Optional, f32, beside values in FP8 of `matmul`: factors that the values are multiplied by, as
  /// `quantize` writes them. [1] for all. Beside a dense tensor, with up to its rank and its own
  /// batch or 1, as it is stored (let a line be a row of A or a column of B):
  ///
  /// - [rows, 1] or [1, cols]: a factor for each line;
  /// - [rows, ceil(cols / 128)] or [ceil(rows / 128), cols]: for each 128 elements of a line;
  /// - [ceil(rows / 128), ceil(cols / 128)]: for each 128 x 128 elements.
  ///
  /// Beside a BSR matrix [nnzb] or [batch, nnzb]: a factor for each stored block. Values times
  /// their factor have to be in the range of f32. A factor of NaN makes NaN of what it multiplies.
  Tensor scale{};

  Operand() = default;
  Operand(const Tensor& tensor) : dense(tensor) {}      // NOLINT: meant to convert
  Operand(const BsrMatrix& matrix) : sparse(matrix) {}  // NOLINT: meant to convert
  /// From an owner of memory with a view(), such as HostTensor or HostBsr.
  template <class Owner>
  requires requires(const Owner& owner) {
    { owner.view() } -> std::convertible_to<Tensor>;
  }
  Operand(const Owner& owner) : dense(owner.view()) {}  // NOLINT: meant to convert
  template <class Owner>
  requires requires(const Owner& owner) {
    { owner.view() } -> std::convertible_to<BsrMatrix>;
  }
  Operand(const Owner& owner) : sparse(owner.view()) {}  // NOLINT: meant to convert
  bool is_sparse() const { return static_cast<bool>(sparse); }
};

/// The transposed operand.
inline Operand transpose(Operand operand) {
  operand.transposed = !operand.transposed;
  return operand;
}

/// The operand with factors.
inline Operand scaled(Operand operand, const Tensor& scale) {
  operand.scale = scale;
  return operand;
}

/// The activation functions of `Epilogue`: `gelu` uses erf, `gelu_tanh` the tanh approximation.
enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh, silu };
/// The enumerator's name: "none", "relu", ...
TESSERA_EXPORT const char* to_string(Activation activation);

/// Whether a bias has one value per row of the result (length M) or per column (length N).
enum class BiasAxis : std::uint8_t { row, column };

/// The epilogue of a product: out = activation(alpha * AB + beta * c + bias).
struct Epilogue {
  float alpha = 1.0f;
  float beta = 0.0f;
  /// Optional, shape of the result. It may be `out` itself (same address, strides and dtype). If it
  /// is absent and beta is not 0, the previous contents of `out` are used.
  Tensor c{};
  Tensor bias{};  ///< optional, [M] or [N], or [batch, M] or [batch, N]; any float dtype
  BiasAxis bias_axis = BiasAxis::column;
  Activation activation = Activation::none;
};

/// The dimension that `MatmulProblem::group_offsets` divides into groups.
enum class GroupAxis : std::uint8_t {
  rows,   ///< rows of A and out: out[group g, :] = A[group g, :] * B[g] (mixture of experts)
  inner,  ///< the inner dimension: out[g] = A[:, group g] * B[group g, :] (gradients of experts)
};

/// A product: out = epilogue(A * B), with A [M, K], B [K, N] and out [M, N]. Each operand is dense
/// or BSR and may have a leading batch dimension; an operand with no batch, or a batch of 1, is
/// shared by all.
struct MatmulProblem {
  Operand a{}, b{};
  Tensor out{};
  Epilogue epilogue{};

  /// For a grouped product: groups + 1 non-decreasing offsets, i32 or i64, from 0 to the total
  /// length of the grouped dimension.
  ///
  /// - rows: A [total, K], B [groups, K, N], out [total, N]; B may be BSR.
  /// - inner: A [M, total], B [total, N], out [groups, M, N]; dense operands only.
  ///
  /// Offsets in GPU memory are not checked. Rows of out that belong to no group, before the first
  /// offset or after the last one, become 0, without the epilogue.
  Tensor group_offsets{};
  GroupAxis group_axis = GroupAxis::rows;
};

/// Sampled dense-dense product: computes A * B at the stored blocks of out only; out.values = alpha
/// * (A * B) + beta * out.values. A [M, K] and B [K, N] are dense and may be batched. The lists of
/// out are inputs, its values are the output.
struct SddmmProblem {
  Operand a{}, b{};
  BsrMatrix out{};
  float alpha = 1.0f;
  float beta = 0.0f;
};

/// Computes a product: plans, prepares and runs. On a GPU the call returns when the work is in the
/// stream. Throws `Error` if the problem is invalid or no kernel supports it; nothing is written
/// then.
TESSERA_EXPORT void matmul(const MatmulProblem& problem, const Execution& execution = {});
/// Computes a sampled dense-dense product; otherwise like `matmul`.
TESSERA_EXPORT void sddmm(const SddmmProblem& problem, const Execution& execution = {});

}  // namespace tessera
