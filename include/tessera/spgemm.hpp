#pragma once

#include <cstdint>
#include <memory>

#include <tessera/bsr.hpp>
#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/matmul.hpp>

namespace tessera {

/// A sparse-sparse product: out = alpha * A * B + beta * out, where A, B and out are BSR matrices
/// without a batch. With blocks r x k in A and k x c in B, the blocks of out are r x c.
struct SpgemmProblem {
  Operand a{}, b{};
  float alpha = 1.0f;
  float beta = 0.0f;  ///< multiplies the previous values of `out`
};

/// The pattern of a sparse-sparse product, found by `spgemm_symbolic`: its size depends on the
/// operands' patterns, so the caller can allocate the result only after this step. A plan owns its
/// lists and can be used again for other operands with the same patterns.
class TESSERA_EXPORT SpgemmPlan {
 public:
  SpgemmPlan();
  ~SpgemmPlan();
  SpgemmPlan(SpgemmPlan&&) noexcept;
  SpgemmPlan& operator=(SpgemmPlan&&) noexcept;

  std::int64_t rows() const;            ///< rows of the result
  std::int64_t cols() const;            ///< columns of the result
  std::int64_t block_rows() const;      ///< rows of a result block, r
  std::int64_t block_cols() const;      ///< columns of a result block, c
  std::int64_t stored_blocks() const;   ///< allocate out.values as [stored_blocks, r, c]
  std::int64_t block_products() const;  ///< pairs of blocks that are multiplied
  double flops() const;                 ///< FLOPs of these block products

  struct Data;
  const Data& data() const;
  explicit SpgemmPlan(std::unique_ptr<Data> data);

 private:
  std::unique_ptr<Data> data_;
};

/// Finds the pattern of the product from the operands' patterns; their values are not read.
///
/// On a GPU the call waits for the stream once, to read the size. The plan's lists are complete in
/// the order of that stream; another stream has to wait for it. A captured graph reads the plan's
/// memory: keep the plan while the graph may run, and do not destroy a plan during a capture.
TESSERA_EXPORT SpgemmPlan spgemm_symbolic(const SpgemmProblem& problem,
                                          const Execution& execution = {});

/// Computes the product and writes row_offsets, col_indices and values of `out`. The caller
/// allocates the three tensors with the plan's sizes; the lists are i32 or i64. Throws `Error` if
/// the plan was made for another problem.
TESSERA_EXPORT void spgemm_numeric(const SpgemmPlan& plan, const SpgemmProblem& problem,
                                   const BsrMatrix& out, const Execution& execution = {});

/// Computes the product at the stored blocks of `out` only, whose lists are inputs. Blocks of the
/// product that `out` does not store are not computed.
TESSERA_EXPORT void spgemm_numeric(const SpgemmProblem& problem, const BsrMatrix& out,
                                   const Execution& execution = {});

}  // namespace tessera
