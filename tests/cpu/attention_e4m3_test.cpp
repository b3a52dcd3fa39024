#include <cstdint>

#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using generate::attention_case;
using generate::AttentionOptions;
using generate::Presence;

void match(AttentionOptions options, std::uint64_t seeds) {
  options.narrow_keys = Presence::always;
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    options.dtype = dtype;
    for (std::uint64_t seed = 0; seed < generate::problems(seeds); ++seed) {
      expect::matches_oracle(*attention_case(seed, options));
    }
  }
}

TEST(AttentionE4m3, AnyLayoutOfKeys) { match({}, 200); }

TEST(AttentionE4m3, Pages) {
  AttentionOptions options;
  options.paged = Presence::always;
  match(options, 200);
}

TEST(AttentionE4m3, LongPackedSequences) {
  AttentionOptions options;
  options.packed_q = options.packed_kv = Presence::always;
  options.longest = 350;
  options.largest_kv_heads = 1;
  match(options, 15);
}

TEST(AttentionE4m3, BadValuesSpreadWhereTheyAreSeen) {
  AttentionOptions options;
  options.bad_values = true;
  options.positions = options.softcap = Presence::never;
  match(options, 80);
}

/// Queries in e4m3 as well.
void match_all(AttentionOptions options, std::uint64_t seeds) {
  options.dtype = DType::e4m3;
  for (std::uint64_t seed = 0; seed < generate::problems(seeds); ++seed)
    expect::matches_oracle(*attention_case(seed, options));
}

TEST(AttentionE4m3, QueriesToo) { match_all({}, 400); }

TEST(AttentionE4m3, QueriesTooAndContiguousKeysOfValues) {
  AttentionOptions options;
  options.v_by_keys = Presence::always;
  options.layout = generate::Layout::aligned;
  match_all(options, 60);
}

TEST(AttentionE4m3, QueriesTooOverPages) {
  AttentionOptions options;
  options.paged = Presence::always;
  options.longest = 200;
  match_all(options, 60);
  options.page = 128;  // several factors for a page
  match_all(options, 60);
}

TEST(AttentionE4m3, QueriesTooInLongSequences) {
  AttentionOptions options;
  options.longest = 350;
  options.largest_kv_heads = 2;
  match_all(options, 30);
  options.packed_q = options.packed_kv = Presence::always;
  match_all(options, 20);
}

}  // namespace
}  // namespace tessera
