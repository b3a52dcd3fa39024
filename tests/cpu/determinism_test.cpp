#include "tests/fixtures/expect.hpp"

// The same inputs give the same bits, in every run and with any number of threads.
namespace tessera {
namespace {

template <class AnyCase>
void repeats_bit_by_bit(AnyCase& c) {
  c.memory.arm();
  expect::solve(c.problem, {.threads = 1});
  const std::vector<std::byte> first = c.memory.outputs();
  for (int threads : {1, 2, 3, 5, 0}) {
    c.memory.reset();
    expect::solve(c.problem, {.threads = threads});
    EXPECT_TRUE(c.memory.outputs() == first) << c.text << " with " << threads << " threads";
  }
}

TEST(Determinism, Matmul) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    repeats_bit_by_bit(*generate::matmul_case(seed, {.largest = 150}));
    repeats_bit_by_bit(*generate::matmul_case(seed, {.grouped = GroupAxis::rows}));
    repeats_bit_by_bit(*generate::matmul_case(seed, {.grouped = GroupAxis::inner}));
  }
}

TEST(Determinism, Sddmm) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    repeats_bit_by_bit(*generate::sddmm_case(seed, {.largest = 150}));
  }
}

TEST(Determinism, Spgemm) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto c = generate::spgemm_case(seed, {.largest = 150});
    const BsrMatrix out =
        output_for(*c, oracle::spgemm_pattern(c->problem), DType::f32, DType::i32);
    c->memory.arm();
    spgemm_numeric(c->problem, out, {.threads = 1});
    const std::vector<std::byte> first = c->memory.outputs();
    for (int threads : {2, 3, 5}) {
      c->memory.reset();
      spgemm_numeric(c->problem, out, {.threads = threads});
      EXPECT_TRUE(c->memory.outputs() == first) << c->text << " with " << threads << " threads";
    }
  }
}

TEST(Determinism, Attention) {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    repeats_bit_by_bit(
        *generate::attention_case(seed, {.longest = 150, .blocks = {.smallest_block = 8}}));
  }
}

TEST(Determinism, AttentionBackward) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    repeats_bit_by_bit(
        *generate::backward_case(seed, {.longest = 100, .blocks = {.smallest_block = 8}}));
  }
}

TEST(Determinism, MergeStates) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    repeats_bit_by_bit(*generate::merge_case(seed));
  }
}

}  // namespace
}  // namespace tessera
