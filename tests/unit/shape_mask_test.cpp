#include "tests/unit/shape_problems.hpp"

namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using P = AttentionProblem;
using Case = tessera::testing::ProblemCase<P>;

// Blocks of 32 x 60: four rows of queries, four blocks of keys.
P masked() {
  P p = dense_attention();
  p.mask.block_q = 32;
  p.mask.block_kv = 60;
  p.mask.full = {i32({1, 8, 4}), {}, i32({1, 8, 4, 3})};
  p.mask.partial = {{}, i32({2, 1, 5}), i32({17})};
  p.mask.bit_tile = i32({17});
  p.mask.bits = u8({5, 32, 8});
  return p;
}

TEST(AttentionShape, holds_what_the_mask_says) {
  const AttentionShape shape = shape_of(masked());
  EXPECT_TRUE(shape.masked);
  EXPECT_EQ(shape.mask_block, (BlockShape{32, 60}));
  EXPECT_EQ(shape.mask_rows, 4);
  EXPECT_EQ(shape.mask_capacity, 4);  // no list is longer than the number of key blocks
  EXPECT_TRUE(shape.mask_bits);
  P p = masked();
  p.mask.partial = {};
  p.mask.bit_tile = p.mask.bits = {};
  EXPECT_EQ(shape_of(p).mask_capacity, 3);
  EXPECT_FALSE(shape_of(p).mask_bits);
}

TEST(AttentionShape, counts_the_heads_that_share_lists) {
  for (const std::int64_t sets : {1, 2, 8}) {
    P p = masked();
    p.mask.full = {i32({1, sets, 4}), {}, i32({1, 1, 4, 3})};
    EXPECT_EQ(shape_of(p).mask_heads, sets);
    EXPECT_EQ(shape_of(p).heads_per_list(), 8 / sets);
  }
}

TEST(AttentionShape, masks) {
  expect_cases(
      masked,
      std::vector<Case>{
          {"as it is", [](P&) {}},
          {"partial blocks without bits", [](P& p) { p.mask.bit_tile = p.mask.bits = {}; }},
          {"block_q",
           [](P& p) { p.mask.block_q = 0; },
           {"attention: mask.block_q: expected a block of 1 to 2^60, got 0"}},
          {"block_kv",
           [](P& p) { p.mask.block_kv = -64; },
           {"attention: mask.block_kv: expected a block of 1 to 2^60, got -64"}},
          {"sizes alone",
           [](P& p) { p.mask = {.block_q = 32, .block_kv = 64}; },
           {"attention: mask: expected full or partial lists of blocks, got neither"}},
          {"lists without sizes",
           [](P& p) { p.mask.block_q = p.mask.block_kv = 0; },
           {"attention: mask.block_q: expected", "got 0"}},
          {"too many blocks of keys",
           [](P& p) {
             p.k = bf16({2, std::int64_t{1} << 40, 2, 64}), p.v = p.k;
             p.out = bf16({2, 100, 8, 64});
             p.mask.block_kv = 1;
           },
           {"attention: mask.block_kv: expected a size that divides the",
            "at most 2^28 blocks, got 1"}},
          {"too few rows",
           [](P& p) {
             p.mask.full = {i32({1, 1, 3}), {}, i32({1, 1, 3, 3})};
           },
           {"attention: mask.full.counts: expected at least 4 rows, for 100 queries in blocks of "
            "32",
            "got i32[1, 1, 3]"}},
          {"unused rows",
           [](P& p) {
             p.mask.full = {i32({1, 1, 9}), {}, i32({1, 1, 9, 3})};
             p.mask.partial.offsets = i32({2, 1, 10});
           }},
          {"rows differ",
           [](P& p) {
             p.mask.full = {i32({1, 1, 9}), {}, i32({1, 1, 9, 3})};
           },
           {"attention: mask.partial: expected 9 rows, like full, got 4"}},
          {"heads",
           [](P& p) {
             p.mask.full.counts = i32({1, 3, 4});
           },
           {"attention: mask.full.counts: expected shape [batch = 2 or 1, heads = 8 or kv_heads = "
            "2 or 1, rows], got i32[1, 3, 4]"}},
          {"lists per KV head",
           [](P& p) {
             p.mask.full = {i32({1, 2, 4}), {}, i32({1, 2, 4, 3})};
             p.mask.partial.offsets = i32({2, 2, 5});
           }},
          {"lists per KV head and one for all",
           [](P& p) {
             p.mask.full = {i32({1, 1, 4}), {}, i32({1, 2, 4, 3})};
           }},
          {"counts per KV head, indices per head",
           [](P& p) {
             p.mask.full.counts = i32({1, 2, 4});
           },
           {"attention: mask.full.indices: expected shape [batch = 2 or 1, kv_heads = 2 or 1, rows "
            "= 4, capacity], got i32[1, 8, 4, 3]"}},
          {"full lists per head, partial ones per KV head",
           [](P& p) {
             p.mask.partial.offsets = i32({1, 2, 5});
           },
           {"attention: mask.partial.offsets: expected shape [batch = 2 or 1, heads = 8 or 1, rows "
            "+ 1], got i32[1, 2, 5]"}},
          {"heads that share no keys",
           [](P& p) {
             p.k = bf16({2, 200, 8, 64}), p.v = p.k;
             p.out = bf16({2, 100, 8, 64});
             p.mask.full.counts = i32({1, 2, 4});
           },
           {"expected shape [batch = 2 or 1, heads = 8 or 1, rows], got i32[1, 2, 4]"}},
          {"both forms",
           [](P& p) {
             p.mask.full.offsets = i32({1, 8, 5});
           },
           {"attention: mask.full: expected either counts or offsets, got both"}},
          {"neither form",
           [](P& p) { p.mask.full.counts = {}; },
           {"attention: mask.full: expected counts or offsets with indices, got neither"}},
          {"counts alone",
           [](P& p) { p.mask.full.indices = {}; },
           {"attention: mask.full.indices: expected a tensor, got none"}},
          {"indices' rows",
           [](P& p) {
             p.mask.full.indices = i32({1, 8, 5, 3});
           },
           {"attention: mask.full.indices: expected shape", "rows = 4", "got i32[1, 8, 5, 3]"}},
          {"indices of an offsets list",
           [](P& p) {
             p.mask.partial.indices = i32({1, 17});
           },
           {"attention: mask.partial.indices: expected shape [total], got i32[1, 17]"}},
          {"dtypes in a list",
           [](P& p) {
             p.mask.full.indices = i64({1, 8, 4, 3});
           },
           {"attention: mask.full.indices: expected dtype i32 as counts has, got i64"}},
          {"bits without bit_tile",
           [](P& p) { p.mask.bit_tile = {}; },
           {"attention: mask.bit_tile: expected a bit tile for each partial block, got none"}},
          {"bit_tile without bits",
           [](P& p) { p.mask.bits = {}; },
           {"attention: mask.bits: expected a tensor, got none"}},
          {"bits without partial lists",
           [](P& p) { p.mask.partial = {}; },
           {"attention: mask.partial: expected lists, as bit_tile or bits is given, got none"}},
          {"bit_tile's shape",
           [](P& p) { p.mask.bit_tile = i32({16}); },
           {"attention: mask.bit_tile: expected shape [total = 17], got i32[16]"}},
          {"bit_tile's dtype",
           [](P& p) { p.mask.bit_tile = i64({17}); },
           {"attention: mask.bit_tile: expected dtype i32 as partial.indices has, got i64[17]"}},
          {"bit_tile of a table",
           [](P& p) {
             p.mask.partial = {i32({1, 1, 4}), {}, i32({1, 1, 4, 2})};
             p.mask.bit_tile = i32({1, 1, 4, 2});
           }},
          {"bit_tile of another table",
           [](P& p) {
             p.mask.partial = {i32({1, 1, 4}), {}, i32({1, 1, 4, 2})};
             p.mask.bit_tile = i32({1, 1, 4, 3});
           },
           {"attention: mask.bit_tile: expected shape", "capacity = 2", "got i32[1, 1, 4, 3]"}},
          {"shape of the bits",
           [](P& p) {
             p.mask.bits = u8({5, 32, 7});
           },
           {"attention: mask.bits: expected shape [tiles, block_q = 32, ceil(block_kv / 8) = 8]",
            "got u8[5, 32, 7]"}},
          {"dtype of the bits",
           [](P& p) {
             p.mask.bits = i32({5, 32, 8});
           },
           {"attention: mask.bits: expected dtype u8, got i32"}},
      },
      kCheckShape);
}

// Three sequences of at most 20 queries and 50 keys.
P masked_packed() {
  P p = packed_attention();
  p.max_q_length = 20, p.max_kv_length = 50;
  p.mask = {.block_q = 10, .block_kv = 10, .full = {i32({1, 1, 2}), {}, i32({1, 1, 2, 5})}};
  return p;
}

// Rows and columns count within each sequence.
TEST(AttentionShape, masks_of_packed_sequences) {
  expect_cases(
      masked_packed,
      std::vector<Case>{
          {"as it is", [](P&) {}},
          {"longer sequences",
           [](P& p) { p.max_q_length = 21; },
           {"attention: mask.full.counts: expected at least 3 rows, for 21 queries in blocks of 10 "
            "(max_q_length bounds the longest sequence)"}},
          {"queries of unknown lengths",
           [](P& p) { p.max_q_length = 0; },
           {"attention: max_q_length: expected the length of the longest sequence, as mask applies "
            "to each sequence by itself, got 0 (unknown)"}},
          {"keys of unknown lengths",
           [](P& p) { p.max_kv_length = 0; },
           {"attention: max_kv_length: expected the length of the longest sequence", "got 0"}},
          {"no mask", [](P& p) { p.mask = {}, p.max_q_length = p.max_kv_length = 0; }},
          {"one sequence, as long as the tensors",
           [](P& p) {
             p.q_offsets = p.kv_offsets = i32({2});
             p.max_q_length = p.max_kv_length = 0;
             p.mask.full = {i32({1, 1, 10}), {}, i32({1, 1, 10, 5})};
           }},
          {"empty tensors",
           [](P& p) {
             p.q = p.out = bf16({0, 8, 32}), p.k = p.v = bf16({0, 2, 32});
             p.max_q_length = p.max_kv_length = 0;
           }},
      },
      kCheckShape);
  EXPECT_EQ(shape_of(masked_packed()).mask_rows, 2);
}

}  // namespace
}  // namespace tessera::planning
