#include <cmath>

#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using generate::Layout;
using generate::matmul_case;
using generate::ProductOptions;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

TEST(Matmul, MatchesTheOracle) {
  for (DType dtype : kTypes) {
    const ProductOptions options{.sparse_a = false, .sparse_b = false, .dtype = dtype};
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
      expect::matches_oracle(*matmul_case(seed, options));
    }
  }
}

TEST(Matmul, MatchesTheOracleWhereTilesMeet) {
  // Larger than any tile in each direction.
  for (DType dtype : kTypes) {
    const ProductOptions options{
        .sparse_a = false, .sparse_b = false, .dtype = dtype, .largest = 260};
    for (std::uint64_t seed = 0; seed < 15; ++seed) {
      expect::matches_oracle(*matmul_case(seed, options));
    }
  }
}

/// A case with a product of the given sizes.
std::unique_ptr<generate::Case<MatmulProblem>> plain(std::int64_t m, std::int64_t n, std::int64_t k,
                                                     DType dtype) {
  auto made = std::make_unique<generate::Case<MatmulProblem>>(static_cast<std::uint64_t>(m + n));
  made->text = std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k);
  generate::Memory& memory = made->memory;
  made->problem.a = memory.input(dtype, {m, k}, Layout::contiguous);
  made->problem.b = memory.input(dtype, {k, n}, Layout::contiguous);
  made->problem.out = memory.output(dtype, {m, n}, Layout::contiguous);
  memory.fill_normal(made->problem.a.dense);
  memory.fill_normal(made->problem.b.dense);
  return made;
}

TEST(Matmul, LongInnerDimension) {
  for (DType dtype : kTypes) {
    expect::matches_oracle(*plain(70, 40, 1100, dtype));
    expect::matches_oracle(*plain(3, 900, 700, dtype));
    expect::matches_oracle(*plain(500, 5, 600, dtype));
  }
}

TEST(Matmul, DepthZeroGivesTheEpilogueOfZero) {
  auto c = plain(5, 7, 0, DType::f32);
  c->problem.epilogue.bias = c->memory.input(DType::f32, {7}, Layout::contiguous);
  c->memory.fill_normal(c->problem.epilogue.bias);
  expect::matches_oracle(*c);
}

TEST(Matmul, EmptyResults) {
  expect::matches_oracle(*plain(0, 7, 5, DType::f32));
  expect::matches_oracle(*plain(7, 0, 5, DType::bf16));
  expect::matches_oracle(*plain(0, 0, 0, DType::f16));
}

TEST(Matmul, NaNAndInfinitySpreadToTheirRowsAndColumns) {
  for (DType dtype : kTypes) {
    auto c = plain(33, 50, 40, dtype);
    const auto put = [](const Tensor& tensor, std::int64_t row, std::int64_t col, double value) {
      oracle::DenseArray array = oracle::read(tensor);
      array({row, col}) = value;
      oracle::write(tensor, array);
    };
    put(c->problem.a.dense, 4, 39, std::nan(""));
    put(c->problem.a.dense, 20, 0, HUGE_VAL);
    put(c->problem.b.dense, 17, 49, -HUGE_VAL);
    for (Activation activation : {Activation::none, Activation::relu, Activation::silu,
                                  Activation::gelu, Activation::gelu_tanh}) {
      c->problem.epilogue.activation = activation;
      expect::matches_oracle(*c);
    }
  }
}

TEST(Matmul, ActivationsOverTheirWholeRange) {
  for (Activation activation : {Activation::none, Activation::relu, Activation::silu,
                                Activation::gelu, Activation::gelu_tanh}) {
    auto c = plain(1, 4001, 1, DType::f32);
    oracle::DenseArray x({1, 4001});
    for (std::size_t n = 0; n < x.values.size(); ++n) {
      x.values[n] = (static_cast<double>(n) - 2000) / 50;
    }
    oracle::write(c->problem.b.dense, x);
    oracle::DenseArray one({1, 1}, 1.0);
    oracle::write(c->problem.a.dense, one);
    c->problem.epilogue.activation = activation;
    expect::matches_oracle(*c);
  }
}

TEST(Matmul, OverflowInF16IsAnInfinity) {
  auto c = plain(2, 2, 2, DType::f16);
  oracle::write(c->problem.a.dense, oracle::DenseArray({2, 2}, 300.0));
  oracle::write(c->problem.b.dense, oracle::DenseArray({2, 2}, 300.0));
  expect::matches_oracle(*c);
  EXPECT_TRUE(std::isinf(oracle::read(c->problem.out).values[0]));
}

TEST(Matmul, OperandsMayBeOwningTensors) {
  HostTensor a(DType::f32, {4, 4}), b(DType::f32, {4, 4}), out(DType::f32, {4, 4});
  for (std::int64_t i = 0; i < 4; ++i) a.data<float>()[5 * i] = 2.0f, b.data<float>()[5 * i] = 3.0f;
  matmul({.a = a, .b = b, .out = out});
  EXPECT_EQ(out.data<float>()[0], 6.0f);
  const HostBsr sparse = bsr_from_dense(a, 2, 2);
  matmul({.a = sparse, .b = transpose(b), .out = out});
  EXPECT_EQ(out.data<float>()[15], 6.0f);
  const HostBsr sampled = bsr_from_dense(a, 2, 2);
  sddmm({.a = a, .b = b, .out = sampled});
  EXPECT_EQ(sampled.values.data<float>()[0], 6.0f);
}

TEST(Matmul, ANamedRowRuns) {
  const HostTensor a(DType::f32, {40, 24}), b(DType::f32, {24, 16});
  const HostTensor out(DType::f32, {40, 16});
  MatmulProblem problem{.a = a, .b = b, .out = out};
  EXPECT_NO_THROW(matmul(problem, {.kernel = "cpu_matmul_m64_n384_k512"}));
  EXPECT_THROW(matmul(problem, {.kernel = "cpu_attention_q128_k192"}), Error);
}

}  // namespace
}  // namespace tessera
