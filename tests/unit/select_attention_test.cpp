// Which Hopper row is chosen for an attention problem, its layout, and what explain says.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <tessera/error.hpp>

#include "src/kernels/cuda/attention/layout.hpp"
#include "src/kernels/cuda/attention/walk.hpp"
#include "src/walk/kv_share.hpp"
#include "tests/unit/attention_shapes.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

constexpr std::int64_t kUnits = 132;  // of an H200

std::vector<KernelRow> rows() {
  std::vector<KernelRow> found;
  for (const KernelRow& row : rows_of(Backend::sm90))
    if (family_of(row).name == "sm90_attention") found.push_back(row);
  return found;
}

std::vector<std::string> reasons_of(const Explanation& e, const std::string& row) {
  for (const Candidate& c : e.candidates)
    if (c.kernel == row) return c.reasons;
  throw std::runtime_error(row);
}

using Reasons = std::vector<std::string>;

TEST(SelectAttention, TheNarrowestRowThatFitsTheHeadDimension) {
  const struct {
    std::int64_t dim, dim_v;
    const char* row;
  } cases[] = {{8, 8, "sm90_attention_d64_q192_k128_s3"},
               {64, 64, "sm90_attention_d64_q192_k128_s3"},
               {72, 40, "sm90_attention_d80_q192_k64_s4"},
               {80, 80, "sm90_attention_d80_q192_k64_s4"},
               {80, 88, "sm90_attention_d96_q192_k64_s4"},
               {96, 96, "sm90_attention_d96_q192_k64_s4"},
               {104, 104, "sm90_attention_d128_q192_k64_s3"},
               {128, 128, "sm90_attention_d128_q192_k64_s3"},
               {64, 128, "sm90_attention_d128_q192_k64_s3"},
               {128, 64, "sm90_attention_d128_q192_k64_s3"},
               {192, 128, "sm90_attention_d192_v128_q128_k128_s2"},
               {136, 16, "sm90_attention_d192_v128_q128_k128_s2"},
               {192, 192, "sm90_attention_d192_q128_k64_s3"},
               {136, 136, "sm90_attention_d192_q128_k64_s3"},
               {200, 200, "sm90_attention_d256_q128_k64_s2"},
               {256, 256, "sm90_attention_d256_q128_k64_s2"}};
  for (const auto& c : cases)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const Explanation e =
          on_h200(problem_of({.length = 8192, .dim = c.dim, .dim_v = c.dim_v, .dtype = dtype}));
      ASSERT_TRUE(e.supported) << to_text(e);
      EXPECT_EQ(e.plan.kernel_name, c.row) << c.dim << " and " << c.dim_v;
    }
}

TEST(SelectAttention, ShortWalksHaveShortSteps) {
  const auto row = [](std::int64_t batch, std::int64_t length) {
    return on_h200(problem_of({.batch = batch, .length = length, .dim = 64})).plan.kernel_name;
  };
  EXPECT_EQ(row(1, 512),
            "sm90_attention_d64_q64_k128_s4_split2");  // fewer tiles than SMs
  EXPECT_EQ(row(64, 256), "sm90_attention_d64_q256_k64_s6");
  EXPECT_EQ(row(16, 1024), "sm90_attention_d64_q256_k64_s6");
  EXPECT_EQ(row(4, 4096), "sm90_attention_d64_q192_k128_s3");
  EXPECT_EQ(row(1, 16384), "sm90_attention_d64_q192_k128_s3");
}

TEST(SelectAttention, TheRowDependsOnLengthAndWindow) {
  const auto row = [](std::int64_t length, bool causal, std::optional<std::int64_t> window = {}) {
    AttentionProblem p = problem_of({.batch = 16384 / length, .length = length});
    p.causal = causal;
    p.window_left = window;
    return on_h200(p).plan.kernel_name;
  };
  EXPECT_EQ(row(256, false), "sm90_attention_d128_q128_k64_s4");
  EXPECT_EQ(row(1024, false), "sm90_attention_d128_q192_k64_s3");
  EXPECT_EQ(row(256, true), "sm90_attention_d128_q128_k64_s4");
  EXPECT_EQ(row(384, true), "sm90_attention_d128_q192_k64_s3");  // two tiles of 192, three of 128
  EXPECT_EQ(row(1024, true), "sm90_attention_d128_q192_k64_s3");
  EXPECT_EQ(row(16384, true), "sm90_attention_d128_q192_k64_s3");
  EXPECT_EQ(row(16384, false), "sm90_attention_d128_q192_k64_s3");
  for (const std::int64_t window : {256, 1024})
    EXPECT_EQ(row(16384, true, window), "sm90_attention_d128_q192_k64_s4") << window;
}

TEST(SelectAttention, ExplainNamesTheRowAndWhy) {
  const std::string text =
      to_text(on_h200(problem_of({.heads = 32, .kv_heads = 32, .length = 1024})));
  for (const char* part : {"chosen    sm90_attention_d128_q192_k64_s3, ",
                           "because   long walks with heads of up to 128", "; 384 tiles",
                           "rejected  sm90_attention  ", "accepted  sm90_attention_"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_EQ(text.find("folded"), std::string::npos) << text;

  // 16 queries of 8 heads that share their keys fill one tile.
  AttentionProblem few = problem_of({.batch = 64, .heads = 32, .kv_heads = 4, .length = 1024});
  few.q = shaped({64, 16, 32, 128}), few.out = shaped({64, 16, 32, 128});
  EXPECT_NE(to_text(on_h200(few)).find("; 256 tiles, 8 heads folded into rows"), std::string::npos)
      << to_text(on_h200(few));
}

TEST(SelectAttention, RefusalsSayWhatIsSupported) {
  const std::string row = "sm90_attention_d128_q128_k128_s2";
  const auto reasons = [&](const AttentionProblem& p) { return reasons_of(on_h200(p), row); };
  EXPECT_EQ(reasons(problem_of({})), Reasons{});
  EXPECT_EQ(reasons(problem_of({.dtype = DType::f32})),
            Reasons{"q, k and v: dtype f32 is not supported (supported: f16, bf16)"});
  AttentionProblem narrow = problem_of({});
  narrow.k.dtype = narrow.v.dtype = DType::e4m3;
  EXPECT_EQ(reasons(narrow),
            Reasons{"k and v: dtype e4m3 is not supported (supported: f16, bf16)"});
  const std::string unaligned = "q, k and v: expected contiguous rows at multiples of 16 bytes";
  EXPECT_EQ(reasons(problem_of({.dim = 60})),
            (Reasons{"head dimension: expected a multiple of 8, got 60",
                     "head dimension of v: expected a multiple of 8, got 60", unaligned}));
  EXPECT_EQ(reasons(problem_of({.dim = 64, .dim_v = 68})),
            (Reasons{"head dimension of v: expected a multiple of 8, got 68", unaligned}));
  EXPECT_EQ(reasons(problem_of({.dim = 136})),
            (Reasons{"head dimension: expected at most 128, got 136",
                     "head dimension of v: expected at most 128, got 136"}));
  EXPECT_EQ(reasons(problem_of({.batch = 1, .length = std::int64_t{1} << 29})),
            Reasons{"the largest size: expected at most 536870911, got 536870912"});

  AttentionProblem p = problem_of({});
  p.k.strides[1] += 4;
  EXPECT_EQ(reasons(p), Reasons{unaligned});
  p = problem_of({});
  p.q.strides[3] = 2;
  EXPECT_EQ(reasons(p), Reasons{unaligned});
  p = problem_of({});
  p.out.strides[1] += 1, p.out.strides[0] *= 2;  // out needs no alignment
  EXPECT_EQ(reasons(p), Reasons{});

  p = problem_of({.batch = 2});
  p.k = p.v = shaped({100, 64, 16, 128});
  p.page_table = shaped({2, 20}, DType::i32), p.kv_end = shaped({2}, DType::i32);
  EXPECT_EQ(reasons(p), Reasons{});
  p.k = p.v = shaped({100, 32, 16, 128});
  EXPECT_EQ(reasons(p), Reasons{"page_table: expected pages of a multiple of 64 keys"});
}

TEST(SelectAttention, RefusalsOfMasks) {
  const std::string row = "sm90_attention_d128_q128_k128_s2";
  const auto reasons = [&](const AttentionProblem& p) { return reasons_of(on_h200(p), row); };
  for (const std::int64_t block : {128, 256, 384})
    EXPECT_EQ(reasons(masked({}, block, block, 4)), Reasons{}) << block;
  EXPECT_EQ(reasons(masked({}, 128, std::int64_t{1} << 29, 1)),
            Reasons{"blocks of the longest list: expected at most 0, got 1"});
  EXPECT_EQ(reasons(masked({.length = 1 << 21}, 32, 32, 1 << 16)),
            Reasons{"mask: expected blocks that can be composed within 8 GiB"});
  // Sizes whose products overflow.
  const std::int64_t most = std::int64_t{1} << 60;
  EXPECT_EQ(reasons(masked({}, most, most, 1)),
            Reasons{"blocks of the longest list: expected at most 0, got 1"});
  EXPECT_EQ(reasons(masked({}, 1, most, 1)), Reasons{});
  EXPECT_EQ(reasons(masked({}, most - 1, 1, 4096)), Reasons{});
}

TEST(SelectAttention, Fp8RefusalsSayWhatIsSupported) {
  const std::string tall = "sm90_attention_fp8_d128_q192_k128_s4",
                    plain = "sm90_attention_fp8_d128_q128_k128_s4";
  const auto fp8 = [](std::int64_t batch) {
    AttentionProblem p = problem_of({.batch = batch, .length = 128});
    for (Tensor* t : {&p.q, &p.k, &p.v}) t->dtype = DType::e4m3;
    return p;
  };
  const auto reasons = [&](const AttentionProblem& p, const std::string& row) {
    return reasons_of(on_h200(p), row);
  };
  EXPECT_EQ(reasons(fp8(4), tall), Reasons{});
  // Several factors per head are a score transform, for which three warpgroups have no registers.
  AttentionProblem by_rows = fp8(4);
  const std::int64_t length = by_rows.k.size(1), heads = by_rows.k.size(2);
  by_rows.k_scale = shaped({4, heads, (length + 63) / 64}, DType::f32);
  EXPECT_EQ(reasons(by_rows, tall),
            Reasons{"more than one factor per head of k and v is not supported"});
  EXPECT_EQ(reasons(by_rows, plain), Reasons{});
}

TEST(SelectAttention, Fp8ValuesByKeysAreReadAsTheyLie) {
  const std::string row = "sm90_attention_fp8_d128_q192_k128_s4";
  const auto reasons = [&](const AttentionProblem& p) { return reasons_of(on_h200(p), row); };
  AttentionProblem p = problem_of({.batch = 4, .length = 1000});
  const std::int64_t heads = p.v.size(2), dim = p.v.size(3), pitch = 1008;
  const auto by_keys = [&](std::int64_t of_pitch) {
    p.v.strides = {heads * dim * of_pitch, 1, dim * of_pitch, of_pitch};
  };
  by_keys(pitch);
  EXPECT_EQ(reasons_of(on_h200(p), "sm90_attention_d128_q192_k64_s3"),
            Reasons{"q, k and v: expected contiguous rows at multiples of 16 bytes"});
  for (Tensor* t : {&p.q, &p.k, &p.v}) t->dtype = DType::e4m3;
  EXPECT_EQ(reasons(p), Reasons{});
  const Explanation e = on_h200(p);
  EXPECT_NE(to_text(e).find("then f32; v by keys; no factors; "), std::string::npos) << to_text(e);
  EXPECT_NE(e.problem.find(" v by keys"), std::string::npos) << e.problem;
  AttentionProblem by_rows = p;
  by_rows.v.strides = by_rows.k.strides;
  EXPECT_EQ(on_h200(by_rows).plan.workspace_bytes, e.plan.workspace_bytes);

  AttentionProblem packed = p;
  for (Tensor* t : {&packed.q, &packed.k, &packed.v, &packed.out}) *t = shaped({4000, heads, dim});
  for (Tensor* t : {&packed.q, &packed.k, &packed.v}) t->dtype = DType::e4m3;
  packed.v.strides = {1, dim * 4000, 4000};
  packed.q_offsets = packed.kv_offsets = shaped({5}, DType::i32);
  EXPECT_EQ(reasons(packed),
            Reasons{"v: expected packed sequences of contiguous rows, got contiguous keys"});
  EXPECT_EQ(reasons_of(on_h200(p), "sm90_attention_fp8_d96_q192_k128_s3").front(),
            "v with contiguous keys in tiles whose columns are no multiple of 64 is not supported");

  const std::string other =
      "q, k and v: expected contiguous rows at multiples of 16 bytes, or contiguous keys of v";
  by_keys(pitch + 8);
  EXPECT_EQ(reasons(p), Reasons{other});
  by_keys(pitch);
  p.v.strides[1] = 2;
  EXPECT_EQ(reasons(p), Reasons{other});
  by_keys(pitch);
  p.k.strides = p.v.strides;
  EXPECT_EQ(reasons(p), Reasons{other});

  AttentionProblem paged = problem_of({.batch = 2});
  for (Tensor* t : {&paged.k, &paged.v}) *t = shaped({100, 64, 16, 128});
  for (Tensor* t : {&paged.q, &paged.k, &paged.v}) t->dtype = DType::e4m3;
  paged.page_table = shaped({2, 20}, DType::i32), paged.kv_end = shaped({2}, DType::i32);
  EXPECT_EQ(reasons(paged), Reasons{});
  paged.v.strides = {16 * 128 * 64, 1, 128 * 64, 64};
  EXPECT_EQ(reasons(paged),
            Reasons{"v: expected pages of contiguous rows at multiples of 16 bytes, "
                    "got pages of contiguous keys"});
}

/// What steps need is read ahead of all loads, so a thread block first waits for the grid before.
TEST(SelectAttention, WalksSayWhetherStepsReadMemory) {
  const auto reads = [](const AttentionProblem& p) {
    const KernelRow& row = row_of(p.q.dtype == DType::e4m3 ? "sm90_attention_fp8_d128_q128_k128_s4"
                                                           : "sm90_attention_d128_q128_k128_s2");
    const AttentionShape shape = shape_for(p);
    const auto layout = layout_of<AttentionLayout>(row, shape, device_preset("h200"));
    const AttentionWalk walk = attention_walk(p, shape, layout, row.tile);
    EXPECT_FALSE(walk.reads_sequences);
    return walk.reads_for_steps;
  };
  const Sizes sizes{.batch = 4, .length = 1024};
  EXPECT_FALSE(reads(problem_of(sizes)));
  EXPECT_TRUE(reads(masked(sizes, 128, 128, 2)));

  AttentionProblem fp8 = problem_of(sizes);
  for (Tensor* t : {&fp8.q, &fp8.k, &fp8.v}) t->dtype = DType::e4m3;
  EXPECT_FALSE(reads(fp8));
  fp8.k_scale = fp8.v_scale = shaped({4, 16}, DType::f32);
  EXPECT_FALSE(reads(fp8)) << "one factor per head belongs to a tile";
  fp8.k_scale = fp8.v_scale = shaped({4, 16, 16}, DType::f32);
  EXPECT_TRUE(reads(fp8));
}

TEST(SelectAttention, Fp8SaysThePrecisionAndTheFactors) {
  AttentionProblem p = problem_of({.batch = 4, .length = 128});
  const auto text = [&] { return to_text(on_h200(p)); };
  const auto says = [&](const std::string& words) {
    EXPECT_NE(text().find(words), std::string::npos) << text();
  };
  EXPECT_EQ(text().find("factors"), std::string::npos);
  for (Tensor* t : {&p.q, &p.k, &p.v}) t->dtype = DType::e4m3;
  says("e4m3 x e4m3, P in e4m3, sums of 128 keys in the tensor cores, then f32; no factors; ");
  p.q_scale = shaped({1}, DType::f32);
  says("then f32; factors: q; ");
  p.k_scale = p.v_scale = shaped({p.k.size(2)}, DType::f32);
  says("; factors: q, k and v one per head and sequence; ");
  p.q_scale = {};
  p.v_scale = shaped({4, p.k.size(2), (p.k.size(1) + 63) / 64}, DType::f32);
  says("; factors: k and v for 64 or 128 rows; ");
}

TEST(SelectAttention, UnsupportedProblemsAreRejectedByEveryRow) {
  const Explanation e = on_h200(problem_of({.dim = 264}));
  EXPECT_FALSE(e.supported);
  for (const KernelRow& row : rows()) {
    if (row.dtypes == core::dtypes({DType::e4m3})) continue;  // rejects bf16 first
    EXPECT_EQ(reasons_of(e, row.name).front(),
              "head dimension: expected at most " + std::to_string(row.tile.k) + ", got 264");
  }
  for (const char* device : {"a100", "l4", "b200"})
    EXPECT_FALSE(select(problem_of({.dim = 264}), device_preset(device), {}).supported) << device;
}

TEST(SelectAttention, PlansComeFromShapesAlone) {
  // Equal tiles that are not split need no workspace.
  const Plan plain = plan(problem_of({.batch = 64, .length = 256}), device_preset("h200"));
  EXPECT_EQ(plain.backend, Backend::sm90);
  EXPECT_EQ(plain.workspace_bytes, 0);
  EXPECT_EQ(plain.schedule_bytes, 0);
  AttentionProblem p = problem_of({});
  // Walks of different lengths are dynamic tiles, which need a counter.
  p.causal = true;
  EXPECT_EQ(plan(p, device_preset("h200")).workspace_bytes, 128);
  EXPECT_EQ(plan(masked({}, 128, 128, 4), device_preset("h200")).workspace_bytes, 128);
  // With long lists, the workspace also has the order of the tiles (two numbers per tile) and the
  // count of grids.
  EXPECT_EQ(plan(masked({}, 128, 128, 16), device_preset("h200")).workspace_bytes,
            128 + 2 * 1024 * sizeof(int) + 128);

  AttentionProblem packed;
  packed.q = packed.k = packed.v = packed.out = shaped({100000, 16, 128});
  packed.q_offsets = packed.kv_offsets = shaped({9}, DType::i32);
  packed.sinks = shaped({16}, DType::f32), packed.lse = shaped({16, 100000}, DType::f32);
  packed.softcap = 30, packed.window_left = 1000;
  EXPECT_EQ(plan(packed, device_preset("h200")).kernel_name, "sm90_attention_d128_q128_k128_s2");

  // Problems without work have plans too.
  for (const Sizes& s : {Sizes{.batch = 0}, Sizes{.heads = 0, .kv_heads = 0}, Sizes{.length = 0}})
    EXPECT_TRUE(on_h200(problem_of(s)).supported);
}

/// Tiles of the last round take as long as others where they have lists. A last round that does not
/// fill the GPU is split where that saves more than merging the parts costs.
TEST(SelectAttention, TheLastRoundOfListsIsSplit) {
  const auto text = [](Sizes sizes, std::int64_t blocks, bool causal = false) {
    sizes.batch = 1;
    AttentionProblem p = masked(sizes, 128, 128, blocks);
    p.causal = causal;
    return to_text(on_h200(p));
  };
  const auto divides = [](const std::string& explained) {
    return explained.find("; 4096 tiles, keys of the last 4 split across ") != std::string::npos;
  };
  for (const std::int64_t blocks : {16, 64, 128})
    EXPECT_TRUE(divides(text({.length = 32768}, blocks))) << text({.length = 32768}, blocks);
  // Short tiles, a causal mask whose last tiles are short, and whole rounds.
  EXPECT_EQ(text({.length = 32768}, 2).find("split across"), std::string::npos);
  EXPECT_EQ(text({.length = 32768}, 64, true).find("split across"), std::string::npos);
  EXPECT_EQ(text({.heads = 33, .kv_heads = 33, .length = 32768}, 64).find("split across"),
            std::string::npos);
}

/// A plan for tensors that TMA can read is not used for others.
TEST(SelectAttention, PlansTellThatTensorsAreUnaligned) {
  const std::string aligned = on_h200(problem_of({})).problem;
  AttentionProblem p = problem_of({});
  p.v.strides[1] += 1;
  EXPECT_EQ(on_h200(p).problem, aligned.substr(0, aligned.find(" on cuda")) + " unaligned on cuda");
  // On a CPU, both have the same plan.
  const auto on_cpu = [](AttentionProblem one) {
    for (Tensor* t : {&one.q, &one.k, &one.v, &one.out}) t->device = {};
    return select(one, device_preset("cpu"), {}).plan.signature;
  };
  EXPECT_EQ(on_cpu(p), on_cpu(problem_of({})));
}

/// A tile's rows are queries times folded heads. Checks that the heads may be folded.
void check_fold(const AttentionShape& s, const Tile& tile, const AttentionLayout& at) {
  const std::int64_t group = s.heads / s.kv_heads;
  ASSERT_LE(at.pack * at.queries, tile.m);
  ASSERT_GT(at.pack * (at.queries + 1), tile.m);
  ASSERT_EQ(at.pack * at.head_groups, s.heads);
  ASSERT_EQ(group % at.pack, 0) << "a tile's heads read different keys";
  ASSERT_LE(at.pack, 64);
  ASSERT_EQ(s.masked ? s.heads_per_list() % at.pack : 0, 0)
      << "a tile's heads have different lists";
}

TEST(AttentionLayout, ConsumersLeaveAndJoinWhereStagesSuffice) {
  Tile tile{.m = 256, .n = 64, .k = 64, .stages = 5, .warpgroups = 4, .v = 64};
  EXPECT_TRUE(leaves_sooner(tile) && joins_later(tile));  // up to three steps
  tile.stages = 4;
  EXPECT_TRUE(leaves_sooner(tile) && !joins_later(tile));
  tile.stages = 3;
  EXPECT_FALSE(leaves_sooner(tile) || joins_later(tile));
  tile = {.m = 128, .n = 128, .k = 64, .stages = 5, .warpgroups = 2, .v = 64};
  EXPECT_FALSE(leaves_sooner(tile) || joins_later(tile));
}

TEST(AttentionLayout, FoldsHeadsThatShareTheirKeys) {
  const KernelRow& row = row_of("sm90_attention_d128_q128_k128_s2");
  for (std::int64_t group : {1, 2, 3, 6, 8, 12, 71, 128})
    for (std::int64_t queries : {1, 2, 7, 16, 63, 64, 65, 100, 128, 129, 1000}) {
      AttentionProblem p = problem_of({.heads = 2 * group, .kv_heads = 2});
      p.q = shaped({2, queries, 2 * group, 128}), p.out = shaped({2, queries, 2 * group, 128});
      const AttentionShape s = shape_for(p);
      const AttentionLayout at = attention_layout(s, row, kUnits);
      check_fold(s, row.tile, at);
      EXPECT_EQ(at.tiles_per_head, (queries + at.queries - 1) / at.queries);
      EXPECT_EQ(at.tiles, at.tiles_per_head * at.head_groups * 2);
      // As few tiles as possible.
      for (std::int64_t pack = 1; pack <= std::min<std::int64_t>(group, 64); ++pack) {
        const std::int64_t each = row.tile.m / pack;
        if (group % pack == 0) {
          EXPECT_LE(at.tiles, (queries + each - 1) / each * 2 * (2 * group / pack));
        }
      }
      if (queries == 1 && group <= 12) {
        EXPECT_EQ(at.pack, group);
      }
      if (group == 71) {
        EXPECT_EQ(at.pack, 1) << "more heads than rows of a consumer";
      }
    }
}

TEST(AttentionLayout, FoldsAsFewHeadsAsMaskBlocksNeed) {
  const KernelRow& row = row_of("sm90_attention_d128_q128_k128_s2");
  for (std::int64_t group : {1, 2, 4, 8, 24})
    for (std::int64_t block_q : {16, 32, 64, 96, 128, 192, 256})
      for (std::int64_t lists : {std::int64_t{1}, std::int64_t{2}, 2 * group}) {
        const AttentionProblem p =
            masked({.heads = 2 * group, .kv_heads = 2, .length = 1000}, block_q, 64, 3, lists);
        const AttentionShape s = shape_for(p);
        const AttentionLayout at = attention_layout(s, row, kUnits);
        check_fold(s, row.tile, at);
        for (int fewer = 1; fewer < at.pack; fewer *= 2)
          EXPECT_NE(block_q % (row.tile.m / fewer), 0) << "more heads folded than needed";
        if (lists <= 2) {
          // Lists per KV head allow the same fold as lists for all heads.
          EXPECT_EQ(at.pack, std::min<std::int64_t>(group & -group, 128 / std::gcd(block_q, 128)));
        }
      }
}

/// The host's count of tiles suffices, whatever the offsets are.
TEST(AttentionLayout, CountsEnoughTilesForPackedSequences) {
  std::mt19937 random(5);  // NOLINT: the same numbers each time
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t batch = 1 + below(12), group = std::int64_t{1} << below(5);
    const std::int64_t most = std::int64_t{1} << below(11);
    std::vector<std::int64_t> lengths;
    std::int64_t total = 0, longest = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t length = below(3) == 0 ? 128 * below(4) : below(most);
      lengths.push_back(length);
      total += length, longest = std::max(longest, length);
    }
    const std::int64_t unused = below(2) == 0 ? 0 : below(300);  // rows outside all sequences
    AttentionProblem p;
    p.q = p.out = shaped({total + unused, 2 * group, 64});
    p.k = p.v = shaped({500, 2, 64});
    p.q_offsets = p.kv_offsets = shaped({batch + 1}, DType::i64);
    if (below(2) == 0) p.max_q_length = longest;
    const AttentionShape s = shape_for(p);
    for (const KernelRow& row : rows()) {
      const AttentionLayout at = attention_layout(s, row, kUnits);
      check_fold(s, row.tile, at);
      std::int64_t needed = 0;
      for (const std::int64_t length : lengths) needed += (length + at.queries - 1) / at.queries;
      EXPECT_GE(at.tiles_per_head, needed);
      EXPECT_LE(at.tiles_per_head, needed + batch + unused / at.queries);
      EXPECT_EQ(at.tiles, at.tiles_per_head * at.head_groups);
      EXPECT_TRUE(at.uneven);
    }
  }
}

TEST(AttentionLayout, WalksOfDifferentLengthsAreUneven) {
  const KernelRow& row = row_of("sm90_attention_d128_q128_k128_s2");
  const auto layout = [&](auto change) {
    AttentionProblem p = problem_of({});
    change(p);
    return attention_layout(shape_for(p), row, kUnits);
  };
  const AttentionLayout full = layout([](AttentionProblem&) {});
  EXPECT_GE(full.tiles, kUnits);
  EXPECT_FALSE(full.uneven);
  EXPECT_EQ(full.section, 1);  // tiles of one head side by side
  EXPECT_TRUE(layout([](AttentionProblem& p) { p.causal = true; }).uneven);
  EXPECT_TRUE(layout([](AttentionProblem& p) { p.window_left = 100; }).uneven);
  // The longest tiles of as many heads as fill the device come first.
  const AttentionLayout causal = layout([](AttentionProblem& p) { p.causal = true; });
  EXPECT_GT(causal.section, 1);
  EXPECT_GE((causal.section + 1) * causal.tiles_per_head, 2 * kUnits);
  // The remaining heads fill the GPU too, if some section size allows it.
  EXPECT_EQ(section_of(16, 128, kUnits), 2);
  EXPECT_EQ(section_of(16, 86, kUnits), 4);  // not 3, which leaves one head
  EXPECT_EQ(section_of(32, 43, kUnits), 8);
  EXPECT_EQ(section_of(16, 171, kUnits), 1);
  EXPECT_EQ(section_of(5, 64, kUnits), 5);
  EXPECT_EQ(section_of(3, 4, kUnits), 66);  // one section, which does not fill the GPU
}

TEST(AttentionLayout, TilesOfShortWalksDoNotOverlap) {
  const KernelRow& row = row_of("sm90_attention_d128_q192_k64_s3");
  const auto overlaps = [&](std::int64_t keys, std::optional<std::int64_t> window) {
    AttentionProblem p = problem_of({.length = 4096});
    p.k = p.v = shaped({p.q.size(0), keys, p.k.size(2), 128}, DType::bf16);
    p.window_left = p.window_right = window;
    return attention_layout(shape_for(p), row, kUnits).overlaps;
  };
  EXPECT_FALSE(overlaps(256, {}));
  EXPECT_TRUE(overlaps(257, {}));
  EXPECT_FALSE(overlaps(4096, 32));  // at most 256 keys
  EXPECT_TRUE(overlaps(4096, 33));
}

TEST(AttentionLayout, FullWalksAreUnevenWhereEnoughRowsAreMissing) {
  const auto layout = [&](const char* row, std::int64_t batch, std::int64_t length) {
    return attention_layout(
        shape_for(problem_of({.batch = batch, .heads = 16, .kv_heads = 16, .length = length})),
        row_of(row), kUnits);
  };
  const auto tall = [&](std::int64_t batch, std::int64_t length) {
    return layout("sm90_attention_d128_q192_k64_s3", batch, length);
  };
  // In the last tiles, one or two of the three consumers have no rows.
  EXPECT_TRUE(tall(16, 1024).uneven && tall(4, 4096).uneven && tall(4, 512).uneven);
  EXPECT_FALSE(tall(2, 8192).uneven) << "only half a percent is skipped";
  EXPECT_FALSE(tall(16, 960).uneven) << "all consumers have rows";
  EXPECT_FALSE(tall(16, 1090).uneven) << "every consumer has some rows";
  EXPECT_FALSE(tall(1, 1024).uneven) << "the tiles do not fill a round";
  EXPECT_FALSE(layout("sm90_attention_d128_q128_k128_s2", 16, 1000).uneven);
  // Rounds count the work that is done, not whole tiles, so the last round has fewer tiles.
  const AttentionLayout at = tall(4, 4096);
  EXPECT_EQ(at.tiles, 1408);
  EXPECT_EQ(at.split_tiles(), 62);  // 10.47 rounds of work, 10.67 of whole tiles
  EXPECT_GT(at.split_ctas, at.split_tiles());
  EXPECT_LE(at.split_ctas, kUnits);
}

TEST(SelectAttention, LastRoundOfAChunkedPrefillIsSplit) {
  const auto layout = [](std::int64_t queries, std::int64_t keys) {
    AttentionProblem p = problem_of({.batch = 1, .heads = 32, .kv_heads = 8, .length = queries});
    p.k = shaped({1, keys, 8, 128}), p.v = shaped({1, keys, 8, 128});
    p.causal = true;
    return attention_layout(shape_for(p), row_of("sm90_attention_d128_q192_k64_s3"), kUnits);
  };
  // 176 tiles of 48 queries and 4 heads, 1.33 rounds: all walk 64512 to 65536 keys.
  const AttentionLayout prefill = layout(1024, 65536);
  EXPECT_EQ(prefill.tiles, 176);
  EXPECT_GT(prefill.split_tiles(), 0);
  EXPECT_GT(prefill.split_ctas, prefill.split_tiles());
  // Where later tiles are much shorter, they fill the last round.
  EXPECT_EQ(layout(4096, 4096).split_tiles(), 0);
  EXPECT_EQ(layout(4096, 6000).split_tiles(), 0);
}

/// Plays what thread blocks take: whole tiles, then shares of split tiles, from a counter or in a
/// fixed order. Returns how many parts of each tile were walked; a whole tile has one part.
std::vector<int> walked_parts(const AttentionLayout& layout) {
  const std::int64_t blocks = layout.blocks(), numbers = layout.whole + layout.split_ctas;
  std::vector<int> walked(static_cast<std::size_t>(layout.tiles));
  const auto take = [&](std::int64_t number) {
    if (number < layout.whole) {
      ++walked[static_cast<std::size_t>(number)];
      return;
    }
    KvShare share;
    for (int turn = 0;
         find_kv_share(static_cast<int>(layout.split_tiles()), static_cast<int>(layout.split_ctas),
                       static_cast<int>(number - layout.whole), turn, share);
         ++turn)
      ++walked[static_cast<std::size_t>(layout.whole + share.tile)];
  };
  if (layout.dynamic()) {
    for (std::int64_t number = 0; number < numbers; ++number) take(number);
  } else {
    for (std::int64_t block = 0; block < blocks; ++block)
      for (std::int64_t number = block; number < numbers; number += blocks) {
        take(number);
        if (number >= layout.whole) break;
      }
  }
  return walked;
}

/// How many parts each tile has.
std::vector<int> parts(const AttentionLayout& layout) {
  std::vector<int> expected(static_cast<std::size_t>(layout.tiles), 1);
  for (std::int64_t split_cta = 0; split_cta < layout.split_ctas; ++split_cta) {
    KvShare share;
    for (int turn = 0;
         find_kv_share(static_cast<int>(layout.split_tiles()), static_cast<int>(layout.split_ctas),
                       static_cast<int>(split_cta), turn, share);
         ++turn)
      expected[static_cast<std::size_t>(layout.whole + share.tile)] = share.parts;
  }
  return expected;
}

TEST(AttentionLayout, ThreadBlocksWalkEveryTileOnce) {
  std::mt19937 random(11);  // NOLINT: the same numbers each time
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  int split = 0, dynamic_and_split = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::int64_t length = 1 + below(std::int64_t{16} << below(9));
    Sizes sizes{.batch = 1 + below(3), .kv_heads = 1 + below(100), .length = length};
    sizes.heads = sizes.kv_heads * (std::int64_t{1} << below(3));
    sizes.dim = 64 * (1 + below(2));
    const bool lists = below(3) == 0;
    AttentionProblem p =
        lists ? masked(sizes, 128, 64 << below(2), 1 + below(80)) : problem_of(sizes);
    const std::int64_t keys = std::int64_t{64} << below(8);
    p.k = p.v = shaped({sizes.batch, keys, sizes.kv_heads, sizes.dim});
    if (below(4) == 0) p.causal = true;
    if (below(6) == 0) p.window_left = below(2000);
    const AttentionShape s = shape_for(p);
    for (const KernelRow& row : rows()) {
      const AttentionLayout at = attention_layout(s, row, kUnits);
      if (row.tile.row_groups > 1 && !lists) continue;
      SCOPED_TRACE(testing::Message() << row.name << ", " << at.tiles << " tiles, " << at.whole
                                      << " whole, " << at.split_ctas << " CTAs");
      ASSERT_EQ(walked_parts(at), parts(at));
      if (at.split_ctas == 0) continue;
      ++split;
      dynamic_and_split += at.dynamic();
      EXPECT_TRUE(at.whole == 0 || at.whole >= kUnits);
      EXPECT_LE(at.split_ctas, kUnits);
    }
  }
  EXPECT_GT(split, 1000);
  EXPECT_GT(dynamic_and_split, 100);
}

TEST(AttentionCost, FollowsWorkAndWholeTiles) {
  const DeviceFacts h200 = device_preset("h200");
  const auto ms = [&](const AttentionProblem& p) {
    return predict_ms(row_named("sm90_attention_d128_q128_k128_s2"), shape_for(p), h200);
  };
  const double full = ms(problem_of({}));
  EXPECT_GT(full, 0);
  EXPECT_NEAR(ms(problem_of({.batch = 8})) / full, 4, 0.3);
  AttentionProblem causal = problem_of({});
  causal.causal = true;
  EXPECT_LT(ms(causal), 0.7 * full);
  EXPECT_LT(ms(masked({}, 128, 128, 4)), 0.3 * full);
  // A row wider than the head dimension multiplies the padding too.
  EXPECT_NEAR(ms(problem_of({.dim = 64})) / full, 1, 0.1);
}

}  // namespace
