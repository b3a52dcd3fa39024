#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using generate::AttentionOptions;
using generate::backward_case;
using generate::Presence;

void match(AttentionOptions options, std::uint64_t seeds) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    options.dtype = dtype;
    for (std::uint64_t seed = 0; seed < generate::problems(seeds); ++seed) {
      expect::matches_oracle(*backward_case(seed, options));
    }
  }
}

AttentionOptions dense() {
  AttentionOptions options;
  options.mask = options.packed_q = options.packed_kv = Presence::never;
  return options;
}

TEST(AttentionBackward, PlainMatchesTheOracle) {
  AttentionOptions options = dense();
  options.positions = options.sinks = options.softcap = Presence::never;
  match(options, 60);
}

TEST(AttentionBackward, EverythingDenseMatchesTheOracle) { match(dense(), 250); }

TEST(AttentionBackward, MasksMatchTheOracle) {
  AttentionOptions options;
  options.mask = Presence::always;
  match(options, 250);
}

/// The gradients of a KV head sum over the query heads of its group, which share lists.
TEST(AttentionBackward, ListsPerKvHeadMatchTheOracle) {
  AttentionOptions options;
  options.mask = Presence::always;
  options.blocks.by_keys = Presence::always;
  for (const std::int64_t group : {2, 3, 4}) {
    options.group = group;
    match(options, 40);
  }
}

TEST(AttentionBackward, PackedMatchesTheOracle) {
  AttentionOptions options;
  options.packed_q = options.packed_kv = Presence::always;
  match(options, 80);
}

TEST(AttentionBackward, SinksAndSoftcapMatchTheOracle) {
  AttentionOptions options = dense();
  options.sinks = options.softcap = Presence::always;
  match(options, 60);
}

TEST(AttentionBackward, LongSequences) {
  AttentionOptions options;
  options.longest = 400;
  options.largest_batch = options.largest_kv_heads = 1;
  options.blocks.smallest_block = 16;
  match(options, 20);
}

/// The backward pass runs on the results of the library's forward pass instead of the oracle's.
TEST(AttentionBackward, FollowsItsOwnForwardPass) {
  AttentionOptions options;
  options.dtype = DType::f32;
  for (std::uint64_t seed = 0; seed < generate::problems(60); ++seed) {
    const auto c = backward_case(seed, options);
    attention(c->problem.forward);
    expect::matches_oracle(*c);
  }
}

}  // namespace
}  // namespace tessera
