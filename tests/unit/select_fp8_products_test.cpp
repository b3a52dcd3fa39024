// Products in FP8: which row is chosen, and what is refused, in which words.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::e4m3) {
  return tensor(nullptr, dtype, shape, {DeviceKind::cuda, 0});
}

/// x W^T with W in square blocks, of which a share is stored.
MatmulProblem sparse(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t block,
                     double density = 0.25) {
  MatmulProblem p;
  const auto stored =
      static_cast<std::int64_t>(static_cast<double>(n / block * (k / block)) * density);
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

struct Measured {
  MatmulProblem problem;
  double us[4];  // by the rows below; 0: the row does not support it
};

/// Times of an H200 with factors of 1 x 128 and per stored block or 128 x 128, or one and per
/// block.
TEST(SelectFp8Products, TakesARowThatIsNearlyTheFastest) {
  const char* const rows[] = {"sm90_matmul_m128_n256_k128_s4", "sm90_matmul_m128_n128_k128_s6",
                              "sm90_matmul_m128_n256_k64_s7", "sm90_matmul_m128_n128_k64_s12"};
  const Measured cases[] = {
      {sparse(8192, 8192, 8192, 128), {394.7, 410.6, 566.1, 578.9}},
      {sparse(8192, 8192, 8192, 128, .5), {725.6, 812.6, 1045.2, 1186.3}},
      {sparse(8192, 8192, 8192, 128, .1), {161.5, 180.7, 220.5, 252.8}},
      {sparse(8192, 8192, 8192, 128, .05), {100.2, 138.4, 122.4, 153.6}},
      {sparse(8192, 8192, 8192, 64), {0, 0, 772.7, 904.3}},
      {sparse(8192, 8192, 8192, 64, .5), {0, 0, 1290.7, 1507.3}},
      {sparse(8192, 8192, 8192, 64, .1), {0, 0, 326.6, 380.5}},
      {sparse(8192, 8192, 8192, 64, .05), {0, 0, 180.4, 211.0}},
      {sparse(4096, 14336, 4096, 128), {185.1, 193.7, 269.8, 276.9}},
      {sparse(4096, 14336, 4096, 64), {0, 0, 358.5, 415.4}},
      {dense(4096, 4096, 4096), {204.0, 210.5, 0, 0}},
      {dense(8192, 8192, 8192), {1597.5, 1598.1, 0, 0}},
      {dense(4096, 7168, 16384), {1386.8, 1476.5, 0, 0}},
      {grouped(8192, 4096, 7168, 8), {713.4, 732.6, 0, 0}},
      {grouped(8192, 7168, 2048, 8), {354.1, 367.0, 0, 0}},
      {grouped(32768, 4096, 7168, 4), {2776.9, 2754.4, 0, 0}},
      {grouped(8192, 4096, 4096, 64), {790.9, 462.9, 0, 0}},
  };
  for (const Measured& one : cases) {
    const AnyShape shape = shape_of(AnyProblem(one.problem));
    const std::string chosen =
        select(one.problem, device_preset("h200"), {.backend = Backend::sm90}).plan.kernel_name;
    double fastest = 1e9, taken = 0;
    for (int i = 0; i < 4; ++i) {
      if (one.us[i] == 0) continue;
      fastest = std::min(fastest, one.us[i]);
      if (chosen == rows[i]) taken = one.us[i];
      const double ratio =
          1e3 * predict_ms(row_named(rows[i]), shape, device_preset("h200")) / one.us[i];
      // Groups that end with whole tiles take less than predicted.
      EXPECT_GT(ratio, 0.75) << rows[i] << " " << describe(shape);
      EXPECT_LT(ratio, 1.5) << rows[i] << " " << describe(shape);
    }
    EXPECT_GT(taken, 0) << chosen << " " << describe(shape);
    EXPECT_LT(taken, 1.01 * fastest) << chosen << " " << describe(shape);
  }
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
