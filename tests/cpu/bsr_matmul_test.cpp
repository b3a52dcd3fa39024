#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using generate::matmul_case;
using generate::ProductOptions;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

void match(bool sparse_a, bool sparse_b, std::uint64_t seeds, std::int64_t largest) {
  for (DType dtype : kTypes) {
    const ProductOptions options{
        .sparse_a = sparse_a, .sparse_b = sparse_b, .dtype = dtype, .largest = largest};
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      expect::matches_oracle(*matmul_case(seed, options));
    }
  }
}

TEST(BsrMatmul, SparseTimesDense) { match(true, false, 350, 70); }
TEST(BsrMatmul, DenseTimesSparse) { match(false, true, 350, 70); }
TEST(BsrMatmul, SparseTimesSparse) { match(true, true, 350, 70); }
TEST(BsrMatmul, LargerSparseTimesDense) { match(true, false, 15, 260); }
TEST(BsrMatmul, LargerDenseTimesSparse) { match(false, true, 15, 260); }
TEST(BsrMatmul, LargerSparseTimesSparse) { match(true, true, 15, 260); }

/// One BSR matrix times a dense one, blocks of a given shape.
void match_blocks(std::int64_t block_rows, std::int64_t block_cols) {
  for (DType dtype : kTypes) {
    for (bool transposed : {false, true}) {
      generate::Case<MatmulProblem> c(static_cast<std::uint64_t>(block_rows * 1000 + block_cols));
      c.text = "blocks " + std::to_string(block_rows) + " x " + std::to_string(block_cols);
      const std::int64_t rows = 3 * block_rows, cols = 4 * block_cols;
      const generate::WildBsr bsr = generate::wild_bsr(c.random, c.memory, rows, cols, block_rows,
                                                       block_cols, dtype, 1, false);
      c.problem.a = bsr.matrix;
      c.problem.a.transposed = transposed;
      const Tensor b =
          c.memory.input(dtype, {transposed ? rows : cols, 45}, generate::Layout::wild);
      c.memory.fill_normal(b);
      c.problem.b = b;
      c.problem.out =
          c.memory.output(dtype, {transposed ? cols : rows, 45}, generate::Layout::wild);
      expect::matches_oracle(c);
    }
  }
}

TEST(BsrMatmul, BlocksOfManyShapes) {
  for (std::int64_t rows : {16, 32, 64, 128}) {
    for (std::int64_t cols : {16, 32, 64, 128}) match_blocks(rows, cols);
  }
  match_blocks(1, 130);
  match_blocks(130, 1);
  match_blocks(300, 7);
}

}  // namespace
}  // namespace tessera
