#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using generate::attention_case;
using generate::AttentionOptions;
using generate::Presence;

void match(AttentionOptions options, std::uint64_t seeds) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    options.dtype = dtype;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
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

}  // namespace
}  // namespace tessera
