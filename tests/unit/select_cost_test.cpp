// Counts of work against brute force, limits of the cost model, and the one-line description.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

OperandShape dense(std::int64_t rows, std::int64_t cols, DType dtype = DType::bf16) {
  OperandShape o;
  o.dtype = dtype, o.rows = rows, o.cols = cols;
  return o;
}

OperandShape sparse(std::int64_t rows, std::int64_t cols, BlockShape block, std::int64_t stored) {
  OperandShape o = dense(rows, cols);
  o.sparse = true, o.block = block, o.stored = stored, o.index = DType::i32;
  return o;
}

MatmulShape product(const OperandShape& a, const OperandShape& b, std::int64_t batch = 1) {
  MatmulShape s;
  s.m = a.rows, s.k = a.cols, s.n = b.cols, s.batch = batch, s.a = a, s.b = b;
  s.out = DType::bf16;
  return s;
}

AttentionShape heads_of(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads,
                        std::int64_t q, std::int64_t kv, std::int64_t dim) {
  AttentionShape s;
  s.batch = batch, s.heads = heads, s.kv_heads = kv_heads, s.q_length = q, s.kv_length = kv;
  s.q_total = batch * q, s.kv_total = batch * kv, s.dim = dim, s.dim_v = dim;
  s.dtype = s.out = DType::bf16;
  return s;
}

AnyShape forward(const AttentionShape& s) { return AnyShape(std::in_place_index<3>, s); }
AnyShape backward(const AttentionShape& s) { return AnyShape(std::in_place_index<4>, s); }

TEST(Work, OfProducts) {
  const auto flops = [](const MatmulShape& s) { return work_of(s).flops; };
  EXPECT_EQ(flops(product(dense(8, 4), dense(4, 6))), 2 * 8 * 4 * 6);
  EXPECT_EQ(flops(product(dense(8, 4), dense(4, 6), 3)), 3 * 2 * 8 * 4 * 6);
  EXPECT_EQ(flops(product(sparse(8, 4, {2, 2}, 3), dense(4, 6))), 2 * 3 * 4 * 6);
  EXPECT_EQ(flops(product(dense(8, 4), sparse(4, 6, {2, 3}, 2))), 2 * 2 * 6 * 8);
  // Both sparse: an element of one side multiplies at most the columns or rows that the other
  // side's blocks cover.
  EXPECT_EQ(flops(product(sparse(8, 4, {2, 2}, 8), sparse(4, 6, {2, 3}, 1))), 2 * 6 * 8);
  EXPECT_EQ(flops(product(sparse(8, 4, {2, 2}, 1), sparse(4, 6, {2, 3}, 4))), 2 * 4 * 6);
  EXPECT_EQ(flops(product(sparse(8, 4, {2, 2}, 1), sparse(4, 6, {2, 3}, 1))), 2 * 6 * 2);
  // A pool of several matrices may hold more blocks than one matrix has positions.
  EXPECT_EQ(flops(product(sparse(8, 4, {2, 2}, 99), dense(4, 6))), 2 * 8 * 4 * 6);
  EXPECT_EQ(flops(product(sparse(8, 4, {2, 2}, 0), dense(4, 6))), 0);

  // Groups cut the rows: each row is multiplied once, whatever the number of groups.
  MatmulShape groups = product(dense(8, 4), dense(4, 6), 5);
  groups.grouped = true, groups.b.batch = 5;
  EXPECT_EQ(flops(groups), 2 * 8 * 4 * 6);
  EXPECT_EQ(work_of(groups).bytes, 2 * (8 * 4 + 5 * 4 * 6 + 8 * 6));
  groups.group_axis = GroupAxis::inner, groups.b.batch = 1;
  EXPECT_EQ(work_of(groups).bytes, 2 * (8 * 4 + 4 * 6 + 5 * 8 * 6));

  SddmmShape sampled;
  sampled.m = 8, sampled.n = 6, sampled.k = 4;
  sampled.a = dense(8, 4), sampled.b = dense(4, 6), sampled.out = sparse(8, 6, {2, 2}, 3);
  EXPECT_EQ(work_of(sampled).flops, 2 * 3 * 4 * 4);
  EXPECT_EQ(work_of(sampled).bytes, 2 * (8 * 4 + 4 * 6 + 12) + 3 * 4);

  // Which blocks meet is unknown. The estimate assumes uniform patterns: half of one side meets
  // half of the other.
  SpgemmShape pairs;
  pairs.m = 8, pairs.n = 6, pairs.k = 4;
  pairs.a = sparse(8, 4, {2, 2}, 4), pairs.b = sparse(4, 6, {2, 2}, 3);
  EXPECT_EQ(work_of(pairs).flops, 2 * 8 * 4 * 6 / 4);
}

TEST(Work, OfAttentionCountsThePairsThatAreSeen) {
  for (std::int64_t q : {0, 1, 3, 6}) {
    for (std::int64_t kv : {0, 1, 4, 9}) {
      for (std::int64_t left : {-1, 0, 2, 20}) {
        for (std::int64_t right : {-1, 0, 1, 20}) {
          AttentionShape s = heads_of(2, 4, 2, q, kv, 8);
          s.window_left = left, s.window_right = right;
          double pairs = 0;
          for (std::int64_t i = 0; i < q; ++i) {
            for (std::int64_t j = 0; j < kv; ++j) {
              const std::int64_t d = j - (kv - q + i);
              pairs += (left < 0 || d >= -left) && (right < 0 || d <= right);
            }
          }
          ASSERT_EQ(work_of(forward(s)).flops, 2 * 4 * pairs * 2 * 16)
              << q << " " << kv << " " << left << " " << right;
          ASSERT_EQ(work_of(backward(s)).flops, 2 * 4 * pairs * 2 * 40);
        }
      }
    }
  }
}

TEST(Work, OfAttentionIsBoundedByListsAndRows) {
  AttentionShape s = heads_of(1, 2, 1, 1024, 1024, 64);
  const double all = work_of(forward(s)).flops;
  s.masked = true, s.mask_block = {64, 64}, s.mask_rows = 16, s.mask_capacity = 4;
  EXPECT_EQ(work_of(forward(s)).flops, all / 4);
  s.mask_capacity = 1000;
  EXPECT_EQ(work_of(forward(s)).flops, all);

  AttentionShape packed = heads_of(8, 2, 1, 1024, 1024, 64);
  packed.q_packed = true, packed.q_total = 2048;
  EXPECT_EQ(work_of(forward(packed)).flops, 2 * all);

  // One query with a window reads only the window's keys.
  AttentionShape decode = heads_of(1, 1, 1, 1, 1 << 20, 64);
  decode.window_left = 99, decode.window_right = 0;
  EXPECT_EQ(work_of(forward(decode)).bytes, 2 * (64 + 64) + 100 * 2 * 128);
}

TEST(CostModel, IsFiniteAndPositiveForEveryPresetRowAndSize) {
  for (const std::string& name : device_presets()) {
    const DeviceFacts device = device_preset(name);
    for (std::int64_t n :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{4096}, std::int64_t{1} << 40}) {
      AttentionShape s = heads_of(1, 1, 1, n, n, 64);
      s.window_left = std::numeric_limits<std::int64_t>::max();
      const std::pair<Op, AnyShape> problems[] = {{Op::matmul, product(dense(n, n), dense(n, n))},
                                                  {Op::sddmm, SddmmShape{}},
                                                  {Op::spgemm, SpgemmShape{}},
                                                  {Op::attention, forward(s)},
                                                  {Op::attention_backward, backward(s)},
                                                  {Op::merge_states, MergeShape{}}};
      for (Backend backend : {Backend::cpu, Backend::sm80, Backend::sm90}) {
        for (const KernelRow& row : rows_of(backend)) {
          for (const auto& [op, shape] : problems) {
            if (family_of(row).op != op) continue;
            const double ms = predict_ms(row, shape, device);
            ASSERT_TRUE(std::isfinite(ms)) << name << " " << row.name << " " << n;
            ASSERT_GT(ms, 0);
          }
        }
      }
    }
  }
}

TEST(CostModel, FollowsWorkTilesAndThreads) {
  const KernelRow small{"a", {64, 64, 64, 4, 1}, 0, 0, {}, "", ""};
  const KernelRow large{"b", {128, 256, 64, 4, 2}, 0, 0, {}, "", ""};
  const DeviceFacts h100 = device_preset("h100");
  const auto ms = [&](const KernelRow& row, const MatmulShape& s) {
    return usual_seconds(row, Backend::sm90, s, h100);
  };
  // A large product is bound by what its tiles fetch from L2; a small one leaves SMs idle.
  const MatmulShape big = product(dense(8192, 8192), dense(8192, 8192));
  const MatmulShape little = product(dense(512, 8192), dense(8192, 512));
  EXPECT_LT(ms(large, big), ms(small, big));
  EXPECT_LT(ms(small, little), ms(large, little));
  // Only stored blocks cost time.
  EXPECT_LT(ms(large, product(sparse(8192, 8192, {64, 64}, 1638), dense(8192, 8192))) * 5,
            ms(large, big));

  DeviceFacts cpu = device_preset("cpu");
  const KernelRow& row = rows_of(Backend::cpu)[0];
  const double eight = predict_ms(row, big, cpu);
  cpu.units = 1;
  EXPECT_GT(predict_ms(row, big, cpu), 6 * eight);
}

TEST(Describe, ReadsWell) {
  AttentionShape s = heads_of(1, 8, 2, 4096, 4096, 128);
  s.window_left = 1024, s.window_right = 0;
  s.masked = true, s.mask_block = {128, 128}, s.mask_rows = 32, s.mask_capacity = 8;
  EXPECT_EQ(describe(forward(s)),
            "attention bf16 B1 H8/2 Q4096 KV4096 D128/128 causal window(1024, 0) mask 128x128 "
            "lists 32x8 on cpu");
  s.mask_heads = 8;
  EXPECT_TRUE(describe(forward(s)).ends_with("lists 1x8x32x8 on cpu"));
  OperandShape weights = sparse(64, 128, {32, 16}, 5);
  weights.transposed = true;
  EXPECT_EQ(describe(product(dense(16, 64), weights, 3)),
            "matmul bf16[16x64] * bsr bf16[64x128] T 32x16 stored 5 i32 -> bf16 batch 3 on cpu");
  MergeShape merge;
  merge.parts = 3, merge.batch = 2, merge.length = 5, merge.heads = 4, merge.dim = 64;
  merge.dtype = DType::f16, merge.out = DType::f32;
  EXPECT_EQ(describe(merge), "merge_states 3 parts f16->f32 B2 L5 H4 D64 on cpu");
}

TEST(Describe, DiffersWhereKernelsMayDiffer) {
  std::set<std::string> lines;
  const auto add = [&](auto change) {
    AttentionShape s = heads_of(2, 8, 2, 100, 200, 64);
    change(s);
    EXPECT_TRUE(lines.insert(describe(forward(s))).second) << describe(forward(s));
  };
  add([](AttentionShape&) {});
  add([](AttentionShape& s) { s.batch = 3; });
  add([](AttentionShape& s) { s.heads = 4; });
  add([](AttentionShape& s) { s.kv_heads = 4; });
  add([](AttentionShape& s) { s.q_length = 101; });
  add([](AttentionShape& s) { s.kv_length = 201; });
  add([](AttentionShape& s) { s.dim = 65; });
  add([](AttentionShape& s) { s.dim_v = 65; });
  add([](AttentionShape& s) { s.dtype = DType::f16; });
  add([](AttentionShape& s) { s.out = DType::f32; });
  add([](AttentionShape& s) { s.q_packed = true; });
  add([](AttentionShape& s) { s.q_packed = true, s.q_total = 7; });
  add([](AttentionShape& s) { s.kv_layout = KvLayout::packed; });
  add([](AttentionShape& s) { s.kv_layout = KvLayout::paged; });
  add([](AttentionShape& s) { s.kv_layout = KvLayout::paged, s.page = 4; });
  add([](AttentionShape& s) { s.kv_layout = KvLayout::paged, s.max_pages = 4; });
  add([](AttentionShape& s) { s.window_right = 0; });
  add([](AttentionShape& s) { s.window_right = 1; });
  add([](AttentionShape& s) { s.window_left = 0; });
  add([](AttentionShape& s) { s.masked = true; });
  add([](AttentionShape& s) { s.masked = true, s.mask_block = {64, 32}; });
  add([](AttentionShape& s) { s.masked = true, s.mask_rows = 2; });
  add([](AttentionShape& s) { s.masked = true, s.mask_capacity = 2; });
  add([](AttentionShape& s) { s.masked = true, s.mask_batch = 2; });
  add([](AttentionShape& s) { s.masked = true, s.mask_heads = 8; });
  add([](AttentionShape& s) { s.transforms_scores = true, s.softcap = 30; });
  add([](AttentionShape& s) { s.transforms_scores = true; });
  add([](AttentionShape& s) { s.has_kv_range = true; });
  add([](AttentionShape& s) { s.has_lse = true; });
  add([](AttentionShape& s) { s.has_sinks = true; });
  add([](AttentionShape& s) { s.device.kind = DeviceKind::cuda; });
  add([](AttentionShape& s) { s.masked = s.mask_bits = true; });
  add([](AttentionShape& s) { s.tma_readable = false; });
  add([](AttentionShape& s) { s.tma_readable = false, s.v_by_keys = true; });
  // The scale is a number that kernels read at each run.
  AttentionShape scaled = heads_of(2, 8, 2, 100, 200, 64);
  scaled.scale = 3;
  EXPECT_EQ(lines.count(describe(forward(scaled))), 1u);
}

}  // namespace
