// Attention whose mask has blocks that no tile fits: what each Hopper row composes of them.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "src/plan/attention_sm90.hpp"
#include "src/plan/select.hpp"

namespace {

using namespace tessera;            // NOLINT: a test of many small names
using namespace tessera::planning;  // NOLINT

/// Shapes alone: no tensor here has memory.
Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
  return tensor(nullptr, dtype, shape, {DeviceKind::cuda, 0});
}

struct Sizes {
  std::int64_t batch = 2, heads = 16, kv_heads = 16, length = 4096, dim = 128, dim_v = 0;
  DType dtype = DType::bf16;
};

AttentionProblem problem_of(const Sizes& s) {
  const std::int64_t dim_v = s.dim_v > 0 ? s.dim_v : s.dim;
  AttentionProblem p;
  p.q = shaped({s.batch, s.length, s.heads, s.dim}, s.dtype);
  p.k = shaped({s.batch, s.length, s.kv_heads, s.dim}, s.dtype);
  p.v = shaped({s.batch, s.length, s.kv_heads, dim_v}, s.dtype);
  p.out = shaped({s.batch, s.length, s.heads, dim_v}, s.dtype);
  return p;
}

/// Lists of `capacity` blocks a row, one set for `heads` heads.
AttentionProblem masked(const Sizes& s, std::int64_t block_q, std::int64_t block_kv,
                        std::int64_t capacity, std::int64_t heads = 1) {
  AttentionProblem p = problem_of(s);
  const std::int64_t rows = (s.length + block_q - 1) / block_q;
  p.mask.block_q = block_q, p.mask.block_kv = block_kv;
  p.mask.full.counts = shaped({1, heads, rows}, DType::i32);
  p.mask.full.indices = shaped({1, heads, rows, capacity}, DType::i32);
  return p;
}

Explanation on_h200(const AttentionProblem& problem) {
  return select(problem, device_preset("h200"), {});
}

AttentionShape shape_for(const AttentionProblem& problem) { return planning::shape_of(problem); }

const Tile& tile_of(const std::string& name) {
  for (const KernelRow& row : kernel_table(Backend::sm90))
    if (row.name == name) return row.tile;
  throw std::runtime_error(name);
}

/// What no tile fits is composed into blocks of as few queries as heads that share lists allow.
TEST(SelectBlocks, ComposesBlocksOfAnySize) {
  const auto composed = [](const AttentionProblem& p, const std::string& row) {
    return composed_mask(shape_for(p), tile_of(row));
  };
  const std::string row = "sm90_attention_128", lines = "sm90_attention_128_lines64";
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
    EXPECT_EQ(block_q % attention_layout(shape_for(shared), tile_of(row)).queries, 0) << block_q;
  }
  const auto takes = [&](const AttentionProblem& p, const std::string& by, std::int64_t queries,
                         std::int64_t words) {
    const ComposedMask mask = composed(p, by);
    EXPECT_EQ(mask.queries, queries);
    EXPECT_EQ(mask.words, words);
    // The row takes the composed mask as it is.
    EXPECT_FALSE(composed_mask(as_walked(shape_for(p), tile_of(by)), tile_of(by)));
    const AttentionLayout at = attention_layout(shape_for(p), tile_of(by));
    EXPECT_EQ(at.lines > 1 ? at.queries / at.lines : at.queries, queries);
  };
  takes(masked({}, 16, 16, 4), row, 128, 8);  // no heads to fold
  takes(masked({}, 16, 16, 4), lines, 64, 4);
  takes(masked({}, 96, 64, 4), lines, 64, 2);
  takes(masked({}, 128, 16, 4), row, 128, 1);
  takes(masked({.heads = 32, .kv_heads = 4}, 16, 128, 4, 32), row, 128, 8);  // each head its own
  EXPECT_FALSE(composed(masked(grouped, 16, 128, 4, 4), row));  // each head of keys its own
  takes(masked(grouped, 8, 128, 4), row, 16, 2);                // more heads than share their keys
  takes(masked(grouped, 16, 16, 4), row, 16, 1);
  takes(masked({.heads = 16, .kv_heads = 8}, 16, 16, 4), row, 64, 4);

  // With element masks, each query has a word of its own.
  AttentionProblem p = masked({}, 16, 16, 4);
  p.mask.partial = p.mask.full;
  p.mask.bit_tile = p.mask.partial.indices;
  p.mask.bits = shaped({3, 16, 2}, DType::u8);
  takes(p, lines, 64, 64);

  // A row of composed lists names no more than its rows of blocks can, nor than there are keys.
  EXPECT_EQ(composed(masked({}, 16, 16, 4), lines).capacity, 16);
  EXPECT_EQ(composed(masked({}, 16, 16, 100), lines).capacity, 64);
  EXPECT_EQ(composed(masked({}, 64, 96, 4), lines).capacity, 4 * 2);
  EXPECT_EQ(composed(masked({}, 96, 64, 4), lines).capacity, 2 * 4);
  EXPECT_EQ(composed(masked({}, 40, 64, 4), lines).capacity, 3 * 4);

  const Explanation e = on_h200(masked({.length = 16384}, 16, 16, 20));
  EXPECT_NE(to_text(e).find("blocks composed into 64 x 64"), std::string::npos) << to_text(e);
  ASSERT_EQ(e.plan.kernel_name, lines);
  AttentionLayout at =
      attention_layout(shape_for(masked({.length = 16384}, 16, 16, 20)), tile_of(lines));
  at.composed = {};
  Carver besides;
  carve_attention_scratch(besides, tile_of(lines), at);
  // Counts, indices and element masks of 256 rows of 80 blocks.
  const auto aligned = [](std::int64_t bytes) { return (bytes + 127) / 128 * 128; };
  EXPECT_EQ(e.plan.workspace_bytes - besides.used(),
            2 * aligned(256 * 4) + 3 * aligned(256 * 80 * 4) + aligned(256 * 80 * 5 * 8));
}

}  // namespace
