// Products with operands in FP8 and factors of every form, against the oracle.
#include <cmath>
#include <limits>
#include <string>

#include <tessera/error.hpp>

#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

void check(const generate::ProductOptions& options, std::uint64_t first, int count) {
  for (int i = 0; i < count; ++i) {
    const auto c = generate::matmul_case(first + static_cast<std::uint64_t>(i), options);
    expect::matches_oracle(*c);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(MatmulFp8, Dense) {
  check({.sparse_a = false, .sparse_b = false, .fp8 = true}, 1, 150);
  check({.sparse_a = false, .sparse_b = false, .fp8 = true, .largest = 300}, 1000, 60);
}
TEST(MatmulFp8, SparseTimesDense) {
  check({.sparse_a = true, .sparse_b = false, .fp8 = true, .largest = 200}, 2000, 120);
}
TEST(MatmulFp8, DenseTimesSparse) {
  check({.sparse_a = false, .sparse_b = true, .fp8 = true, .largest = 200}, 3000, 120);
}
TEST(MatmulFp8, BothSparse) {
  check({.sparse_a = true, .sparse_b = true, .fp8 = true, .largest = 120}, 4000, 80);
}
TEST(MatmulFp8, Grouped) {
  check({.grouped = GroupAxis::rows, .fp8 = true, .largest = 170}, 5000, 120);
  check({.grouped = GroupAxis::inner, .fp8 = true, .largest = 170}, 6000, 100);
}

/// A factor multiplies its own elements and no others: NaN, infinities and 0 show which these are.
TEST(MatmulFp8, SpecialFactors) {
  constexpr std::int64_t kRows = 3, kDepth = 260, kCols = 2;
  HostTensor a(DType::e4m3, {kRows, kDepth}), b(DType::e5m2, {kDepth, kCols});
  for (const HostTensor* t : {&a, &b})
    for (std::int64_t i = 0; i < t->numel(); ++i)
      store_from_float(t->view().data, t->view().dtype, i, 1.0f);
  float by_block[kRows][3] = {{1, 2, 4}, {1, 0, 1}, {std::nanf(""), 1, 1}},
        by_column[kCols] = {1, 3};
  float out[kRows][kCols];
  MatmulProblem p;
  p.a = scaled(a, tensor(by_block, DType::f32, {kRows, 3}));
  p.b = scaled(b, tensor(by_column, DType::f32, {1, kCols}));
  p.out = tensor(out, DType::f32, {kRows, kCols});
  matmul(p);
  EXPECT_EQ(out[0][0], 128 * 1 + 128 * 2 + 4 * 4);
  EXPECT_EQ(out[0][1], 3 * out[0][0]);
  EXPECT_EQ(out[1][0], 128 + 4);
  EXPECT_TRUE(std::isnan(out[2][0]) && std::isnan(out[2][1]));
  by_block[2][0] = std::numeric_limits<float>::infinity();
  matmul(p);
  EXPECT_TRUE(std::isinf(out[2][0]));
  store_from_float(a.view().data, DType::e4m3, 2 * kDepth, 0.0f);  // 0 times an infinity
  matmul(p);
  EXPECT_TRUE(std::isnan(out[2][0]));
  EXPECT_EQ(out[1][1], 3 * (128 + 4));
}

TEST(MatmulFp8, TheResultIsNotFp8) {
  HostTensor a(DType::e4m3, {4, 4}), out(DType::e4m3, {4, 4});
  MatmulProblem p;
  p.a = a, p.b = a, p.out = out.view();
  try {
    matmul(p);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("matmul: out: expected dtype f32, f16 or bf16"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
