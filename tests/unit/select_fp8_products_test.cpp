// Products in FP8: which row is chosen, and what is refused, in which words.
#include <gtest/gtest.h>

#include <string>

#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::e4m3) {
  return tensor(nullptr, dtype, shape, {DeviceKind::cuda, 0});
}

/// x W^T with W in square blocks, a quarter of them stored.
MatmulProblem sparse(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t block) {
  MatmulProblem p;
  const std::int64_t stored = n / block * (k / block) / 4;
  BsrMatrix w;
  w.values = shaped({stored, block, block});
  w.row_offsets = shaped({n / block + 1}, DType::i32);
  w.col_indices = shaped({stored}, DType::i32);
  w.rows = n, w.cols = k;
  p.a = shaped({m, k}), p.b = transpose(Operand(w)), p.out = shaped({m, n}, DType::bf16);
  p.a.scale = shaped({m, (k + 127) / 128}, DType::f32);
  p.b.scale = shaped({stored}, DType::f32);
  return p;
}

MatmulProblem grouped(std::int64_t tokens, std::int64_t n, std::int64_t k, std::int64_t experts) {
  MatmulProblem p;
  p.a = shaped({tokens, k}), p.b = transpose(Operand(shaped({experts, n, k})));
  p.out = shaped({tokens, n}, DType::bf16);
  p.group_offsets = shaped({experts + 1}, DType::i32);
  return p;
}

MatmulProblem dense(std::int64_t m, std::int64_t n, std::int64_t k) {
  MatmulProblem p;
  p.a = shaped({m, k}), p.b = transpose(Operand(shaped({n, k})));
  p.out = shaped({m, n}, DType::bf16);
  return p;
}

Explanation on_h100(const MatmulProblem& problem) {
  return select(problem, device_preset("h100"), {.backend = Backend::sm90});
}

/// What the FP8 rows of sm90_matmul say of a problem.
std::string reasons_of(const MatmulProblem& problem) { return to_text(on_h100(problem)); }

void expect_reason(const MatmulProblem& problem, const std::string& reason) {
  const std::string text = reasons_of(problem);
  EXPECT_NE(text.find(reason), std::string::npos) << text;
}

TEST(SelectFp8Products, TakesTheStepThatTheBlocksHave) {
  EXPECT_EQ(on_h100(sparse(8192, 8192, 8192, 128)).plan.kernel_name,
            "sm90_matmul_m128_n256_k128_s4");
  EXPECT_EQ(on_h100(sparse(8192, 8192, 8192, 64)).plan.kernel_name, "sm90_matmul_m128_n256_k64_s7");
  EXPECT_EQ(on_h100(sparse(64, 4096, 4096, 128)).plan.kernel_name, "sm90_matmul_m128_n128_k128_s6");
  EXPECT_EQ(on_h100(grouped(8192, 4096, 4096, 8)).plan.kernel_name,
            "sm90_matmul_m128_n256_k128_s4");
}

TEST(SelectFp8Products, FinerFactorsAreOnTheSideOfTheColumns) {
  const auto swapped = [](const MatmulProblem& problem) {
    return matmul_layout(std::get<MatmulShape>(shape_of(AnyProblem(problem))),
                         row_named("sm90_matmul_m128_n256_k128_s4").tile, device_preset("h100"))
        .swapped;
  };
  EXPECT_TRUE(swapped(sparse(512, 512, 512, 128)));
  EXPECT_TRUE(swapped(grouped(512, 512, 512, 4)));
  MatmulProblem p = dense(512, 512, 512);
  EXPECT_TRUE(swapped(p));
  p.b.scale = shaped({512, 4}, DType::f32);
  EXPECT_FALSE(swapped(p));
}

TEST(SelectFp8Products, SaysThePrecisionAndTheFactors) {
  const auto expect_words = [](const MatmulProblem& problem, const std::string& words) {
    const std::string text = to_text(on_h100(problem));
    EXPECT_NE(text.find("e4m3 x e4m3, sums of " + words), std::string::npos) << text;
  };
  MatmulProblem p = sparse(8192, 8192, 8192, 128);
  expect_words(p,
               "128 in the tensor cores, then f32; factors: a 1x128, b per stored block; computed");
  p = sparse(8192, 8192, 8192, 64);
  p.a.scale = shaped({8192, 1}, DType::f32), p.b.scale = shaped({1}, DType::f32);
  expect_words(p, "64 in the tensor cores, then f32; factors: a per row, b one;");
  p = grouped(8192, 4096, 4096, 8);
  p.a.scale = shaped({8192, 32}, DType::f32), p.b.scale = shaped({8, 32, 32}, DType::f32);
  expect_words(p, "128 in the tensor cores, then f32; factors: a 1x128, b 128x128");
  p.b.scale = shaped({8, 1, 1}, DType::f32), p.a.scale = {};
  expect_words(p, "128 in the tensor cores, then f32; factors: a none, b per matrix");
  p = dense(512, 512, 512);
  p.b.scale = shaped({512, 1}, DType::f32);
  expect_words(p, "128 in the tensor cores, then f32; factors: a none, b per column");
  for (Tensor* t : {&p.a.dense, &p.b.dense}) t->dtype = DType::bf16;
  p.b.scale = {};
  EXPECT_EQ(to_text(on_h100(p)).find("factors"), std::string::npos);
}

TEST(SelectFp8Products, SaysWhatItRefuses) {
  MatmulProblem p = dense(512, 512, 512);
  p.a.scale = p.b.scale = shaped({512, 4}, DType::f32);
  expect_reason(p, "1 x 128 factors of both sides");
  p = grouped(512, 512, 512, 4);
  p.b.scale = shaped({4, 512, 4}, DType::f32);
  expect_reason(p, "b.scale of 1 x 128 beside groups");
  p = grouped(512, 512, 512, 4);
  p.b = shaped({4, 512, 512});  // [groups, K, N]: columns do not lie along the depth
  expect_reason(p, "b: expected FP8 that is contiguous along the depth");
  p = sparse(512, 512, 512, 32);
  expect_reason(p, "block rows: expected a multiple of 64, got 32");
  p = sparse(512, 512, 512, 128);
  p.b.transposed = false;
  expect_reason(p, "transpose_b");
  p = sparse(512, 512, 512, 128);
  p.b.sparse.values.dtype = DType::e5m2;
  expect_reason(p, "dtype e5m2 is not supported");
}

}  // namespace
