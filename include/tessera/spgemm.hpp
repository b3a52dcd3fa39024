#pragma once

#include <cstdint>
#include <memory>

#include <tessera/bsr.hpp>
#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/matmul.hpp>

namespace tessera {

/// A BSR matrix times a BSR matrix, BSR out. Both operands sparse, unbatched, blocks r x k and k x
/// c.
struct SpgemmProblem {
  Operand a{}, b{};
  float alpha = 1.0f;
  float beta = 0.0f;  ///< multiplies the values already in `out`
};

/// The result's pattern: its size comes from data, so it is a step of its own. A value; holds its
/// lists and stays usable for any operands with the same patterns.
class TESSERA_EXPORT SpgemmPlan {
 public:
  SpgemmPlan();
  ~SpgemmPlan();
  SpgemmPlan(SpgemmPlan&&) noexcept;
  SpgemmPlan& operator=(SpgemmPlan&&) noexcept;

  std::int64_t rows() const;
  std::int64_t cols() const;
  std::int64_t block_rows() const;
  std::int64_t block_cols() const;
  std::int64_t stored_blocks() const;   ///< what `out` needs: values [stored_blocks, r, c]
  std::int64_t block_products() const;  ///< pairs of blocks to multiply
  double flops() const;

  struct Data;
  const Data& data() const;
  explicit SpgemmPlan(std::unique_ptr<Data> data);

 private:
  std::unique_ptr<Data> data_;
};

/// Finds the result's pattern. Reads the patterns of both operands, not their values. On a GPU it
/// waits once for the stream, to learn the size; the lists that the plan holds are complete in that
/// stream's order, so another stream has to wait for it. A captured graph reads them where they
/// are: keep the plan while the graph may run, and destroy no plan while a stream is captured.
TESSERA_EXPORT SpgemmPlan spgemm_symbolic(const SpgemmProblem& problem,
                                          const Execution& execution = {});

/// Fills out: row_offsets, col_indices (i32 or i64) and values, all allocated by the caller to the
/// plan's sizes.
TESSERA_EXPORT void spgemm_numeric(const SpgemmPlan& plan, const SpgemmProblem& problem,
                                   const BsrMatrix& out, const Execution& execution = {});

/// The same into a pattern that `out` already has: blocks of the product outside it are not
/// computed.
TESSERA_EXPORT void spgemm_numeric(const SpgemmProblem& problem, const BsrMatrix& out,
                                   const Execution& execution = {});

}  // namespace tessera
