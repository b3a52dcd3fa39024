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

AttentionOptions masked() {
  AttentionOptions options;
  options.mask = Presence::always;
  return options;
}

TEST(AttentionMask, AloneMatchesTheOracle) {
  AttentionOptions options = masked();
  options.packed_q = options.packed_kv = options.paged = Presence::never;
  options.positions = options.sinks = options.softcap = Presence::never;
  match(options, 200);
}

TEST(AttentionMask, WithPositionsMatchesTheOracle) {
  AttentionOptions options = masked();
  options.packed_q = options.packed_kv = options.paged = Presence::never;
  options.positions = Presence::always;
  match(options, 200);
}

TEST(AttentionMask, WithEverythingMatchesTheOracle) { match(masked(), 400); }

TEST(AttentionMask, LongSequences) {
  AttentionOptions options = masked();
  options.longest = 700;
  options.largest_batch = options.largest_kv_heads = 1;
  options.blocks.smallest_block = 16;
  match(options, 25);
}

/// Lists per KV head apply to all query heads of its group.
TEST(AttentionMask, ListsPerKvHeadMatchTheOracle) {
  AttentionOptions options = masked();
  options.blocks.by_keys = Presence::always;
  for (const std::int64_t group : {2, 3, 4}) {
    options.group = group;
    match(options, 40);
  }
}

/// Bad values in a block reach only the rows that list the block, not others of the same tile.
TEST(AttentionMask, NaNStaysInItsBlocks) {
  AttentionOptions options = masked();
  options.packed_q = options.packed_kv = options.paged = Presence::never;
  options.positions = options.softcap = Presence::never;
  options.bad_values = true;
  match(options, 150);
}

}  // namespace
}  // namespace tessera
