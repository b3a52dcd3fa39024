// Attention masks whose blocks fit no tile: the blocks that each Hopper row composes from them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/kernels/cuda/attention/layout.hpp"
#include "src/kernels/cuda/attention/walk.hpp"
#include "tests/unit/attention_shapes.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

/// Blocks that fit no tile are composed into blocks of as few queries as folding allows.
TEST(SelectBlocks, ComposesBlocksOfAnySize) {
  const auto composed = [](const AttentionProblem& p, const std::string& row) {
    return composed_mask(shape_for(p), tile_of(row));
  };
  const std::string row = "sm90_attention_d128_q128_k128_s2",
                    lines = "sm90_attention_d128_q128_k128_s2_lists2";
  for (const std::int64_t block_kv : {64, 128, 192})
    EXPECT_FALSE(composed(masked({}, 128, block_kv, 4), row)) << block_kv;
  for (const std::int64_t block_kv : {1, 16, 32, 96, 100}) {
    const AttentionProblem p = masked({}, 128, block_kv, 4);
    EXPECT_TRUE(on_h200(p).supported) << block_kv;
    EXPECT_EQ(composed(p, row).queries, 128) << block_kv;
    EXPECT_EQ(composed(p, row).words, 1) << block_kv;
  }

  // Heads that share keys and lists are folded until a tile's queries fit into a row of blocks.
  const Sizes grouped{.heads = 32, .kv_heads = 4};
  for (const std::int64_t block_q : {16, 32, 64, 96}) {
    const AttentionProblem shared = masked(grouped, block_q, 128, 4);
    EXPECT_FALSE(composed(shared, row)) << block_q;
    EXPECT_EQ(block_q % attention_layout(shape_for(shared), row_of(row), 132).queries, 0)
        << block_q;
  }
  const auto takes = [&](const AttentionProblem& p, const std::string& by, std::int64_t queries,
                         std::int64_t words) {
    const ComposedMask mask = composed(p, by);
    EXPECT_EQ(mask.queries, queries);
    EXPECT_EQ(mask.words, words);
    // The row needs not compose the composed mask again.
    EXPECT_FALSE(composed_mask(with_mask(shape_for(p), composed_mask(shape_for(p), tile_of(by))),
                               tile_of(by)));
    const AttentionLayout at = attention_layout(shape_for(p), row_of(by), 132);
    EXPECT_EQ(at.row_groups > 1 ? at.queries / at.row_groups : at.queries, queries);
  };
  takes(masked({}, 16, 16, 4), row, 128, 8);  // no heads to fold
  takes(masked({}, 16, 16, 4), lines, 64, 4);
  takes(masked({}, 96, 64, 4), lines, 64, 2);
  takes(masked({}, 128, 16, 4), row, 128, 1);
  takes(masked({.heads = 32, .kv_heads = 4}, 16, 128, 4, 32), row, 128, 8);  // lists per head
  EXPECT_FALSE(composed(masked(grouped, 16, 128, 4, 4), row));               // lists per KV head
  takes(masked(grouped, 8, 128, 4), row, 16, 2);  // not enough heads share keys
  takes(masked(grouped, 16, 16, 4), row, 16, 1);
  takes(masked({.heads = 16, .kv_heads = 8}, 16, 16, 4), row, 64, 4);

  // With element masks, each query has a word of its own.
  AttentionProblem p = masked({}, 16, 16, 4);
  p.mask.partial = p.mask.full;
  p.mask.bit_tile = p.mask.partial.indices;
  p.mask.bits = shaped({3, 16, 2}, DType::u8);
  takes(p, lines, 64, 64);

  // A composed list is at most as long as the lists it is composed from, and as the columns.
  EXPECT_EQ(composed(masked({}, 16, 16, 4), lines).capacity, 16);
  EXPECT_EQ(composed(masked({}, 16, 16, 100), lines).capacity, 64);
  EXPECT_EQ(composed(masked({}, 64, 96, 4), lines).capacity, 4 * 2);
  EXPECT_EQ(composed(masked({}, 96, 64, 4), lines).capacity, 2 * 4);
  EXPECT_EQ(composed(masked({}, 40, 64, 4), lines).capacity, 3 * 4);

  const Explanation e = on_h200(masked({.length = 16384}, 16, 16, 20));
  EXPECT_NE(to_text(e).find("blocks composed into 64 x 64"), std::string::npos) << to_text(e);
  ASSERT_EQ(e.plan.kernel_name, lines);
  AttentionLayout at =
      attention_layout(shape_for(masked({.length = 16384}, 16, 16, 20)), row_of(lines), 132);
  at.composed = {};
  core::Carver besides;
  carve_attention_scratch(besides, tile_of(lines), at);
  // Counts, indices and element masks of 256 rows of 80 blocks.
  const auto aligned = [](std::int64_t bytes) { return (bytes + 127) / 128 * 128; };
  EXPECT_EQ(e.plan.workspace_bytes - besides.used(),
            2 * aligned(256 * 4) + 3 * aligned(256 * 80 * 4) + aligned(256 * 80 * 5 * 8));
}

}  // namespace
