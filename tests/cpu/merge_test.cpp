#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

TEST(MergeStates, MatchesTheOracle) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    expect::matches_oracle(*generate::merge_case(seed));
  }
}

/// Merging attention over two parts of the keys gives attention over all keys. The sink counts
/// once.
TEST(MergeStates, PutsSplitAttentionTogether) {
  generate::AttentionOptions options;
  options.packed_kv = options.paged = generate::Presence::never;
  options.sinks = generate::Presence::always;
  options.dtype = DType::f32;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto c = generate::attention_case(seed, options);
    AttentionProblem& whole = c->problem;
    // The default query positions depend on kv_end, which the parts change.
    if (!whole.q_position) {
      std::vector<std::int64_t> positions;
      for (std::int64_t b = 0; b < oracle::batches(whole); ++b) {
        positions.push_back(oracle::sequence(whole, b).q_position);
      }
      whole.q_position =
          c->memory.list(DType::i64, {static_cast<std::int64_t>(positions.size())}, positions);
    }
    std::vector<std::int64_t> begins, middles, ends;
    for (std::int64_t b = 0; b < oracle::batches(whole); ++b) {
      const oracle::Sequence s = oracle::sequence(whole, b);
      begins.push_back(s.kv_begin);
      ends.push_back(s.kv_end);
      middles.push_back(c->random.between(s.kv_begin, s.kv_end));
    }
    const auto list = [&](const std::vector<std::int64_t>& values) {
      return c->memory.list(DType::i64, {static_cast<std::int64_t>(values.size())}, values);
    };
    const bool packed = static_cast<bool>(whole.q_offsets);
    const std::int64_t heads = whole.q.size(whole.q.rank - 2);
    const std::vector<std::int64_t> lse_shape =
        packed ? std::vector<std::int64_t>{heads, whole.q.size(0)}
               : std::vector<std::int64_t>{whole.q.size(0), heads, whole.q.size(1)};
    MergeStatesProblem merge;
    for (int part = 0; part < 2; ++part) {
      AttentionProblem piece = whole;
      piece.sinks = {};
      piece.kv_begin = list(part == 0 ? begins : middles);
      piece.kv_end = list(part == 0 ? middles : ends);
      const std::vector<std::int64_t> shape(whole.out.shape.begin(),
                                            whole.out.shape.begin() + whole.out.rank);
      piece.out = c->memory.output(DType::f32, shape, generate::Layout::wild);
      piece.lse = c->memory.output(DType::f32, lse_shape, generate::Layout::wild);
      attention(piece);
      merge.outs.push_back(piece.out);
      merge.lses.push_back(piece.lse);
    }
    merge.sinks = whole.sinks;
    merge.out = whole.out;
    merge.lse = whole.lse;
    merge_states(merge);
    const oracle::Attention truth = oracle::attention(whole);
    const oracle::DenseArray merged = oracle::read(merge.out);
    for (std::size_t n = 0; n < merged.values.size(); ++n) {
      ASSERT_NEAR(merged.values[n], truth.out.values[n], 2 * truth.out_slack.values[n] + 1e-6)
          << c->text;
    }
  }
}

}  // namespace
}  // namespace tessera
