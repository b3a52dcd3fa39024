// Attention whose mask has a list per 64 queries: which Hopper row is chosen, and its predicted
// time.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/kernels/cuda/attention/cost.hpp"
#include "src/kernels/cuda/attention/layout.hpp"
#include "tests/unit/attention_shapes.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

struct Lists {
  std::int64_t heads = 16, kv_heads = 16, length = 32768, dim = 128;
  std::int64_t block_q = 64, block_kv = 64, capacity = 64, mask_heads = 1;
};

AttentionProblem masked(const Lists& l) {
  const Sizes sizes{
      .batch = 1, .heads = l.heads, .kv_heads = l.kv_heads, .length = l.length, .dim = l.dim};
  return planning::masked(sizes, l.block_q, l.block_kv, l.capacity, l.mask_heads);
}

std::string taken_by(const Lists& s) { return on_h200(masked(s)).plan.kernel_name; }

std::string reason(const Lists& s, const std::string& row) {
  const Explanation e = on_h200(masked(s));
  for (const Candidate& c : e.candidates)
    if (c.kernel == row) return c.reasons.empty() ? "" : c.reasons.front();
  throw std::runtime_error(row);
}

TEST(SelectRowGroups, OddMultiplesOf64AreWalkedTogether) {
  for (const std::int64_t block_q : {64, 192, 320}) {
    const bool fills_tall = block_q == 192;  // one list fills a tile of 192 queries
    for (const std::int64_t block_kv : {64, 128, 192}) {
      const Lists s{.block_q = block_q, .block_kv = block_kv};
      EXPECT_EQ(taken_by(s), fills_tall ? "sm90_attention_d128_q192_k64_s3"
                                        : "sm90_attention_d128_q128_k128_s2_lists2")
          << block_q << " x " << block_kv;
    }
    EXPECT_EQ(
        taken_by({.dim = 64, .block_q = block_q}),
        fills_tall ? "sm90_attention_d64_q192_k128_s3" : "sm90_attention_d64_q64_k128_s4_split2");
    EXPECT_EQ(
        taken_by({.dim = 96, .block_q = block_q}),
        fills_tall ? "sm90_attention_d96_q192_k64_s4" : "sm90_attention_d128_q128_k128_s2_lists2");
  }
  const std::string text = to_text(on_h200(masked({})));
  EXPECT_NE(text.find("2 row groups of 64 rows walked together"), std::string::npos) << text;
}

TEST(SelectRowGroups, TilesOfOneListAreForOtherRows) {
  EXPECT_EQ(taken_by({.block_q = 128}), "sm90_attention_d128_q128_k128_s2");
  EXPECT_EQ(taken_by({.block_q = 256}), "sm90_attention_d128_q128_k128_s2");
  EXPECT_EQ(taken_by({.dim = 64, .block_q = 128, .block_kv = 128, .capacity = 32}),
            "sm90_attention_d64_q128_k64_s6_split2");
  // Two heads that share keys and lists fill a tile with 64 queries.
  EXPECT_EQ(taken_by({.kv_heads = 8}), "sm90_attention_d128_q128_k128_s2");
  EXPECT_EQ(taken_by({.kv_heads = 8, .mask_heads = 16}), "sm90_attention_d128_q128_k128_s2_lists2");
}

/// Lists per KV head are walked once for the heads that share it, as lists of all heads are.
TEST(SelectRowGroups, HeadsThatShareKeysAndListsAreFolded) {
  for (const std::int64_t kv_heads : {2, 4, 8})
    for (const std::int64_t block_kv : {64, 128, 192}) {
      const Lists s{.kv_heads = kv_heads, .block_kv = block_kv, .mask_heads = kv_heads};
      EXPECT_EQ(taken_by(s), "sm90_attention_d128_q128_k128_s2") << kv_heads << ", " << block_kv;
      const std::string text = to_text(on_h200(masked(s)));
      EXPECT_NE(text.find("2 heads folded into rows"), std::string::npos) << text;
      Lists shared = s;
      shared.mask_heads = 1;
      EXPECT_EQ(on_h200(masked(s)).plan.predicted_ms, on_h200(masked(shared)).plan.predicted_ms);
    }
  for (const std::int64_t dim : {64, 96, 192, 256})
    EXPECT_EQ(taken_by({.kv_heads = 4, .dim = dim, .mask_heads = 4}),
              taken_by({.kv_heads = 4, .dim = dim}));
  // Three heads cannot be folded. Blocks that fill a tile need no fold.
  EXPECT_EQ(taken_by({.heads = 12, .kv_heads = 4, .mask_heads = 4}),
            "sm90_attention_d128_q128_k128_s2_lists2");
  EXPECT_EQ(taken_by({.kv_heads = 4, .block_q = 128, .mask_heads = 4}),
            "sm90_attention_d128_q128_k128_s2");
  EXPECT_EQ(reason({.kv_heads = 4, .mask_heads = 4}, "sm90_attention_d128_q128_k128_s2_lists2"),
            "mask: expected lists that differ within the queries of a tile");
  EXPECT_EQ(reason({.kv_heads = 4, .mask_heads = 4}, "sm90_attention_d128_q128_k128_s2"), "");
  const AttentionShape small = shape_of(masked({.kv_heads = 4, .block_q = 16, .mask_heads = 4}));
  for (const KernelRow& row : rows_of(Backend::sm90))
    if (row.name == std::string("sm90_attention_d128_q128_k128_s2")) {
      EXPECT_EQ(composed_mask(small, row.tile).queries, 32);
    }
}

TEST(SelectRowGroups, RefusalsSayWhatIsSupported) {
  const std::string row = "sm90_attention_d128_q128_k128_s2_lists2";
  EXPECT_EQ(reason({}, row), "");
  EXPECT_EQ(reason({.block_q = 128}, row),
            "mask: expected lists that differ within the queries of a tile");
  EXPECT_EQ(reason({.block_q = 128, .block_kv = 32}, row),
            "mask: expected lists that differ within the queries of a tile");
  EXPECT_EQ(reason({.kv_heads = 8}, row),
            "mask: expected lists that differ within the queries of a tile");
  EXPECT_EQ(reason({.kv_heads = 8, .block_q = 16}, row),  // composed into 64 queries
            "mask: expected lists that differ within the queries of a tile");
  EXPECT_EQ(reason({.block_q = 96}, row), "");
  EXPECT_EQ(reason({.block_kv = 32}, row), "");
  EXPECT_EQ(reason({.length = 65536 * 64}, row), "");
  EXPECT_EQ(reason({.length = 65536 * 64 + 1}, row),
            "columns of blocks: expected at most 65536, got 65537");
  EXPECT_EQ(reason({.length = 65536 * 64 + 1, .block_kv = 128}, row), "");
  EXPECT_EQ(reason({}, "sm90_attention_d128_q128_k128_s2"), "");

  AttentionProblem dense = masked({});
  dense.mask = {};
  const Explanation e = on_h200(dense);
  for (const Candidate& c : e.candidates) {
    if (c.kernel == row) {
      EXPECT_EQ(c.reasons, std::vector<std::string>{"requires a block mask"});
    }
  }
}

TEST(SelectRowGroups, TheUnionOfListsIsLoaded) {
  const auto share = [](std::int64_t capacity, int row_groups) {
    return share_of_union(shape_of(masked({.capacity = capacity})), row_groups);
  };
  EXPECT_DOUBLE_EQ(share(128, 1), 0.25);
  EXPECT_DOUBLE_EQ(share(128, 2), 1 - 0.75 * 0.75);
  EXPECT_DOUBLE_EQ(share(512, 2), 1);
  EXPECT_DOUBLE_EQ(share(0, 2), 0);

  // Random lists of 64 rows cost more than the same density in rows of 128.
  const double row_groups = on_h200(masked({})).plan.predicted_ms;
  const double whole = on_h200(masked({.block_q = 128})).plan.predicted_ms;
  EXPECT_GT(row_groups, 1.2 * whole);
  EXPECT_LT(row_groups, 2.5 * whole);
}

}  // namespace
