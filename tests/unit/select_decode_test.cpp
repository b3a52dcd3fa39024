// When decode rows are chosen, how they fold heads and queries, and what they refuse.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/kernels/cuda/sm90/decode/plan.hpp"
#include "src/kernels/cuda/sm90/decode/rows.hpp"
#include "tests/unit/attention_shapes.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

/// A decode step: `queries` per sequence over `keys`; `page` 0: contiguous keys.
AttentionProblem step(std::int64_t batch, std::int64_t queries, std::int64_t keys,
                      std::int64_t heads, std::int64_t kv_heads, std::int64_t page,
                      std::int64_t dim = 128) {
  AttentionProblem p;
  p.q = p.out = shaped({batch, queries, heads, dim});
  if (page > 0) {
    const std::int64_t entries = (keys + page - 1) / page;
    p.k = p.v = shaped({batch * entries, page, kv_heads, dim});
    p.page_table = shaped({batch, entries}, DType::i32);
    p.kv_end = shaped({batch}, DType::i32);
  } else {
    p.k = p.v = shaped({batch, keys, kv_heads, dim});
  }
  return p;
}

std::string chosen(const AttentionProblem& p) { return on_h200(p).plan.kernel_name; }

TEST(SelectDecode, FewQueriesOverManyKeys) {
  const struct {
    std::int64_t batch, keys, heads, kv_heads, page;
  } cases[] = {{64, 8192, 32, 8, 64}, {1, 65536, 32, 8, 64},  {128, 2048, 32, 8, 16},
               {16, 8192, 64, 8, 16}, {8, 32768, 32, 8, 128}, {1, 8192, 32, 8, 64},
               {64, 8192, 32, 32, 64}};
  for (const auto& c : cases)
    for (const std::int64_t page : {c.page, std::int64_t{0}})
      EXPECT_EQ(chosen(step(c.batch, 1, c.keys, c.heads, c.kv_heads, page)),
                "sm90_decode_d128_q16_k64_s4_split4")
          << c.batch << " " << c.keys << " " << page;
  EXPECT_EQ(chosen(step(32, 8, 8192, 32, 8, 64)), "sm90_decode_d128_q64_k64_s4_split2");
  EXPECT_EQ(chosen(step(32, 1, 8192, 64, 1, 64)), "sm90_decode_d128_q64_k64_s4_split2");
  EXPECT_EQ(chosen(step(32, 1, 8192, 32, 8, 64, 64)), "sm90_decode_d64_q16_k64_s8_split4");
  EXPECT_EQ(chosen(step(32, 1, 8192, 32, 8, 64, 192)), "sm90_decode_d256_q16_k64_s2_split2");
}

/// The table has room for 65536 keys, but most sequences are short: only equal shares end together.
TEST(SelectDecode, SequencesOfManyLengths) {
  for (const std::int64_t pages : {2000, 8000, 32 * 1024, 1 << 20}) {
    AttentionProblem p = step(32, 1, 65536, 32, 8, 64);
    p.k = p.v = shaped({pages, 64, 8, 128});
    EXPECT_EQ(chosen(p), "sm90_decode_d128_q16_k64_s4_split4") << pages;
    p.q = p.out = shaped({32, 4, 32, 128});
    EXPECT_EQ(chosen(p).find("sm90_decode_"), 0u) << pages;
  }
}

TEST(SelectDecode, PrefillHasOtherRows) {
  for (const std::int64_t length : {256, 1024, 16384}) {
    EXPECT_EQ(chosen(step(4, length, length, 32, 8, 0)).find("sm90_attention_"), 0u) << length;
    EXPECT_EQ(chosen(step(1, 1024, 32768, 32, 8, 0)).find("sm90_attention_"), 0u);
    EXPECT_EQ(chosen(step(4, length, length, 32, 8, 64)).find("sm90_attention_"), 0u) << length;
    EXPECT_EQ(chosen(step(4, length, length, 32, 8, 16)).find("sm80_attention_"), 0u)
        << "rows of sm90_attention read no pages of fewer than 64 keys";
  }
}

TEST(SelectDecode, SupportsPagesThatPiecesFit) {
  const KernelRow& row = row_of("sm90_decode_d128_q16_k64_s4_split4");
  const DeviceFacts device = device_preset("h200");
  const std::vector<std::string> refused{
      "page_table: expected pages of 8, 16 or 32 keys, or of a multiple of 64"};
  for (const std::int64_t page : {8, 16, 32, 64, 128, 192, 256, 1024})
    EXPECT_EQ(rejections(row, shape_for(step(2, 1, 2048, 8, 8, page)), device),
              std::vector<std::string>{})
        << page;
  for (const std::int64_t page : {1, 4, 24, 48, 65, 96, 100})
    EXPECT_EQ(rejections(row, shape_for(step(2, 1, 2048, 8, 8, page)), device), refused) << page;
  EXPECT_EQ(rejections(row, shape_for(step(2, 1, 2048, 8, 8, 64, 136)), device).front(),
            "head dimension: expected at most 128, got 136");
  EXPECT_EQ(rejections(row, shape_for(step(2, 1, 2048, 8, 8, 64, 60)), device).front(),
            "head dimension: expected a multiple of 8, got 60");
  // The pool may be larger than one sequence can be.
  EXPECT_TRUE(rejections(row, shape_for(step(1 << 14, 1, 1 << 16, 8, 8, 64)), device).empty());
}

/// The fold reads each key with the fewest tiles.
TEST(DecodeLayout, FoldsHeadsAndQueries) {
  const struct {
    std::int64_t group, queries;
    int rows16_pack, rows64_pack;
  } cases[] = {{1, 1, 1, 1},   {4, 1, 4, 4},    {8, 4, 8, 8},    {12, 1, 12, 12}, {16, 16, 16, 16},
               {17, 1, 1, 17}, {64, 1, 16, 64}, {64, 2, 16, 64}, {3, 5, 3, 3},    {128, 1, 16, 64}};
  for (const auto& c : cases) {
    const AttentionShape s = shape_for(step(2, c.queries, 4096, 2 * c.group, 2, 64));
    for (const int m : {16, 64}) {
      const KernelRow& row = row_of(m == 16 ? "sm90_decode_d128_q16_k64_s4_split4"
                                            : "sm90_decode_d128_q64_k64_s4_split2");
      const DecodeLayout at = decode_layout(s, row, 132);
      EXPECT_EQ(at.tiles.pack, m == 16 ? c.rows16_pack : c.rows64_pack)
          << c.group << " " << c.queries << " " << m;
      EXPECT_LE(at.tiles.pack * at.tiles.queries, m);
      EXPECT_EQ(at.tiles.head_groups * at.tiles.pack, 2 * c.group);
      EXPECT_EQ(at.tiles.tiles,
                2 * at.tiles.head_groups * ((c.queries + at.tiles.queries - 1) / at.tiles.queries));
      EXPECT_EQ(at.sets, 1);
    }
  }
}

/// A tile's queries lie in one row of blocks, unless blocks are composed.
TEST(DecodeLayout, TilesFitTheRowsOfBlocks) {
  const KernelRow& row = row_of("sm90_decode_d128_q64_k64_s4_split2");
  const auto layout = [&](std::int64_t queries, std::int64_t block_q, std::int64_t block_kv,
                          std::int64_t lists) {
    AttentionProblem p = step(2, queries, 4096, 16, 4, 64);
    p.mask.block_q = block_q, p.mask.block_kv = block_kv;
    const std::int64_t rows = (queries + block_q - 1) / block_q;
    p.mask.full.counts = shaped({1, lists, rows}, DType::i32);
    p.mask.full.indices = shaped({1, lists, rows, 5}, DType::i32);
    return decode_layout(shape_for(p), row, 132);
  };
  EXPECT_EQ(layout(1, 1, 64, 4).tiles.queries, 16);
  EXPECT_EQ(layout(4, 1, 64, 4).tiles.queries, 1);  // each query has its own list
  EXPECT_EQ(layout(16, 12, 64, 4).tiles.queries, 12);
  EXPECT_EQ(layout(16, 64, 128, 4).tiles.queries, 16);
  EXPECT_EQ(layout(4, 1, 64, 4).sets, 4);
  EXPECT_EQ(layout(4, 1, 64, 4).strands, 1);  // a set of lists per head group
  EXPECT_EQ(layout(4, 1, 64, 1).strands * layout(4, 1, 64, 1).groups_per_strand(), 4);
  EXPECT_EQ(layout(4, 1, 64, 16).tiles.pack, 1);  // heads with lists of their own
  EXPECT_FALSE(layout(4, 1, 64, 4).tiles.composed);
  EXPECT_TRUE(layout(4, 1, 32, 4).tiles.composed);
}

/// Few CTAs are left over.
TEST(DecodeLayout, DealsHeadsToStrands) {
  const KernelRow& row = row_of("sm90_decode_d128_q16_k64_s4_split4");
  const struct {
    std::int64_t kv_heads, ctas, strands;
  } cases[] = {{1, 132, 1}, {8, 132, 8},   {32, 132, 16}, {16, 132, 16}, {12, 132, 12},
               {5, 132, 5}, {10, 132, 10}, {8, 78, 4},    {8, 114, 8},   {7, 66, 1}};
  for (const auto& c : cases) {
    const auto at =
        decode_layout(shape_for(step(4, 1, 8192, c.kv_heads, c.kv_heads, 64)), row, c.ctas);
    EXPECT_EQ(at.strands, c.strands) << c.kv_heads << " " << c.ctas;
  }
}

TEST(DecodeLayout, ExplainSaysHowKeysAreSplit) {
  const std::string text = to_text(on_h200(step(64, 1, 8192, 32, 8, 64)));
  EXPECT_NE(text.find("; 512 tiles, 4 heads folded into rows, keys split evenly across 128 CTAs, "
                      "pages of 64 keys"),
            std::string::npos)
      << text;
}

/// Rows, layouts and parts do not depend on the batch, and rows that do are refused.
TEST(SelectDecode, BatchInvariantProblems) {
  const auto invariant = [](std::int64_t batch, std::int64_t queries, std::int64_t keys,
                            std::int64_t page) {
    AttentionProblem p = step(batch, queries, keys, 32, 8, page);
    p.batch_invariant = true;
    return p;
  };
  for (const std::int64_t queries : {1, 4, 16, 1024})
    for (const std::int64_t keys : {512, 8192, 65536})
      for (const std::int64_t page : {0, 64}) {
        const std::string alone = chosen(invariant(1, queries, keys, page));
        EXPECT_EQ(alone.find("sm90_decode_"), 0u) << alone;
        const KernelRow& row = row_of(alone);
        const DecodeLayout one =
            decode_layout(shape_for(invariant(1, queries, keys, page)), row, 132);
        for (const std::int64_t batch : {2, 7, 64, 256}) {
          const AttentionProblem p = invariant(batch, queries, keys, page);
          EXPECT_EQ(chosen(p), alone) << batch << " " << queries << " " << keys;
          const DecodeLayout at = decode_layout(shape_for(p), row, 132);
          EXPECT_EQ(at.part_pieces, one.part_pieces);
          EXPECT_EQ(at.max_parts, one.max_parts);
          EXPECT_EQ(at.tiles.pack, one.tiles.pack);
          EXPECT_EQ(at.tiles.queries, one.tiles.queries);
          EXPECT_EQ(at.counters(), batch * one.counters());
          EXPECT_EQ(at.slots(), batch * one.slots());
        }
      }
  const DecodeLayout at = decode_layout(shape_for(invariant(4, 1, 8192, 64)),
                                        row_of("sm90_decode_d128_q16_k64_s4_split4"), 132);
  EXPECT_EQ(at.max_parts, 32);  // eight tiles per sequence
  EXPECT_EQ(at.slots(), 4 * 8 * 32);
  // Enough tiles per sequence to occupy all SMs: no splits.
  EXPECT_EQ(decode_layout(shape_for(invariant(4, 1024, 8192, 64)),
                          row_of("sm90_decode_d128_q64_k64_s4_split2"), 132)
                .slots(),
            0);
  const std::string text = to_text(on_h200(invariant(64, 1, 8192, 64)));
  EXPECT_NE(text.find("keys split into at most 32 parts of at least 512"), std::string::npos)
      << text;
  EXPECT_NE(text.find("batch_invariant is not supported"), std::string::npos) << text;
  const std::string ampere = to_text(select(invariant(64, 1, 8192, 0), device_preset("a100"), {}));
  EXPECT_NE(ampere.find("sm80_attention  batch_invariant is not supported"), std::string::npos)
      << ampere;
}

TEST(SelectDecode, KeysInE4m3AreHalfTheBytes) {
  AttentionProblem p = step(64, 1, 8192, 32, 8, 64);
  const auto milliseconds = [&] { return on_h200(p).plan.predicted_ms; };
  const double wide = milliseconds();
  p.k.dtype = p.v.dtype = DType::e4m3;
  EXPECT_NEAR(milliseconds() / wide, 0.5, 0.05);
  const std::string text = to_text(on_h200(p));
  EXPECT_NE(text.find("k and v: dtype e4m3 is not supported (supported: f16, bf16)"),
            std::string::npos)
      << text;
}

TEST(SelectDecode, QueriesInE4m3AreReadToo) {
  AttentionProblem p = step(64, 1, 8192, 32, 8, 16);
  for (Tensor* t : {&p.q, &p.k, &p.v}) t->dtype = DType::e4m3;
  EXPECT_EQ(chosen(p), "sm90_decode_d128_q16_k64_s4_split4");
  EXPECT_NE(to_text(on_h200(p)).find("e4m3 x e4m3 in f16, P in f16, sums in f32"),
            std::string::npos);
  // A list of keys for each column.
  p = step(4, 1, 512, 32, 8, 0);
  for (Tensor* t : {&p.q, &p.k, &p.v}) t->dtype = DType::e4m3;
  p.v.strides = {512 * 8 * 128, 1, 512 * 128, 512};
  const Explanation e = on_h200(p);
  for (const Candidate& c : e.candidates) {
    if (!c.kernel.starts_with("sm90_decode")) continue;
    EXPECT_FALSE(c.reasons.empty()) << c.kernel;
  }
}

TEST(SelectDecode, FactorsOfRowsOfPackedKeysAreRefused) {
  AttentionProblem p = step(4, 1, 512, 32, 8, 0);
  p.kv_offsets = shaped({5}, DType::i32);
  p.k = p.v = shaped({2048, 8, 128}, DType::e4m3);
  p.k_scale = shaped({8}, DType::f32);
  EXPECT_EQ(chosen(p), "sm90_decode_d128_q16_k64_s4_split4");
  p.v_scale = shaped({8, 32}, DType::f32);
  const std::string text = to_text(on_h200(p));
  EXPECT_NE(text.find("factors for 64 or 128 rows of packed keys is not supported"),
            std::string::npos)
      << text;
}

TEST(DecodeLayout, WorkspaceDependsOnTheTileAlone) {
  const auto bytes = [](std::int64_t batch, std::int64_t keys) {
    return on_h200(step(batch, 1, keys, 32, 8, 64)).plan.workspace_bytes;
  };
  EXPECT_EQ(bytes(1, 65536), bytes(64, 8192));
  // 132 counters; two parts per CTA of 16 rows and 128 columns, each chunk with its softmax state.
  EXPECT_EQ(bytes(64, 8192), (132 * 8 + 127) / 128 * 128 + 2 * 132 * 4 * 2560);
}

}  // namespace
