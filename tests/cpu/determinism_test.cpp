#include <algorithm>

#include "tests/fixtures/expect.hpp"
#include "tests/fixtures/tensors.hpp"

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

/// A sequence by itself has the same bits as in a batch.
TEST(Determinism, BatchInvariantAttention) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    using generate::Presence;
    const auto c = generate::attention_case(seed, {.packed_q = Presence::never,
                                                   .packed_kv = Presence::never,
                                                   .longest = 150,
                                                   .largest_batch = 4,
                                                   .blocks = {.smallest_block = 8}});
    AttentionProblem& p = c->problem;
    p.batch_invariant = true;
    c->memory.arm();
    attention(p);
    const oracle::DenseArray out = oracle::read(p.out);
    const std::size_t each = p.q.size(0) > 0 ? out.values.size() / p.q.size(0) : 0;
    for (std::int64_t b = 0; b < p.q.size(0); ++b) {
      c->memory.reset();
      const AttentionProblem one = sequence_of(p, b);
      attention(one);
      const oracle::DenseArray alone = oracle::read(one.out);
      EXPECT_TRUE(std::equal(alone.values.begin(), alone.values.end(),
                             out.values.begin() + static_cast<std::ptrdiff_t>(b * each)))
          << c->text << ", sequence " << b;
      ++compared;
    }
  }
  EXPECT_GT(compared, 60);
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
