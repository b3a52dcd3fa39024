// Plans of Hopper's attention backward: rows, layouts, workspaces and reasons.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "src/kernels/cuda/sm90/attention_backward/plan.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: a test of many small names
using namespace tessera::planning;  // NOLINT

struct Sizes {
  std::int64_t batch = 2, length = 1000, heads = 8, kv_heads = 4, dim = 128, dim_v = 128;
  DType dtype = DType::bf16;
  std::int64_t kv_length = 0;  // 0: `length`
};

AttentionBackwardProblem problem_of(const Sizes& s) {
  AttentionBackwardProblem p;
  p.forward.q = tensor(nullptr, s.dtype, {s.batch, s.length, s.heads, s.dim});
  const std::int64_t keys = s.kv_length > 0 ? s.kv_length : s.length;
  p.forward.k = tensor(nullptr, s.dtype, {s.batch, keys, s.kv_heads, s.dim});
  p.forward.v = tensor(nullptr, s.dtype, {s.batch, keys, s.kv_heads, s.dim_v});
  p.forward.out = tensor(nullptr, s.dtype, {s.batch, s.length, s.heads, s.dim_v});
  p.forward.lse = tensor(nullptr, DType::f32, {s.batch, s.heads, s.length});
  p.dout = p.forward.out;
  p.dq = p.forward.q, p.dk = p.forward.k, p.dv = p.forward.v;
  return p;
}

Plan on_h100(const AttentionBackwardProblem& p, const char* row = "") {
  AnyProblem problem = p;
  return choose(problem, device_preset("h100"), {.kernel = row});
}

constexpr const char* kOneKernel = "sm90_attention_backward_d128_q64_k128_s3";
constexpr const char* kTwoKernels = "sm90_attention_backward_d128_q64_k128_s4_dq128";

std::string text_of(const AttentionBackwardProblem& p) {
  return to_text(select(p, device_preset("h100")));
}

TEST(Sm90AttentionBackward, ChoosesTheRowOfTheHeadDimension) {
  const auto chosen = [](std::int64_t dim, std::int64_t dim_v) {
    return std::string(
        on_h100(problem_of({.length = 4000, .dim = dim, .dim_v = dim_v})).kernel_name);
  };
  EXPECT_EQ(chosen(64, 64), "sm90_attention_backward_d64_q128_k128_s2");
  EXPECT_EQ(chosen(8, 40), "sm90_attention_backward_d64_q128_k128_s2");
  EXPECT_EQ(chosen(96, 64), "sm90_attention_backward_d96_q64_k128_s3");
  EXPECT_EQ(chosen(80, 80), "sm90_attention_backward_d96_q64_k128_s3");
  EXPECT_EQ(chosen(128, 128), "sm90_attention_backward_d128_q64_k128_s3");
  EXPECT_EQ(chosen(64, 128), "sm90_attention_backward_d128_q64_k128_s3");
  EXPECT_EQ(chosen(136, 128), "sm90_attention_backward_d192_v128_q64_k64_s3_dq128");
  EXPECT_EQ(chosen(192, 128), "sm90_attention_backward_d192_v128_q64_k64_s3_dq128");
  EXPECT_EQ(chosen(192, 192), "sm90_attention_backward_d192_q64_k64_s3_dq128");
  EXPECT_EQ(chosen(128, 192), "sm90_attention_backward_d192_q64_k64_s3_dq128");
  EXPECT_EQ(chosen(200, 64), "sm90_attention_backward_d256_q64_k64_s2_dq128");
  EXPECT_EQ(chosen(256, 256), "sm90_attention_backward_d256_q64_k64_s2_dq128");
}

TEST(Sm90AttentionBackward, NarrowHeadsHaveTwoBlocksPerStepButForFewQueriesAndSoftcaps) {
  AttentionBackwardProblem p = problem_of({.length = 64, .dim = 64, .dim_v = 64});
  EXPECT_EQ(on_h100(p).kernel_name, std::string("sm90_attention_backward_d64_q64_k128_s4"));
  p = problem_of({.length = 4000, .dim = 64, .dim_v = 64});
  const std::int64_t bytes = on_h100(p).workspace_bytes;
  EXPECT_EQ(on_h100(p).kernel_name, std::string("sm90_attention_backward_d64_q128_k128_s2"));
  p.forward.softcap = 30;
  const Plan capped = on_h100(p);
  EXPECT_EQ(capped.kernel_name, std::string("sm90_attention_backward_d64_q64_k128_s4"));
  // For both sums, as tiles begin apart, a turn counter per block of queries instead of two.
  EXPECT_EQ(capped.workspace_bytes - bytes, 2 * (2 * 63 * 8 * 4));
}

TEST(Sm90AttentionBackward, WideHeadsHaveTwoKernelsAndNoSums) {
  for (const std::int64_t dim : {192, 256}) {
    const AttentionBackwardProblem p = problem_of({.dim = dim, .dim_v = dim});
    const Plan plan = on_h100(p);
    const auto layout = plan.planned->layout.get<BackwardLayout>();
    EXPECT_EQ(layout.tiles, 2 * 4 * 8);
    EXPECT_EQ(layout.turns, 0);
    EXPECT_EQ(layout.section, 1);  // any order of key tiles
    EXPECT_EQ(layout.dq.tiles, 2 * 8 * 8);
    EXPECT_EQ(layout.dq.whole, layout.dq.tiles);  // none is split
    const std::int64_t blocks = 32 * 8;
    EXPECT_EQ(plan.workspace_bytes, blocks * 2 * 64 * 4 + 128);  // statistics and the ticket
    EXPECT_NE(text_of(p).find("dq in a kernel of its own; 128 tiles"), std::string::npos)
        << text_of(p);
  }
}

TEST(Sm90AttentionBackward, StagesOfKeysAndValuesFillSharedMemory) {
  const auto stages = [](const char* name) {
    const Tile& tile = row_named(std::string("sm90_attention_backward_") + name).tile;
    return std::pair(dq_key_stages(tile), dq_value_stages(tile));
  };
  EXPECT_EQ(stages("d64_q64_k128_s6_dq128"), std::pair(8, 8));
  EXPECT_EQ(stages("d128_q64_k128_s4_dq128"), std::pair(5, 5));
  // Bits for the columns of two lists take 16 KiB.
  EXPECT_EQ(stages("d64_q64_k128_s6_lists2_dq128"), std::pair(8, 8));
  EXPECT_EQ(stages("d128_q64_k128_s4_lists2_dq128"), std::pair(5, 4));
  EXPECT_EQ(stages("d192_v128_q64_k64_s3_dq128"), std::pair(4, 3));
  EXPECT_EQ(stages("d192_q64_k64_s3_dq128"), std::pair(3, 2));
  EXPECT_EQ(stages("d256_q64_k64_s2_dq128"), std::pair(2, 1));
}

TEST(Sm90AttentionBackward, CountsTilesAndBytes) {
  AttentionBackwardProblem p = problem_of({.kv_heads = 8});
  p.forward.causal = true;
  const Plan plan = on_h100(p, kOneKernel);
  const auto layout = plan.planned->layout.get<BackwardLayout>();
  EXPECT_EQ(layout.tiles, 2 * 8 * 8);      // 1000 keys are 8 tiles
  EXPECT_EQ(layout.query_blocks, 2 * 16);  // 1000 queries are 16 blocks
  EXPECT_EQ(layout.section, 8);            // half of all KV heads, as two sections take turns
  EXPECT_FALSE(layout.copies_dout);
  EXPECT_EQ(plan.schedule_bytes, 0);
  const std::int64_t blocks = 32 * 8;
  // Statistics, sums of dQ and turn counters of each block, and the ticket.
  EXPECT_EQ(plan.workspace_bytes, blocks * (2 * 64 * 4 + 64 * 128 * 4 + 8) + 128);
}

TEST(Sm90AttentionBackward, SectionsOfHeadsFillTheGpu) {
  const auto layout_of = [](const AttentionBackwardProblem& p) {
    return on_h100(p).planned->layout.get<BackwardLayout>();
  };
  for (const auto& [length, section] : {std::pair(1024, 16), {4096, 4}, {16384, 1}, {65536, 1}}) {
    AttentionBackwardProblem p =
        problem_of({.batch = 4, .length = length, .heads = 16, .kv_heads = 16});
    EXPECT_EQ(layout_of(p).section, section);
    EXPECT_FALSE(layout_of(p).alternates);
    // Later tiles are shorter: every other section is in descending order.
    p.forward.causal = true;
    EXPECT_EQ(layout_of(p).section, section);
    EXPECT_TRUE(layout_of(p).alternates);
    // Tiles of a window are equally long, and those of lists of any length.
    p.forward.causal = false;
    p.forward.window_left = 100, p.forward.window_right = 0;
    EXPECT_FALSE(layout_of(p).alternates);
    EXPECT_EQ(layout_of(p).section, length < 4096 ? 16 : 8);
    // In any order one head at a time is in L2, but for the long tiles of short sequences.
    p.deterministic = false;
    EXPECT_EQ(layout_of(p).section, length < 8192 ? 4 : 1);
    p.forward.window_left = p.forward.window_right = std::nullopt;
    EXPECT_EQ(layout_of(p).section, 1);
    EXPECT_FALSE(layout_of(p).alternates);
  }
}

/// Causal, in groups: tiles of a section drift apart by the heads of a group, whose Q, dO and sums
/// L2 would have to hold. Shares of a few heads each, in small sections, are in L2.
TEST(Sm90AttentionBackward, GroupsOfHeadsAreDividedWhereL2DoesNotHoldThem) {
  const auto layout_of = [](const Sizes& sizes) {
    AttentionBackwardProblem p = problem_of(sizes);
    p.forward.causal = true;
    return on_h100(p, kOneKernel).planned->layout.get<BackwardLayout>();
  };
  const BackwardLayout large = layout_of({.batch = 1, .length = 7560, .heads = 64, .kv_heads = 8});
  EXPECT_GT(large.tile_shares.heads, 1);
  EXPECT_EQ(large.tile_shares.blocks, 1);
  EXPECT_TRUE(large.alternates);
  EXPECT_LE(large.section, 4);
  // With eight query heads in all, everything is in L2.
  EXPECT_EQ(layout_of({.batch = 8, .length = 2048, .heads = 8, .kv_heads = 4}).tile_shares.count(),
            1);
  // A tile for each SM: the longest takes twice the mean.
  EXPECT_EQ(layout_of({.batch = 1, .length = 4224, .heads = 8, .kv_heads = 4}).tile_shares.heads,
            2);
  // As many heads without groups.
  EXPECT_EQ(
      layout_of({.batch = 1, .length = 7560, .heads = 64, .kv_heads = 64}).tile_shares.count(), 1);
}

/// Few queries, many keys: the additions to a block, one after the other, would take longer than
/// all else, unless tiles of many heads are in turns, or a block has several sums.
TEST(Sm90AttentionBackward, AdditionsOfFewQueriesDoNotWait) {
  const auto plan_of = [](std::int64_t batch, std::int64_t heads, std::int64_t q_length,
                          std::int64_t kv_length) {
    return on_h100(problem_of({.batch = batch,
                               .length = q_length,
                               .heads = heads,
                               .kv_heads = heads,
                               .kv_length = kv_length}),
                   kOneKernel);
  };
  const auto layout_of = [&](std::int64_t batch, std::int64_t heads, std::int64_t q_length,
                             std::int64_t kv_length) {
    return plan_of(batch, heads, q_length, kv_length).planned->layout.get<BackwardLayout>();
  };
  const BackwardLayout many = layout_of(16, 16, 72, 20000);
  EXPECT_EQ(many.chains, 1);
  EXPECT_GE(many.section, 16);
  const BackwardLayout few = layout_of(2, 2, 72, 20000);
  EXPECT_EQ(few.section, 4);
  EXPECT_GE(few.chains, 4);
  EXPECT_EQ(few.chains & (few.chains - 1), 0);
  EXPECT_LT(few.slowdown, 1.5);
  // Statistics once; sums and turn counters of each chain.
  const std::int64_t blocks = 2 * 2 * 2;
  EXPECT_EQ(plan_of(2, 2, 72, 20000).workspace_bytes,
            blocks * (2 * 64 * 4 + few.chains * (64 * 128 * 4 + 8)) + 128);
  EXPECT_EQ(layout_of(2, 8, 4096, 4096).chains, 1);
}

/// Causal: sections ascend and descend in turns. An odd number of them, or some with fewer heads
/// than the others, leave SMs idle. Where keys outnumber queries, many tiles begin together,
/// and follow each other: more heads have to be in turns.
TEST(Sm90AttentionBackward, SectionsOfHeadsWaitLittle) {
  const auto layout_of = [](std::int64_t batch, std::int64_t kv_heads, std::int64_t q_length,
                            std::int64_t kv_length) {
    AttentionBackwardProblem p = problem_of({.batch = batch,
                                             .length = q_length,
                                             .heads = kv_heads,
                                             .kv_heads = kv_heads,
                                             .kv_length = kv_length});
    p.forward.causal = true;
    return on_h100(p, kOneKernel).planned->layout.get<BackwardLayout>();
  };
  for (const std::int64_t batch : {3, 7, 16, 31})
    for (const std::int64_t heads : {2, 5, 8, 32})
      for (const std::int64_t length : {1500, 2737, 6723, 11151}) {
        const BackwardLayout layout = layout_of(batch, heads, length, length);
        if (layout.tile_shares.blocks > 1) {
          EXPECT_EQ(layout.section, batch * heads * layout.tile_shares.count());
          continue;
        }
        EXPECT_TRUE(layout.alternates) << batch << " " << heads << " " << length;
        const std::int64_t sections = (batch * heads + layout.section - 1) / layout.section;
        // An odd one leaves SMs idle at the end only.
        EXPECT_TRUE(sections % 2 == 0 || sections > 16) << batch << " " << heads << " " << length;
      }
  const BackwardLayout few = layout_of(9, 4, 866, 7868);
  EXPECT_FALSE(few.alternates);
  EXPECT_EQ(few.section, 9 * 4);
  const BackwardLayout some = layout_of(24, 4, 2201, 17443);
  EXPECT_TRUE(some.alternates);
  EXPECT_GE(some.section, 2);
  EXPECT_LE(some.section, 12);
  EXPECT_EQ(layout_of(2, 16, 16384, 16384 + 1024).section, 1);
}

TEST(Sm90AttentionBackward, FewTilesWithoutAMaskRotate) {
  const auto plan_of = [](std::int64_t length, std::int64_t heads, bool causal) {
    AttentionBackwardProblem p =
        problem_of({.batch = 1, .length = length, .heads = heads, .kv_heads = heads});
    p.forward.causal = causal;
    return on_h100(p);
  };
  const auto rotates = [&](std::int64_t length, std::int64_t heads, bool causal) {
    return plan_of(length, heads, causal).planned->layout.get<BackwardLayout>().rotates;
  };
  EXPECT_TRUE(rotates(8192, 4, false));
  EXPECT_TRUE(rotates(2048, 8, false));
  EXPECT_FALSE(rotates(8192, 4, true));
  EXPECT_FALSE(rotates(16384, 16, false));   // a tile waits for 3% of the time
  EXPECT_FALSE(rotates(1 << 20, 4, false));  // the second sums would take 2 GiB
  // Sums and turn counters twice.
  EXPECT_EQ(plan_of(8192, 4, false).workspace_bytes - plan_of(8192, 4, true).workspace_bytes,
            4 * 128 * (64 * 128 * 4 + 8));
}

/// Thread blocks that take tiles one after the other never find a turn that is not theirs.
TEST(Sm90AttentionBackward, TilesThatRotateFindTheirTurn) {
  for (const std::int64_t length : {2048, 4111, 8192}) {
    const AttentionBackwardProblem p =
        problem_of({.batch = 1, .length = length, .heads = 16, .kv_heads = 8});
    const auto layout = on_h100(p).planned->layout.get<BackwardLayout>();
    ASSERT_TRUE(layout.rotates) << length;
    const auto shape = std::get<AttentionBackwardShape>(shape_of(AnyProblem(p)));
    const BackwardWalk walk = backward_walk(p.forward, shape, layout, {});
    std::map<std::pair<int, int>, int> turns;  // of sums and block: the last tile's rank + 1
    std::set<std::tuple<int, int, int>> visited;
    int begun_later = 0;
    for (int number = 0; number < layout.tiles; ++number) {
      const KeyTileJob job = describe_key_tile(walk, walk.place_of(number));
      begun_later += job.start_block > 0;
      for (int head = job.first_head; head < job.first_head + walk.group; ++head)
        for (int i = 0; i < job.end_block - job.first_block; ++i) {
          const int block = job.step_at(i, 1);
          const BackwardStep step = describe_step(walk, job, true, head, block);
          int& turn = turns[{sums_of(walk, job, step), block}];
          ASSERT_EQ(turn, step.turn) << "tile " << job.tile << ", block " << block;
          turn = job.rank + 1;
          ASSERT_TRUE(visited.emplace(job.tile, head, block).second);
        }
    }
    EXPECT_GT(begun_later, layout.tiles / 2);
    EXPECT_EQ(visited.size(), static_cast<std::size_t>(layout.tiles * 2 * layout.query_blocks));
  }
}

TEST(Sm90AttentionBackward, FewTilesAreVisitedInShares) {
  const auto layout_of = [](const AttentionBackwardProblem& p) {
    return on_h100(p, kOneKernel).planned->layout.get<BackwardLayout>();
  };
  // 64 key tiles of four KV heads on 132 SMs: each query head of a group is a share.
  const AttentionBackwardProblem grouped = problem_of({});
  const BackwardLayout two = layout_of(grouped);
  EXPECT_EQ(two.tile_shares.heads, 2);
  EXPECT_EQ(two.tile_shares.blocks, 1);
  EXPECT_EQ(two.tiles, 2 * 4 * 8 * 2);
  const std::int64_t blocks = 32 * 8, sums = 2 * 1000 * 8 * (128 + 128);
  EXPECT_EQ(on_h100(grouped).workspace_bytes,
            blocks * (2 * 64 * 4 + 64 * 128 * 4 + 8) + 128 + sums * 4);
  EXPECT_NE(text_of(grouped).find("64 key tiles in 2 shares each"), std::string::npos);
  // Without groups shares divide the blocks of queries, all of a head in one section.
  const BackwardLayout split = layout_of(problem_of({.batch = 1, .heads = 3, .kv_heads = 3}));
  EXPECT_EQ(split.tile_shares.heads, 1);
  EXPECT_GT(split.tile_shares.blocks, 1);
  EXPECT_EQ(split.section % split.tile_shares.blocks, 0);
  // One head in two shares would begin each with the same block, and wait; undivided tiles do not.
  const BackwardLayout few = layout_of(problem_of({.batch = 1, .length = 1024, .kv_heads = 8}));
  EXPECT_EQ(few.tile_shares.count(), 1);
  EXPECT_TRUE(few.rotates);
  AttentionBackwardProblem any = problem_of({.batch = 1, .length = 1024, .kv_heads = 8});
  any.deterministic = false;
  EXPECT_EQ(layout_of(any).tile_shares.blocks, 2);
  // Of a large group, not all shares save enough time for their memory.
  AttentionBackwardProblem large =
      problem_of({.batch = 1, .length = 8704, .heads = 64, .kv_heads = 2});
  large.forward.q = tensor(nullptr, DType::bf16, {1, 65536, 64, 128});
  large.forward.out = large.dout = large.dq = large.forward.q;
  large.forward.lse = tensor(nullptr, DType::f32, {1, 64, 65536});
  EXPECT_EQ(layout_of(large).tile_shares.heads, 16);
  // Many tiles fill the SMs.
  EXPECT_EQ(layout_of(problem_of({.batch = 32})).tile_shares.count(), 1);
}

/// The kernel of dQ runs beside the main one if both have an SM for each tile. Then nothing waits,
/// nor are sums converted, so few tiles go by two kernels; more tiles by one, which multiplies
/// less.
TEST(Sm90AttentionBackward, FewTilesGoByTwoKernelsBesideEachOther) {
  const auto of_length = [](std::int64_t length, bool causal, const char* row = "") {
    AttentionBackwardProblem p = problem_of({.batch = 1, .length = length, .kv_heads = 8});
    p.forward.causal = causal;
    return on_h100(p, row);
  };
  const auto has_two = [&](std::int64_t length, bool causal) {
    return of_length(length, causal).planned->layout.get<BackwardLayout>().dq.tiles > 0;
  };
  for (bool causal : {false, true}) {
    EXPECT_TRUE(has_two(1024, causal));
    EXPECT_FALSE(has_two(8192, causal));
  }
  // Under a causal mask SMs become free one after the other, so that dQ begins sooner.
  EXPECT_FALSE(has_two(2048, false));
  EXPECT_TRUE(has_two(2048, true));
  // Queries that see no key do not make a tile longer, so few keys of many queries need no more
  // shares under a causal mask, where only the last queries see them.
  const auto shares_of_few_keys = [](bool causal) {
    AttentionBackwardProblem p = problem_of({.batch = 1, .length = 8192, .kv_heads = 8});
    p.forward.k = p.forward.v = p.dk = p.dv = tensor(nullptr, DType::bf16, {1, 128, 8, 128});
    p.forward.causal = causal;
    return on_h100(p, kTwoKernels).planned->layout.get<BackwardLayout>().tile_shares.count();
  };
  EXPECT_GT(shares_of_few_keys(false), 8);
  EXPECT_LE(shares_of_few_keys(true), 2);
  // 64 key tiles and 64 tiles of queries fill 132 SMs, so that key tiles have no shares; 32 and 32
  // do not.
  const auto shares = [&](std::int64_t length) {
    const Plan plan = of_length(length, false, kTwoKernels);
    return plan.planned->layout.get<BackwardLayout>().tile_shares.count();
  };
  EXPECT_EQ(shares(1024), 1);
  EXPECT_EQ(shares(512), 2);
}

TEST(Sm90AttentionBackward, AnyOrderNeedsNoTurns) {
  AttentionBackwardProblem p = problem_of({.batch = 2, .length = 16384, .kv_heads = 8});
  const Plan in_order = on_h100(p);
  p.deterministic = false;
  const Plan any_order = on_h100(p);
  const auto layout = any_order.planned->layout.get<BackwardLayout>();
  EXPECT_EQ(layout.turns, 0);
  EXPECT_EQ(layout.section, 1);
  EXPECT_EQ(any_order.workspace_bytes, in_order.workspace_bytes - 2 * 256 * 8 * 2 * 4);
  EXPECT_NE(text_of(p).find("sums of dq in any order"), std::string::npos) << text_of(p);
  EXPECT_EQ(text_of(problem_of({})).find("any order"), std::string::npos);
}

TEST(Sm90AttentionBackward, CopiesDoutThatTmaCannotRead) {
  AttentionBackwardProblem p = problem_of({.kv_heads = 8});
  const std::int64_t without = on_h100(p).workspace_bytes;
  p.dout.strides = {0, 0, 0, 0};  // the gradient of a sum
  const Plan plan = on_h100(p);
  EXPECT_TRUE(plan.planned->layout.get<BackwardLayout>().copies_dout);
  EXPECT_EQ(plan.workspace_bytes, without + 2 * 1000 * 8 * 128 * 2);
  EXPECT_NE(text_of(p).find("dout copied to rows that TMA can read"), std::string::npos)
      << text_of(p);
  p = problem_of({});
  p.forward.out.dtype = p.dout.dtype = DType::f32;
  EXPECT_TRUE(on_h100(p).planned->layout.get<BackwardLayout>().copies_dout);
}

TEST(Sm90AttentionBackward, PackedSequencesHaveBlocksOfTheirOwn) {
  AttentionBackwardProblem p;
  AttentionProblem& f = p.forward;
  f.q = tensor(nullptr, DType::f16, {1000, 4, 64});
  f.k = f.v = tensor(nullptr, DType::f16, {2000, 2, 64});
  f.out = p.dout = p.dq = f.q;
  f.lse = tensor(nullptr, DType::f32, {4, 1000});
  f.q_offsets = f.kv_offsets = tensor(nullptr, DType::i32, {8});  // seven sequences
  const auto layout = on_h100(p).planned->layout.get<BackwardLayout>();
  EXPECT_EQ(layout.query_blocks, 1000 / 64 + 7);
  EXPECT_EQ(layout.tiles, (2000 / 128 + 7) * 2 * 2);  // in two shares
  EXPECT_EQ(layout.section, 2 * 2);                   // all KV heads
}

/// Of long packed sequences many tiles of a head would run at a time and wait for each other; of
/// short ones there are few.
TEST(Sm90AttentionBackward, GroupsOfPackedSequencesAreDivided) {
  const auto shares_of = [](std::int64_t longest, std::int64_t heads, std::int64_t kv_heads) {
    AttentionBackwardProblem p;
    AttentionProblem& f = p.forward;
    f.q = tensor(nullptr, DType::bf16, {131072, heads, 128});
    f.k = f.v = tensor(nullptr, DType::bf16, {131072, kv_heads, 128});
    f.out = p.dout = p.dq = f.q;
    p.dk = p.dv = f.k;
    f.lse = tensor(nullptr, DType::f32, {heads, 131072});
    f.q_offsets = f.kv_offsets = tensor(nullptr, DType::i32, {131072 / longest + 1});
    f.max_q_length = f.max_kv_length = longest;
    f.causal = true;
    return on_h100(p, kOneKernel).planned->layout.get<BackwardLayout>().tile_shares;
  };
  EXPECT_GE(shares_of(8192, 32, 4).heads, 2);
  EXPECT_EQ(shares_of(8192, 32, 4).blocks, 1);
  EXPECT_EQ(shares_of(512, 32, 4).count(), 1);
  EXPECT_EQ(shares_of(512, 16, 2).count(), 1);
  EXPECT_EQ(shares_of(8192, 32, 32).count(), 1);
}

/// Where tiles are many, sums of shares may take 1 GiB.
TEST(Sm90AttentionBackward, SharesOfManyTilesTakeLittleMemory) {
  for (const std::int64_t length : {16384, 65536, 131072}) {
    AttentionBackwardProblem p =
        problem_of({.batch = 4, .length = length, .heads = 64, .kv_heads = 4});
    p.forward.causal = true;
    const auto layout = on_h100(p, kOneKernel).planned->layout.get<BackwardLayout>();
    const double bytes = 4.0 * static_cast<double>(length) * 4 * 256 * 4;
    EXPECT_TRUE(layout.tile_shares.count() == 1 || layout.tile_shares.count() * bytes <= 1 << 30)
        << length;
  }
}

TEST(Sm90AttentionBackward, ComposesBlockMasks) {
  AttentionBackwardProblem p = problem_of({.batch = 1, .length = 1024});
  BlockMask& mask = p.forward.mask;
  mask.block_q = mask.block_kv = 128;
  mask.full.counts = tensor(nullptr, DType::i32, {1, 1, 8});
  mask.full.indices = tensor(nullptr, DType::i32, {1, 1, 8, 3});
  const Plan plan = on_h100(p);
  const auto layout = plan.planned->layout.get<BackwardLayout>();
  ASSERT_TRUE(layout.edges);
  EXPECT_EQ(layout.edges.mask.rows, 16);
  EXPECT_EQ(layout.edges.mask.columns, 16);
  EXPECT_EQ(layout.edges.mask.words, 1);  // the rows of a block share a list
  EXPECT_EQ(layout.edges.tiles, 8);
  EXPECT_EQ(layout.edges.row_words, 1);
  EXPECT_NE(text_of(p).find("blocks composed into 64 x 64"), std::string::npos) << text_of(p);
}

TEST(Sm90AttentionBackward, ListsInAFixedOrderHaveTwoKernels) {
  AttentionBackwardProblem p = problem_of({.batch = 1, .length = 32768, .kv_heads = 8});
  const auto chosen = [&] { return std::string(on_h100(p).kernel_name); };
  EXPECT_EQ(chosen(), "sm90_attention_backward_d128_q64_k128_s3");
  BlockMask& mask = p.forward.mask;
  mask.block_q = mask.block_kv = 128;
  mask.full.counts = tensor(nullptr, DType::i32, {1, 1, 256});
  mask.full.indices = tensor(nullptr, DType::i32, {1, 1, 256, 32});
  EXPECT_EQ(chosen(), "sm90_attention_backward_d128_q64_k128_s4_dq128");
  EXPECT_FALSE(on_h100(p).planned->layout.get<BackwardLayout>().dq.composed);
  p.deterministic = false;
  EXPECT_EQ(chosen(), "sm90_attention_backward_d128_q64_k128_s3");
  // Blocks that the tiles of neither kernel fit are composed for each.
  p.deterministic = true;
  mask.block_q = mask.block_kv = 64;
  mask.full.counts = tensor(nullptr, DType::i32, {1, 1, 512});
  mask.full.indices = tensor(nullptr, DType::i32, {1, 1, 512, 64});
  auto layout = on_h100(p, "sm90_attention_backward_d128_q64_k128_s4_dq128")
                    .planned->layout.get<BackwardLayout>();
  EXPECT_EQ(layout.edges.mask.queries, 64);
  EXPECT_EQ(layout.dq.composed.queries, 128);
  // With lists of 64 rows, each consumer walks its own.
  EXPECT_EQ(chosen(), "sm90_attention_backward_d128_q64_k128_s4_lists2_dq128");
  layout = on_h100(p).planned->layout.get<BackwardLayout>();
  EXPECT_EQ(layout.dq.row_groups, 2);
  EXPECT_FALSE(layout.dq.composed);
  p.forward.softcap = 30;
  EXPECT_EQ(chosen(), "sm90_attention_backward_d128_q64_k128_s4_dq128");
}

TEST(Sm90AttentionBackward, SizesOfZeroNeedNoTiles) {
  for (const Sizes& sizes : {Sizes{.batch = 0}, Sizes{.length = 0}, Sizes{.heads = 0}}) {
    Sizes s = sizes;
    if (s.heads == 0) s.kv_heads = 0;
    const Plan plan = on_h100(problem_of(s));
    EXPECT_EQ(plan.planned->layout.get<BackwardLayout>().tiles, 0);
  }
}

TEST(Sm90AttentionBackward, SaysWhatItRefuses) {
  const auto refuses = [](const AttentionBackwardProblem& p, const char* reason) {
    const std::string text = text_of(p);
    EXPECT_FALSE(select(p, device_preset("h100")).supported);
    EXPECT_NE(text.find(reason), std::string::npos) << text;
  };
  refuses(problem_of({.dim = 264, .dim_v = 128}), "head dimension: expected at most 256, got 264");
  refuses(problem_of({.dim = 60, .dim_v = 60}), "a multiple of 8");
  refuses(problem_of({.dtype = DType::f32}), "dtype f32 is not supported");
  AttentionBackwardProblem p = problem_of({});
  p.forward.k.strides[3] = 2;
  refuses(p, "contiguous rows at multiples of 16 bytes");
}

TEST(Sm90AttentionBackward, LongerProblemsTakeLonger) {
  double before = 0;
  for (const std::int64_t length : {64, 500, 1000, 4000, 16000}) {
    const double ms = on_h100(problem_of({.length = length})).predicted_ms;
    EXPECT_GT(ms, before);
    before = ms;
  }
}

}  // namespace
