#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using generate::attention_case;
using generate::AttentionOptions;
using generate::Presence;

void match(AttentionOptions options, std::uint64_t seeds) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    options.dtype = dtype;
    for (std::uint64_t seed = 0; seed < generate::problems(seeds); ++seed) {
      expect::matches_oracle(*attention_case(seed, options));
    }
  }
}

AttentionOptions layout(Presence packed_q, Presence packed_kv, Presence paged) {
  AttentionOptions options;
  options.packed_q = packed_q;
  options.packed_kv = packed_kv;
  options.paged = paged;
  return options;
}

constexpr Presence kNever = Presence::never, kMaybe = Presence::maybe, kAlways = Presence::always;

TEST(AttentionPacked, BothSides) { match(layout(kAlways, kAlways, kNever), 200); }
TEST(AttentionPacked, QueriesOnly) { match(layout(kAlways, kNever, kNever), 60); }
TEST(AttentionPacked, KeysOnly) { match(layout(kNever, kAlways, kNever), 60); }
TEST(AttentionPaged, DenseOrPackedQueries) { match(layout(kMaybe, kNever, kAlways), 250); }

TEST(AttentionPacked, LongSequences) {
  AttentionOptions options = layout(kAlways, kAlways, kNever);
  options.longest = 350;
  options.largest_kv_heads = 1;
  options.blocks.smallest_block = 16;
  match(options, 15);
}

TEST(AttentionPaged, LongSequences) {
  AttentionOptions options = layout(kMaybe, kNever, kAlways);
  options.longest = 350;
  options.largest_kv_heads = 1;
  options.blocks.smallest_block = 16;
  match(options, 15);
}

TEST(AttentionPaged, NaNSpreadsWhereItIsSeen) {
  AttentionOptions options = layout(kMaybe, kNever, kAlways);
  options.bad_values = true;
  options.positions = options.softcap = kNever;
  match(options, 80);
}

/// One packed sequence of 3 queries and keys, with 2 rows after it; outputs are filled with NaN.
struct WithRest {
  static constexpr std::int64_t kRows = 5, kUsed = 3, kHeads = 2, kDim = 4;
  static constexpr std::size_t kCount = kRows * kHeads * kDim;
  std::vector<float> q = std::vector<float>(kCount, 1.0f), out = nans(), dq = nans(), dk = nans(),
                     dv = nans(), sinks = {0.5f, 1.0f};
  std::vector<float> lse = std::vector<float>(kRows * kHeads, std::nanf(""));
  std::vector<std::int32_t> offsets = {0, kUsed};
  AttentionProblem problem;

  WithRest() {
    std::fill(q.begin() + kUsed * kHeads * kDim, q.end(), std::nanf(""));
    problem.q = problem.k = problem.v = packed(q);
    problem.out = packed(out);
    problem.lse = tensor(lse.data(), DType::f32, {kHeads, kRows});
    problem.q_offsets = problem.kv_offsets = tensor(offsets.data(), DType::i32, {2});
    problem.sinks = tensor(sinks.data(), DType::f32, {kHeads});
  }
  static std::vector<float> nans() { return std::vector<float>(kCount, std::nanf("")); }
  static Tensor packed(std::vector<float>& values) {
    return tensor(values.data(), DType::f32, {kRows, kHeads, kDim});
  }
  /// Whether the rows of sequences are not NaN, and the rows after them are zeros.
  static bool has_zeros_after(const std::vector<float>& values) {
    const auto used = values.begin() + kUsed * kHeads * kDim;
    return std::all_of(values.begin(), used, [](float x) { return std::isfinite(x); }) &&
           std::all_of(used, values.end(), [](float x) { return x == 0.0f; });
  }
};

TEST(AttentionPacked, RowsAfterTheLastSequenceAreZero) {
  WithRest c;
  attention(c.problem);
  EXPECT_TRUE(WithRest::has_zeros_after(c.out));
  for (std::size_t i = 0; i < c.lse.size(); ++i) {
    const bool used = static_cast<std::int64_t>(i) % WithRest::kRows < WithRest::kUsed;
    EXPECT_TRUE(used ? std::isfinite(c.lse[i]) : c.lse[i] == -HUGE_VALF) << i;
  }
  c.problem.lse = {};
  std::fill(c.out.begin(), c.out.end(), std::nanf(""));
  attention(c.problem);
  EXPECT_TRUE(WithRest::has_zeros_after(c.out));
}

TEST(AttentionPacked, WithoutSequencesAllRowsAreZero) {
  WithRest c;
  c.problem.q_offsets = c.problem.kv_offsets = tensor(c.offsets.data(), DType::i32, {1});
  attention(c.problem);
  EXPECT_EQ(c.out, std::vector<float>(WithRest::kCount, 0.0f));
  EXPECT_EQ(c.lse, std::vector<float>(c.lse.size(), -HUGE_VALF));
}

TEST(AttentionPacked, GradientsOfRowsAfterTheLastSequenceAreZero) {
  WithRest c;
  attention(c.problem);
  AttentionBackwardProblem backward;
  backward.forward = c.problem;
  backward.dout = WithRest::packed(c.q);
  backward.dq = WithRest::packed(c.dq);
  backward.dk = WithRest::packed(c.dk);
  backward.dv = WithRest::packed(c.dv);
  attention_backward(backward);
  for (const auto* gradient : {&c.dq, &c.dk, &c.dv})
    EXPECT_TRUE(WithRest::has_zeros_after(*gradient));
}

}  // namespace
}  // namespace tessera
