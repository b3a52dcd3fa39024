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
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
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

}  // namespace
}  // namespace tessera
