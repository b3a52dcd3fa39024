// Attention rows for every GPU since Ampere: which device has which rows, and what Hopper chooses.
#include "src/kernels/cuda/sm80/attention/plan.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/kernels/cuda/sm80/attention/rows.hpp"
#include "tests/unit/attention_shapes.hpp"

namespace tessera::planning {
namespace {

bool fits(const KernelRow& row, const DeviceFacts& device) {
  return attention_shared_bytes(row.tile) <= device.shared_bytes_per_block;
}

TEST(Sm80Attention, RowsRunWhereTheirSharedMemoryFits) {
  for (const char* name : kSinceAmpere) {
    const DeviceFacts device = device_preset(name);
    for (const KernelRow& row : kSm80AttentionRows) {
      SCOPED_TRACE(std::string(row.name) + " on " + name);
      const AttentionProblem problem = problem_of({.dim = row.tile.k, .dim_v = row.tile.v});
      const auto reasons = rejections(row, shape_of(AnyProblem(problem)), device);
      EXPECT_EQ(reasons.empty(), fits(row, device));
      if (reasons.empty()) continue;
      EXPECT_NE(reasons.front().find("bytes of shared memory: expected at most"), std::string::npos)
          << reasons.front();
    }
  }
}

/// A thread block leaves room for the reserved bytes, and no SM holds more than 65536 registers.
TEST(Sm80Attention, AnSmHoldsThePlannedThreadBlocks) {
  for (const char* name : kSinceAmpere) {
    const DeviceFacts device = device_preset(name);
    for (const KernelRow& row : kSm80AttentionRows) {
      if (!fits(row, device)) continue;
      SCOPED_TRACE(std::string(row.name) + " on " + name);
      const std::int64_t ctas = attention_ctas_per_sm(row.tile, device);
      EXPECT_GE(ctas, 1);
      EXPECT_LE(ctas, attention_ctas_compiled(row.tile));
      if (ctas > 1) {
        EXPECT_LE(ctas * (attention_shared_bytes(row.tile) + kReservedBytes),
                  device.shared_bytes_per_block + kReservedBytes);
      }
      // Room for the accumulators in each thread's registers.
      const int threads = attention_warps(row.tile) * 32;
      EXPECT_GE(65536 / (threads * attention_ctas_compiled(row.tile)),
                attention_accumulators(row.tile) + 40);
    }
  }
}

TEST(Sm80Attention, EveryHeadDimensionHasARowOnEveryDevice) {
  for (const char* name : kSinceAmpere) {
    for (const std::int64_t dim : {8, 40, 64, 72, 80, 96, 128, 160, 192, 200, 256}) {
      for (const std::int64_t dim_v : {dim, std::int64_t{8}, std::int64_t{256}}) {
        for (const DType dtype : {DType::f16, DType::bf16}) {
          AttentionProblem p = problem_of({.dim = dim, .dim_v = dim_v, .dtype = dtype});
          const Explanation e = select(p, device_preset(name), on_sm80());
          ASSERT_TRUE(e.supported) << name << " " << dim << " " << dim_v;
          EXPECT_EQ(e.plan.backend, Backend::sm80);
          EXPECT_GT(e.plan.predicted_ms, 0);
          EXPECT_NE(e.candidates.front().why.find("estimated"), std::string::npos);
          p.softcap = 30, p.causal = true, p.window_left = 100;
          EXPECT_TRUE(select(p, device_preset(name), on_sm80()).supported);
        }
      }
    }
  }
}

TEST(Sm80Attention, LongSequencesRunByTheRowsOfTheDevice) {
  const auto chosen = [](std::int64_t dim, const char* device) {
    return choose(problem_of({.length = 16384, .dim = dim}), device_preset(device)).kernel_name;
  };
  // 128 x 128 in two stages leave one thread block of four warps on an A100, or of eight on an L4.
  EXPECT_EQ(chosen(128, "a100"), "sm80_attention_d128_q256_k64_s2_w8");
  EXPECT_EQ(chosen(128, "l4"), "sm80_attention_d128_q128_k64_s2_w8");
  EXPECT_EQ(chosen(128, "rtx4090"), "sm80_attention_d128_q128_k64_s2_w8");
  EXPECT_EQ(chosen(64, "a100"), "sm80_attention_d64_q128_k64_s2_w4");
  EXPECT_EQ(chosen(256, "a100"), "sm80_attention_d256_q64_k64_s2_w4");
  EXPECT_EQ(chosen(256, "l4"), "sm80_attention_d256_q64_k64_s1_w4");
  EXPECT_EQ(chosen(256, "b200"), "sm80_attention_d256_q128_k64_s2_w8");
  // Two thread blocks per SM share no barrier.
  EXPECT_EQ(chosen(128, "b200"), "sm80_attention_d128_q128_k64_s2_w4");
}

/// Causal tiles of different lengths fill a last round, one tile per head does not.
TEST(Sm80Attention, OneTilePerHeadTakesWholeRounds) {
  AttentionProblem p =
      problem_of({.batch = 11, .heads = 16, .kv_heads = 16, .length = 85, .dim = 128});
  p.causal = true;
  // 176 tiles would take 132 SMs two rounds by the row with one thread block per SM.
  EXPECT_NE(choose(p, device_preset("h200"), on_sm80()).kernel_name,
            std::string("sm80_attention_d128_q128_k64_s2_w8"));
}

/// A tile that has its SM alone takes no longer in a row whose thread blocks share an SM.
TEST(Sm80Attention, ShortSequencesRunByRowsOfTheirHeadDimension) {
  for (const char* name : kSinceAmpere) {
    for (const std::int64_t length : {16, 91, 210, 350}) {
      const auto problem =
          problem_of({.batch = 1, .heads = 8, .kv_heads = 8, .length = length, .dim = 64});
      EXPECT_TRUE(choose(problem, device_preset(name), on_sm80())
                      .kernel_name.starts_with("sm80_attention_d64_"))
          << name << " " << length;
    }
  }
}

/// Rows that are forced to sm80 are slower than Hopper's own.
TEST(Sm80Attention, HopperChoosesItsOwnRows) {
  for (const char* device : {"h100", "h200"}) {
    for (const std::int64_t dim : {64, 80, 96, 128, 192, 256}) {
      for (const std::int64_t length : {1, 17, 64, 300, 1024, 4096, 32768}) {
        for (const std::int64_t batch : {1, 3, 64}) {
          for (const std::int64_t heads : {1, 8, 40}) {
            AttentionProblem p = problem_of(
                {.batch = batch, .heads = heads, .kv_heads = heads, .length = length, .dim = dim});
            for (const bool causal : {false, true}) {
              p.causal = causal;
              const Plan plan = choose(p, device_preset(device));
              EXPECT_EQ(plan.backend, Backend::sm90)
                  << dim << " " << length << " " << batch << " " << heads << " " << causal << ": "
                  << plan.kernel_name << " " << plan.predicted_ms;
            }
          }
        }
      }
    }
    for (const std::int64_t block : {16, 64, 128})
      for (const std::int64_t capacity : {1, 8, 64})
        EXPECT_EQ(choose(masked({}, block, block, capacity), device_preset(device)).backend,
                  Backend::sm90);
  }
}

/// Lists that change every 64 rows run by tiles of 64 queries, or with heads folded into rows.
TEST(Sm80Attention, ListsOf64RowsAreNotComposed) {
  for (const char* name : kSinceAmpere) {
    const Plan plan = choose(masked({.length = 32768}, 64, 64, 64), device_preset(name), on_sm80());
    EXPECT_FALSE(plan.planned->layout.get<AttentionLayout>().composed) << plan.kernel_name;
    EXPECT_EQ(plan.planned->layout.get<AttentionLayout>().queries, 64) << plan.kernel_name;
  }
}

/// Few tiles over many keys: thread blocks share the keys, in slots of their own.
TEST(Sm80Attention, FewTilesSplitTheirKeys) {
  for (const char* name : kSinceAmpere) {
    AttentionProblem p = problem_of({.batch = 1, .heads = 2, .kv_heads = 2, .length = 65536});
    p.q = p.out = shaped({1, 64, 2, 128});
    const Plan plan = choose(p, device_preset(name), on_sm80());
    const auto at = plan.planned->layout.get<AttentionLayout>();
    EXPECT_GT(at.split_ctas, at.split_tiles()) << name;
    EXPECT_GT(plan.workspace_bytes, 0);
  }
}

/// One query per sequence over pages, as decoding has; other sizes are refused with the reason.
TEST(Sm80Attention, PagesOfTheseSizesAreRead) {
  for (const char* name : kSinceAmpere) {
    for (const std::int64_t page : {4, 8, 16, 32, 48, 64, 128, 96, 192}) {
      AttentionProblem p = problem_of({.heads = 32, .kv_heads = 8});
      p.q = p.out = shaped({2, 1, 32, 128});
      p.k = p.v = shaped({40, page, 8, 128});
      p.page_table = shaped({2, 20}, DType::i32), p.kv_end = shaped({2}, DType::i32);
      const Explanation e = select(p, device_preset(name), on_sm80());
      EXPECT_EQ(e.supported, page == 8 || page == 16 || page == 32 || page % 64 == 0)
          << name << " " << page;
      if (!e.supported) {
        EXPECT_NE(to_text(e).find("pages of 8, 16 or 32 keys, or of a multiple of 64"),
                  std::string::npos);
      }
    }
  }
}

TEST(Sm80Attention, AForcedBackendIsNamedInReasons) {
  const Explanation e = select(problem_of({}), device_preset("h100"), on_sm80());
  EXPECT_EQ(e.plan.backend, Backend::sm80);
  for (const Candidate& c : e.candidates) {
    if (c.backend != Backend::sm90) continue;
    EXPECT_EQ(c.reasons.front(), "execution.backend requires sm80") << c.kernel;
  }
}

}  // namespace
}  // namespace tessera::planning
