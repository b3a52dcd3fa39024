#pragma once

#include <concepts>
#include <cstdint>

#include <tessera/bsr.hpp>
#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// One side of a product: a dense tensor [rows, cols] or [batch, rows, cols], or a BSR matrix;
/// taken transposed where asked, without moving a value.
struct Operand {
  Tensor dense{};
  BsrMatrix sparse{};
  bool transposed = false;

  Operand() = default;
  Operand(const Tensor& tensor) : dense(tensor) {}      // NOLINT: meant to convert
  Operand(const BsrMatrix& matrix) : sparse(matrix) {}  // NOLINT: meant to convert
  /// What owns its memory and gives a view of it: HostTensor, HostBsr.
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

/// The operand read the other way round.
inline Operand transpose(Operand operand) {
  operand.transposed = !operand.transposed;
  return operand;
}

enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh, silu };
TESSERA_EXPORT const char* to_string(Activation activation);

/// Whether a bias has one value a row of the result (length M) or a column of it (length N).
enum class BiasAxis : std::uint8_t { row, column };

/// What happens to a product before it is stored: out = activation(alpha * AB + beta * c + bias).
struct Epilogue {
  float alpha = 1.0f;
  float beta = 0.0f;
  Tensor c{};     ///< shape of the result; may be exactly `out` (same address, strides and dtype);
                  ///< absent with beta != 0: the result's former contents
  Tensor bias{};  ///< [M] or [N], or [batch, M] or [batch, N]; any float dtype
  BiasAxis bias_axis = BiasAxis::column;
  Activation activation = Activation::none;
};

/// Which dimension `MatmulProblem::group_offsets` cuts.
enum class GroupAxis : std::uint8_t {
  rows,   ///< rows of A and out: rows of group g multiply B[g] (routing to experts)
  inner,  ///< the inner dimension: out[g] = A[:, group g] * B[group g, :] (the experts' gradients)
};

/// out = epilogue(A * B), A [M, K], B [K, N], out [M, N], each with an optional leading batch (a
/// batch of one, or none, is shared). Each operand is dense or BSR.
struct MatmulProblem {
  Operand a{}, b{};
  Tensor out{};
  Epilogue epilogue{};

  /// Grouped product: groups + 1 non-decreasing offsets, i32 or i64, from 0 to the cut length.
  /// rows: A [total, K], B [groups, K, N], out [total, N]. inner: A [M, total], B [total, N], out
  /// [groups, M, N], dense operands. Offsets in GPU memory are not checked: rows of out before the
  /// first offset and from the last one on belong to no group and are zeros, whatever the epilogue.
  Tensor group_offsets{};
  GroupAxis group_axis = GroupAxis::rows;
};

/// The product sampled at a pattern: out.values = alpha * (A * B at the stored blocks) + beta *
/// out.values. A [M, K], B [K, N] dense, optionally batched; out gives the pattern and takes the
/// values.
struct SddmmProblem {
  Operand a{}, b{};
  BsrMatrix out{};
  float alpha = 1.0f;
  float beta = 0.0f;
};

TESSERA_EXPORT void matmul(const MatmulProblem& problem, const Execution& execution = {});
TESSERA_EXPORT void sddmm(const SddmmProblem& problem, const Execution& execution = {});

}  // namespace tessera
