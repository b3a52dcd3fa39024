#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/generate.hpp"

namespace tessera::generate {
namespace {

TEST(Memory, FillsEverythingWithNaN) {
  Random random(1);
  Memory memory(random);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const oracle::DenseArray array = oracle::read(memory.input(dtype, {3, 4}, Layout::wild));
    for (double x : array.values) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(Memory, SeesWritesOutsideTheElements) {
  Random random(2);
  for (int round = 0; round < 50; ++round) {
    Memory memory(random);
    const Tensor out = memory.output(DType::f32, {5, 7}, Layout::wild);
    memory.arm();
    memory.fill_normal(out);
    EXPECT_EQ(memory.damage(), "");
    EXPECT_FALSE(memory.untouched());
    // Just before the lowest and just after the highest element.
    std::int64_t low = 0, high = 0;
    for (int d = 0; d < 2; ++d) {
      const std::int64_t reach = (out.size(d) - 1) * out.stride(d);
      (reach < 0 ? low : high) += reach;
    }
    float* const data = static_cast<float*>(out.data);
    for (std::int64_t at : {low - 1, high + 1}) {
      memory.reset();
      data[at] = 1.0f;
      EXPECT_NE(memory.damage(), "");
    }
    memory.reset();
    EXPECT_TRUE(memory.untouched());
  }
}

TEST(Memory, SeesWritesToPaddingAndInputs) {
  Random random(3);
  int padded = 0;
  for (int round = 0; round < 50; ++round) {
    Memory memory(random);
    const Tensor out = memory.output(DType::f16, {4, 6}, Layout::wild);
    const Tensor in = memory.input(DType::f16, {4}, Layout::contiguous);
    memory.arm();
    static_cast<std::uint16_t*>(in.data)[2] = 0;
    EXPECT_NE(memory.damage().find("input"), std::string::npos);
    memory.reset();
    if (out.stride(1) != 1 || out.stride(0) <= 6) continue;
    ++padded;
    static_cast<std::uint16_t*>(out.data)[6] = 0;
    EXPECT_NE(memory.damage().find("outside"), std::string::npos);
  }
  EXPECT_GT(padded, 3);
}

TEST(Memory, OutputsNeverAliasAndInputsReadBack) {
  Random random(4);
  for (int round = 0; round < 200; ++round) {
    Memory memory(random);
    const Tensor out = memory.output(DType::f32, {3, 4, 5}, Layout::wild);
    oracle::DenseArray array({3, 4, 5});
    for (std::size_t n = 0; n < array.values.size(); ++n) array.values[n] = static_cast<double>(n);
    oracle::write(out, array);
    EXPECT_EQ(oracle::read(out).values, array.values);
  }
}

TEST(Cases, AreRepeatable) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto a = attention_case(seed), b = attention_case(seed);
    a->memory.arm();
    b->memory.arm();
    EXPECT_EQ(a->memory.outputs(), b->memory.outputs());
    EXPECT_EQ(oracle::visible_pairs(a->problem), oracle::visible_pairs(b->problem));
    EXPECT_EQ(to_string(a->problem.q), to_string(b->problem.q));
  }
}

/// Each kind of case that the generators can draw must occur.
TEST(Cases, CoverTheSpace) {
  int masked = 0, bits = 0, offsets = 0, paged = 0, packed = 0, nothing_seen = 0, poisoned = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto c = attention_case(seed);
    const AttentionProblem& p = c->problem;
    masked += static_cast<bool>(p.mask);
    bits += static_cast<bool>(p.mask.bits);
    offsets += p.mask.full.offsets || p.mask.partial.offsets;
    paged += static_cast<bool>(p.page_table);
    packed += p.q_offsets && p.kv_offsets;
    nothing_seen += oracle::visible_pairs(p) == 0;
    for (double x : oracle::read(p.k).values) {
      if (!std::isnan(x)) continue;
      ++poisoned;
      break;
    }
  }
  for (int count : {masked, bits, offsets, paged, packed, nothing_seen, poisoned}) {
    EXPECT_GT(count, 10);
  }
  EXPECT_LT(nothing_seen, 150);
}

TEST(Cases, PoisonNeverReachesTheTruth) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const auto attention = attention_case(seed);
    for (double x : oracle::attention(attention->problem).out.values) {
      ASSERT_FALSE(std::isnan(x)) << attention->text;
    }
    const auto matmul = matmul_case(seed);
    for (double x : oracle::matmul(matmul->problem, matmul->former_values()).value.values) {
      ASSERT_FALSE(std::isnan(x)) << matmul->text;
    }
  }
}

}  // namespace
}  // namespace tessera::generate
