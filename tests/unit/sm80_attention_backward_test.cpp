// Attention backward rows for every GPU since Ampere: which device has which rows, how they are
// planned, and what Hopper chooses.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "src/kernels/cuda/sm80/attention_backward/plan.hpp"
#include "src/kernels/cuda/sm80/attention_backward/rows.hpp"
#include "tests/unit/attention_shapes.hpp"

namespace tessera::planning {
namespace {

AttentionBackwardProblem gradients_of(const Sizes& s) {
  AttentionBackwardProblem p;
  p.forward = problem_of(s);
  p.forward.lse = shaped({s.batch, s.heads, s.length}, DType::f32);
  p.dout = p.forward.out;
  p.dq = p.forward.q, p.dk = p.forward.k, p.dv = p.forward.v;
  return p;
}

bool fits(const KernelRow& row, const DeviceFacts& device) {
  return backward_shared_bytes(row.tile) <= device.shared_bytes_per_block;
}

TEST(Sm80AttentionBackward, RowsRunWhereTheirSharedMemoryFits) {
  for (const char* name : kSinceAmpere) {
    const DeviceFacts device = device_preset(name);
    for (const KernelRow& row : kSm80AttentionBackwardRows) {
      SCOPED_TRACE(std::string(row.name) + " on " + name);
      const AttentionBackwardProblem problem =
          gradients_of({.dim = row.tile.k, .dim_v = row.tile.v});
      const auto reasons = rejections(row, shape_of(AnyProblem(problem)), device);
      EXPECT_EQ(reasons.empty(), fits(row, device));
      if (reasons.empty()) continue;
      EXPECT_NE(reasons.front().find("bytes of shared memory: expected at most"), std::string::npos)
          << reasons.front();
    }
  }
}

/// A thread block leaves room for the reserved bytes, and each thread's registers for its
/// accumulators.
TEST(Sm80AttentionBackward, AnSmHoldsThePlannedThreadBlocks) {
  for (const KernelRow& row : kSm80AttentionBackwardRows) {
    const Tile& tile = row.tile;
    const int threads = backward_warps(tile) * 32, compiled = backward_ctas_compiled(tile);
    EXPECT_GE(std::min(65536 / (threads * compiled) / 8 * 8, 255), backward_accumulators(tile) + 32)
        << row.name;
    for (const char* name : kSinceAmpere) {
      const DeviceFacts device = device_preset(name);
      if (!fits(row, device)) continue;
      SCOPED_TRACE(std::string(row.name) + " on " + name);
      const std::int64_t ctas = backward_ctas_per_sm(tile, device);
      EXPECT_GE(ctas, 1);
      EXPECT_LE(ctas, compiled);
      EXPECT_LE(ctas * (backward_shared_bytes(tile) + kReservedBytes),
                device.shared_bytes_per_block + kReservedBytes);
    }
  }
}

/// The warps' parts of each product are the whole product.
TEST(Sm80AttentionBackward, WarpsShareTheProducts) {
  for (const KernelRow& row : kSm80AttentionBackwardRows) {
    const Tile& tile = row.tile;
    SCOPED_TRACE(row.name);
    const auto covers = [](const WarpGrid& grid, int warps, int rows, int columns) {
      EXPECT_EQ(grid.row_warps * grid.column_warps, warps);
      EXPECT_EQ(grid.row_warps * grid.rows, rows);
      EXPECT_EQ(grid.column_warps * grid.columns, columns);
      EXPECT_EQ(grid.rows % 16, 0);
      EXPECT_EQ(grid.columns % 16, 0);
    };
    const int warps = backward_warps(tile);
    covers(score_grid(tile), warps, tile.m, tile.n);
    covers(gradient_grid(tile, tile.k), warps / 2, tile.n, tile.k);
    covers(gradient_grid(tile, tile.v), warps / 2, tile.n, tile.v);
    covers(dq_grid(tile), warps, tile.m, tile.k);
    EXPECT_LE(score_grid(tile).columns, 32);  // a word of `hide`
  }
}

TEST(Sm80AttentionBackward, EveryHeadDimensionHasARowOnEveryDevice) {
  for (const char* name : kSinceAmpere) {
    for (const std::int64_t dim : {8, 40, 64, 72, 80, 96, 128, 160, 192, 200, 256}) {
      for (const std::int64_t dim_v : {dim, std::int64_t{8}, std::int64_t{256}}) {
        for (const DType dtype : {DType::f16, DType::bf16}) {
          AttentionBackwardProblem p = gradients_of({.dim = dim, .dim_v = dim_v, .dtype = dtype});
          const Explanation e = select(p, device_preset(name), on_sm80());
          ASSERT_TRUE(e.supported) << name << " " << dim << " " << dim_v;
          EXPECT_EQ(e.plan.backend, Backend::sm80);
          EXPECT_GT(e.plan.predicted_ms, 0);
          EXPECT_NE(e.candidates.front().why.find("estimated"), std::string::npos);
          p.forward.softcap = 30, p.forward.causal = true, p.forward.window_left = 100;
          EXPECT_TRUE(select(p, device_preset(name), on_sm80()).supported);
        }
      }
    }
  }
}

TEST(Sm80AttentionBackward, LongSequencesRunByTheRowsOfTheDevice) {
  const auto chosen = [](std::int64_t dim, const char* device, std::int64_t dim_v = 0) {
    return std::string(choose(gradients_of({.length = 16384, .dim = dim, .dim_v = dim_v}),
                              device_preset(device), on_sm80())
                           .kernel_name);
  };
  EXPECT_EQ(chosen(128, "a100"), "sm80_attention_backward_d128_q64_k128_s2_w8");
  EXPECT_EQ(chosen(128, "l4"), "sm80_attention_backward_d128_q64_k64_s1_w8");
  EXPECT_EQ(chosen(128, "rtx4090"), "sm80_attention_backward_d128_q64_k64_s1_w8");
  EXPECT_EQ(chosen(96, "l40s"), "sm80_attention_backward_d96_q64_k64_s2_w8");
  EXPECT_EQ(chosen(192, "a100"), "sm80_attention_backward_d192_q64_k64_s2_w8");
  EXPECT_EQ(chosen(192, "l4"), "sm80_attention_backward_d192_q64_k32_s1_w8");
  EXPECT_EQ(chosen(192, "l4", 128), "sm80_attention_backward_d192_v128_q64_k64_s1_w8");
  EXPECT_EQ(chosen(256, "a100"), "sm80_attention_backward_d256_q64_k64_s1_w8");
  EXPECT_EQ(chosen(256, "l4"), "sm80_attention_backward_d256_q64_k32_s1_w8");
  EXPECT_EQ(chosen(256, "b200"), "sm80_attention_backward_d256_q64_k64_s1_w8");
}

/// Three thread blocks per SM run at a time, each behind the one before it: few of a head.
TEST(Sm80AttentionBackward, HeadsInTurnsWaitLittle) {
  for (const auto& [length, least] : {std::pair(4096, 16), {8192, 4}, {16384, 2}}) {
    AttentionBackwardProblem p =
        gradients_of({.heads = 32, .kv_heads = 32, .length = length, .dim = 64});
    const Plan plan = choose(p, device_preset("h200"), on_sm80());
    EXPECT_EQ(plan.kernel_name, std::string("sm80_attention_backward_d64_q64_k64_s2_w4"));
    const auto section = plan.planned->layout.get<BackwardLayout>().section;
    EXPECT_GE(section, least) << length;
    p.forward.causal = true;  // sections ascend and descend in turns
    const auto causal = choose(p, device_preset("h200"), on_sm80()).planned->layout;
    EXPECT_TRUE(causal.get<BackwardLayout>().alternates) << length;
    EXPECT_LE(causal.get<BackwardLayout>().section, section) << length;
  }
}

/// Causal tiles of different lengths that all run at a time end when the longest does, and a last
/// round that is not full leaves SMs idle: shares of heads are shorter.
TEST(Sm80AttentionBackward, GroupsOfHeadsFillTheLastRound) {
  const auto shares_of = [](std::int64_t heads, std::int64_t length, bool causal) {
    AttentionBackwardProblem p =
        gradients_of({.batch = 4, .heads = heads, .kv_heads = 2, .length = length, .dim = 64});
    p.forward.causal = causal;
    const Plan plan = choose(p, device_preset("h200"), on_sm80());
    return plan.planned->layout.get<BackwardLayout>().tile_shares;
  };
  EXPECT_EQ(shares_of(4, 2793, true).heads, 2);
  EXPECT_EQ(shares_of(10, 8000, false).heads, 5);
  EXPECT_EQ(shares_of(10, 8000, false).blocks, 1);
  EXPECT_EQ(shares_of(2, 8000, false).heads, 1);
}

/// Rows that are forced to sm80 are slower than Hopper's own.
TEST(Sm80AttentionBackward, HopperChoosesItsOwnRows) {
  for (const std::int64_t dim : {64, 80, 96, 128, 192, 256})
    for (const std::int64_t length : {1, 17, 300, 1024, 4096, 32768})
      for (const std::int64_t heads : {1, 8, 40}) {
        AttentionBackwardProblem p =
            gradients_of({.heads = heads, .kv_heads = heads, .length = length, .dim = dim});
        for (const bool causal : {false, true}) {
          p.forward.causal = causal;
          const Plan plan = choose(p, device_preset("h100"));
          EXPECT_EQ(plan.backend, Backend::sm90)
              << dim << " " << length << " " << heads << ": " << plan.kernel_name;
        }
      }
}

/// One turn counter per block of queries, whatever the head dimension.
TEST(Sm80AttentionBackward, CountsTilesAndBytes) {
  const AttentionBackwardProblem p =
      gradients_of({.heads = 64, .kv_heads = 64, .length = 1000, .dim = 256});
  const Plan plan = choose(p, device_preset("a100"), on_sm80());
  const auto layout = plan.planned->layout.get<BackwardLayout>();
  EXPECT_EQ(layout.tile_shares.count(), 1);
  EXPECT_EQ(layout.tiles, 2 * 64 * 8);     // 1000 keys are 8 tiles of 128
  EXPECT_EQ(layout.query_blocks, 2 * 16);  // 1000 queries are 16 blocks
  EXPECT_EQ(layout.turns, 1);
  EXPECT_EQ(plan.workspace_bytes, 32 * 64 * (2 * 64 * 4 + 64 * 256 * 4 + 4) + 128);
}

}  // namespace
}  // namespace tessera::planning
