#include <cmath>
#include <limits>

#include "src/plan/shape.hpp"
#include "tests/unit/problem_table.hpp"

// Planning works from shapes alone, so no tensor here has memory.
namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using P = AttentionProblem;
using Case = tessera::testing::ProblemCase<P>;
using B = AttentionBackwardProblem;
using BackwardCase = tessera::testing::ProblemCase<B>;
using M = MergeStatesProblem;
using MergeCase = tessera::testing::ProblemCase<M>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

Tensor f32(std::initializer_list<std::int64_t> shape) { return tensor(nullptr, DType::f32, shape); }
Tensor bf16(std::initializer_list<std::int64_t> shape) {
  return tensor(nullptr, DType::bf16, shape);
}
Tensor i32(std::initializer_list<std::int64_t> shape) { return tensor(nullptr, DType::i32, shape); }
Tensor i64(std::initializer_list<std::int64_t> shape) { return tensor(nullptr, DType::i64, shape); }
Tensor u8(std::initializer_list<std::int64_t> shape) { return tensor(nullptr, DType::u8, shape); }

P dense() {
  return {.q = bf16({2, 100, 8, 64}),
          .k = bf16({2, 200, 2, 64}),
          .v = bf16({2, 200, 2, 32}),
          .out = bf16({2, 100, 8, 32})};
}
P packed() {
  P p{.q = bf16({100, 8, 64}),
      .k = bf16({200, 2, 64}),
      .v = bf16({200, 2, 32}),
      .out = bf16({100, 8, 32})};
  p.q_offsets = i32({4});
  p.kv_offsets = i64({4});
  return p;
}
P paged() {
  P p = dense();
  p.k = bf16({50, 16, 2, 64});
  p.v = bf16({50, 16, 2, 32});
  p.page_table = i32({2, 20});
  p.kv_end = i32({2});
  return p;
}
// Blocks of 32 x 64: four rows of queries, four blocks of keys.
P masked() {
  P p = dense();
  p.mask.block_q = 32;
  p.mask.block_kv = 60;
  p.mask.full = {i32({1, 8, 4}), {}, i32({1, 8, 4, 3})};
  p.mask.partial = {{}, i32({2, 1, 5}), i32({17})};
  p.mask.bit_tile = i32({17});
  p.mask.bits = u8({5, 32, 8});
  return p;
}

const auto kCheck = [](const auto& problem) { (void)shape_of(problem); };

TEST(AttentionShape, holds_what_the_tensors_say) {
  const AttentionShape shape = shape_of(dense());
  EXPECT_EQ(shape.batch, 2);
  EXPECT_EQ(shape.heads, 8);
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_EQ(shape.q_length, 100);
  EXPECT_EQ(shape.kv_length, 200);
  EXPECT_EQ(shape.q_total, 200);
  EXPECT_EQ(shape.kv_total, 400);
  EXPECT_EQ(shape.dim, 64);
  EXPECT_EQ(shape.dim_v, 32);
  EXPECT_EQ(shape.dtype, DType::bf16);
  EXPECT_EQ(shape.kv_layout, KvLayout::dense);
  EXPECT_FLOAT_EQ(shape.scale, 0.125f);
  EXPECT_EQ(shape.window_left, -1);
  EXPECT_EQ(shape.window_right, -1);
  EXPECT_FALSE(shape.masked || shape.has_lse || shape.has_sinks || shape.q_packed);
}

TEST(AttentionShape, knows_packed_and_paged_lengths) {
  P p = packed();
  EXPECT_EQ(shape_of(p).q_length, 100);
  p.max_q_length = 60;
  p.max_kv_length = 90;
  AttentionShape shape = shape_of(p);
  EXPECT_TRUE(shape.q_packed);
  EXPECT_EQ(shape.kv_layout, KvLayout::packed);
  EXPECT_EQ(shape.batch, 3);
  EXPECT_EQ(shape.q_length, 60);
  EXPECT_EQ(shape.kv_length, 90);
  EXPECT_EQ(shape.q_total, 100);
  EXPECT_EQ(shape.kv_total, 200);

  shape = shape_of(paged());
  EXPECT_EQ(shape.kv_layout, KvLayout::paged);
  EXPECT_EQ(shape.page, 16);
  EXPECT_EQ(shape.pages, 50);
  EXPECT_EQ(shape.max_pages, 20);
  EXPECT_EQ(shape.kv_length, 320);
  EXPECT_EQ(shape.kv_total, 800);
}

TEST(AttentionShape, folds_causality_into_the_window) {
  P p = dense();
  p.causal = true;
  p.window_left = 7;
  p.window_right = 5;
  AttentionShape shape = shape_of(p);
  EXPECT_EQ(shape.window_left, 7);
  EXPECT_EQ(shape.window_right, 0);
  p.causal = false;
  EXPECT_EQ(shape_of(p).window_right, 5);
  p.window_right = kMax;  // reaches everything, and would overflow in a sum
  EXPECT_EQ(shape_of(p).window_right, -1);
}

TEST(AttentionShape, holds_what_the_mask_says) {
  const AttentionShape shape = shape_of(masked());
  EXPECT_TRUE(shape.masked);
  EXPECT_EQ(shape.mask_block, (BlockShape{32, 60}));
  EXPECT_EQ(shape.mask_rows, 4);
  EXPECT_EQ(shape.mask_capacity, 4);  // no row is longer than there are blocks of keys
  P p = masked();
  p.mask.partial = {};
  p.mask.bit_tile = p.mask.bits = {};
  EXPECT_EQ(shape_of(p).mask_capacity, 3);
}

TEST(AttentionShape, dense_tensors) {
  const auto text = [](const char* name) { return std::string("attention: ") + name; };
  expect_cases(
      dense,
      std::vector<Case>{
          {"as it is", [](P&) {}},
          {"no q", [](P& p) { p.q = {}; }, {"attention: q: expected a tensor, got none"}},
          {"q's rank",
           [](P& p) {
             p.q = bf16({100, 8, 64});
           },
           {"attention: q: expected shape [batch, q_length, heads, dim]", "q_offsets",
            "got bf16[100, 8, 64]"}},
          {"integer q",
           [](P& p) { p.q.dtype = DType::u8; },
           {"attention: q: expected dtype f32, f16, bf16 or e4m3, got u8"}},
          {"e4m3", [](P& p) { p.q.dtype = p.k.dtype = p.v.dtype = DType::e4m3; }},
          {"k's dtype",
           [](P& p) { p.k.dtype = DType::f16; },
           {"attention: k: expected dtype bf16 as q has, got f16"}},
          {"v's dtype",
           [](P& p) { p.v.dtype = DType::f32; },
           {"attention: v: expected dtype bf16 as q has, got f32"}},
          {"k's batch",
           [](P& p) {
             p.k = bf16({3, 200, 2, 64});
           },
           {"attention: k: expected shape [batch = 2, kv_length, kv_heads, dim = 64]",
            "got bf16[3, 200, 2, 64]"}},
          {"k's dim",
           [](P& p) {
             p.k = bf16({2, 200, 2, 63});
           },
           {"attention: k: expected shape", "dim = 64", "got bf16[2, 200, 2, 63]"}},
          {"packed k without offsets",
           [](P& p) {
             p.k = bf16({200, 2, 64});
           },
           {"attention: k:", "kv_offsets", "got bf16[200, 2, 64]"}},
          {"heads",
           [](P& p) {
             p.k = bf16({2, 200, 3, 64});
           },
           {"attention: k: expected kv_heads that divide the 8 heads of q", "[2, 200, 3, 64]"}},
          {"no kv_heads",
           [](P& p) {
             p.k = bf16({2, 200, 0, 64});
           },
           {"attention: k: expected kv_heads that divide the 8 heads of q", "[2, 200, 0, 64]"}},
          {"v's length",
           [](P& p) {
             p.v = bf16({2, 199, 2, 32});
           },
           {"attention: v: expected shape [batch = 2, kv_length = 200, kv_heads = 2, dim_v]",
            "got bf16[2, 199, 2, 32]"}},
          {"v's heads",
           [](P& p) {
             p.v = bf16({2, 200, 1, 32});
           },
           {text("v: expected shape"), "kv_heads = 2", "got bf16[2, 200, 1, 32]"}},
          {"v on another device",
           [](P& p) { p.v.device.kind = DeviceKind::cuda; },
           {"attention: v: expected all tensors on cpu, got", "on cuda:0"}},
          {"no out", [](P& p) { p.out = {}; }, {"attention: out: expected a tensor, got none"}},
          {"out's shape",
           [](P& p) {
             p.out = bf16({2, 100, 8, 64});
           },
           {"attention: out: expected shape [batch = 2, q_length = 100, heads = 8, dim_v = 32]",
            "got bf16[2, 100, 8, 64]"}},
          {"out's dtype",
           [](P& p) { p.out.dtype = DType::i32; },
           {"attention: out: expected dtype f32, f16 or bf16, got i32"}},
          {"out in f32", [](P& p) { p.out.dtype = DType::f32; }},
          {"out aliases",
           [](P& p) { p.out.strides[2] = 16; },
           {"attention: out: expected strides that give each element", "address"}},
          {"out by heads",
           [](P& p) {
             p.out = swap_dims(bf16({2, 8, 100, 32}), 1, 2);
           }},
          {"inputs broadcast", [](P& p) { p.k.strides[0] = p.v.strides[0] = 0; }},
          {"lse",
           [](P& p) {
             p.lse = f32({2, 8, 100});
           }},
          {"lse's shape",
           [](P& p) {
             p.lse = f32({2, 100, 8});
           },
           {"attention: lse: expected shape [batch = 2, heads = 8, q_length = 100]",
            "got f32[2, 100, 8]"}},
          {"lse's dtype",
           [](P& p) {
             p.lse = bf16({2, 8, 100});
           },
           {"attention: lse: expected dtype f32, got bf16"}},
          {"lse aliases",
           [](P& p) {
             p.lse = f32({2, 8, 100}), p.lse.strides[1] = 0;
           },
           {"attention: lse: expected strides"}},
          {"sinks", [](P& p) { p.sinks = bf16({8}); }},
          {"sinks' shape",
           [](P& p) { p.sinks = bf16({2}); },
           {"attention: sinks: expected shape [heads = 8], got bf16[2]"}},
          {"sinks' dtype",
           [](P& p) { p.sinks = i32({8}); },
           {"attention: sinks: expected dtype f32, f16 or bf16, got i32[8]"}},
      },
      kCheck);
}

TEST(AttentionShape, sizes_of_zero) {
  const auto sized = [](std::int64_t b, std::int64_t q, std::int64_t kv, std::int64_t h,
                        std::int64_t hk, std::int64_t d) {
    return [=](P& p) {
      p.q = bf16({b, q, h, d});
      p.k = p.v = bf16({b, kv, hk, d});
      p.out = p.q;
    };
  };
  expect_cases(dense,
               std::vector<Case>{
                   {"no batch", sized(0, 4, 4, 2, 2, 8)},
                   {"no queries", sized(1, 0, 4, 2, 2, 8)},
                   {"no keys", sized(1, 4, 0, 2, 2, 8)},
                   {"no heads", sized(1, 4, 4, 0, 2, 8)},
                   {"no heads at all", sized(1, 4, 4, 0, 0, 8)},
                   {"no dim", sized(1, 4, 4, 2, 2, 0)},
               },
               kCheck);
  P p = dense();
  sized(1, 4, 4, 2, 2, 0)(p);
  EXPECT_EQ(shape_of(p).scale, 1.0f);
}

TEST(AttentionShape, parameters) {
  expect_cases(
      dense,
      std::vector<Case>{
          {"scale", [](P& p) { p.scale = -0.0f; }},
          {"NaN scale",
           [](P& p) { p.scale = kNan; },
           {"attention: scale: expected a finite number, got nan"}},
          {"infinite scale", [](P& p) { p.scale = HUGE_VALF; }, {"attention: scale:", "got inf"}},
          {"softcap", [](P& p) { p.softcap = 30; }},
          {"negative softcap",
           [](P& p) { p.softcap = -1; },
           {"attention: softcap: expected 0 (off) or a positive finite number, got -1"}},
          {"NaN softcap", [](P& p) { p.softcap = kNan; }, {"attention: softcap:", "got nan"}},
          {"infinite softcap", [](P& p) { p.softcap = HUGE_VALF; }, {"attention: softcap:", "inf"}},
          {"empty windows", [](P& p) { p.window_left = p.window_right = 0; }},
          {"negative window_left",
           [](P& p) { p.window_left = -1; },
           {"attention: window_left: expected absent or 0 and more, got -1"}},
          {"negative window_right",
           [](P& p) { p.window_right = -2; },
           {"attention: window_right: expected absent or 0 and more, got -2"}},
          {"longest", [](P& p) { p.max_q_length = 100, p.max_kv_length = 200; }},
          {"longest is negative",
           [](P& p) { p.max_q_length = -1; },
           {"attention: max_q_length: expected 0 (not known) to 100, got -1"}},
          {"longest is too long",
           [](P& p) { p.max_kv_length = 201; },
           {"attention: max_kv_length: expected 0 (not known) to 200, got 201"}},
      },
      kCheck);
}

TEST(AttentionShape, lists_of_sequences) {
  for (const auto& [name, list] :
       {std::pair{"kv_begin", &P::kv_begin}, std::pair{"kv_end", &P::kv_end},
        std::pair{"q_position", &P::q_position}, std::pair{"kv_position", &P::kv_position}}) {
    const std::string start = std::string("attention: ") + name + ": expected ";
    const auto at = list;
    expect_cases(
        dense,
        std::vector<Case>{
            {"i32", [=](P& p) { p.*at = i32({2}); }},
            {"i64", [=](P& p) { p.*at = i64({2}); }},
            {"dtype", [=](P& p) { p.*at = f32({2}); }, {start + "dtype i32 or i64, got f32[2]"}},
            {"length", [=](P& p) { p.*at = i32({3}); }, {start + "shape [batch = 2], got i32[3]"}},
        },
        kCheck);
  }
}

TEST(AttentionShape, packed_tensors) {
  expect_cases(
      packed,
      std::vector<Case>{
          {"as it is", [](P&) {}},
          {"lse",
           [](P& p) {
             p.lse = f32({8, 100});
           }},
          {"lse's shape",
           [](P& p) {
             p.lse = f32({3, 8, 100});
           },
           {"attention: lse: expected shape [heads = 8, total_q = 100], got f32[3, 8, 100]"}},
          {"q of rank 4",
           [](P& p) {
             p.q = bf16({1, 100, 8, 64});
           },
           {"attention: q: expected shape [total_q, heads, dim], as q_offsets is given",
            "got bf16[1, 100, 8, 64]"}},
          {"k of rank 4",
           [](P& p) {
             p.k = bf16({3, 200, 2, 64});
           },
           {"attention: k: expected shape [total_kv, kv_heads, dim = 64], as kv_offsets is given",
            "got bf16[3, 200, 2, 64]"}},
          {"v's total",
           [](P& p) {
             p.v = bf16({100, 2, 32});
           },
           {"attention: v: expected shape [total_kv = 200, kv_heads = 2, dim_v]",
            "got bf16[100, 2, 32]"}},
          {"lengths of the offsets",
           [](P& p) { p.kv_offsets = i32({5}); },
           {"attention: kv_offsets: expected shape [batch + 1 = 4], got i32[5]"}},
          {"empty offsets",
           [](P& p) { p.q_offsets = i32({0}); },
           {"attention: q_offsets: expected batch + 1 entries, got i32[0]"}},
          {"float offsets",
           [](P& p) { p.q_offsets = f32({4}); },
           {"attention: q_offsets: expected dtype i32 or i64, got f32[4]"}},
          {"no sequences", [](P& p) { p.q_offsets = p.kv_offsets = i32({1}); }},
          {"bound",
           [](P& p) { p.max_q_length = 101; },
           {"attention: max_q_length: expected 0 (not known) to 100, got 101"}},
          {"dense keys",
           [](P& p) {
             p.k = bf16({3, 200, 2, 64}), p.v = bf16({3, 200, 2, 32});
             p.kv_offsets = {};
           }},
          {"dense keys of another batch",
           [](P& p) {
             p.k = bf16({2, 200, 2, 64}), p.v = bf16({2, 200, 2, 32});
             p.kv_offsets = {};
           },
           {"attention: k: expected shape [batch = 3, ", "got bf16[2, 200, 2, 64]"}},
          {"dense queries",
           [](P& p) {
             p.q = bf16({3, 10, 8, 64}), p.out = bf16({3, 10, 8, 32});
             p.q_offsets = {};
           }},
      },
      kCheck);
}

TEST(AttentionShape, paged_tensors) {
  expect_cases(
      paged,
      std::vector<Case>{
          {"as it is", [](P&) {}},
          {"packed queries",
           [](P& p) {
             p.q = bf16({9, 8, 64}), p.out = bf16({9, 8, 32});
             p.q_offsets = i32({3});
           }},
          {"no pages",
           [](P& p) {
             p.k = bf16({0, 16, 2, 64}), p.v = bf16({0, 16, 2, 32});
           }},
          {"empty pages",
           [](P& p) {
             p.k = bf16({50, 0, 2, 64}), p.v = bf16({50, 0, 2, 32});
           },
           {"attention: k: expected pages of at least one key, got bf16[50, 0, 2, 64]"}},
          {"no kv_end",
           [](P& p) { p.kv_end = {}; },
           {"attention: kv_end: expected a list [batch], as page_table is given, got none"}},
          {"kv_offsets",
           [](P& p) { p.kv_offsets = i32({3}); },
           {"attention: kv_offsets: expected none beside page_table, got i32[3]"}},
          {"table of i64",
           [](P& p) {
             p.page_table = i64({2, 20});
           },
           {"attention: page_table: expected dtype i32, got i64[2, 20]"}},
          {"table's batch",
           [](P& p) {
             p.page_table = i32({3, 20});
           },
           {"attention: page_table: expected shape [batch = 2, max_pages], got i32[3, 20]"}},
          {"too many keys",
           [](P& p) {
             p.page_table = i32({2, std::int64_t{1} << 50});
             p.k = bf16({1, 1 << 20, 2, 64}), p.v = bf16({1, 1 << 20, 2, 32});
           },
           {"attention: page_table: expected at most 2^60 keys", "pages of 1048576"}},
          {"v's pages",
           [](P& p) {
             p.v = bf16({50, 8, 2, 32});
           },
           {"attention: v: expected shape [pages = 50, page = 16, kv_heads = 2, dim_v]",
            "got bf16[50, 8, 2, 32]"}},
      },
      kCheck);
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
           {"attention: mask.block_kv: expected at most 2^28 blocks of keys", "got 1"}},
          {"too few rows",
           [](P& p) {
             p.mask.full = {i32({1, 1, 3}), {}, i32({1, 1, 3, 3})};
           },
           {"attention: mask.full.counts: expected at least 4 rows, for 100 queries in blocks of "
            "32",
            "got i32[1, 1, 3]"}},
          {"rows to spare",
           [](P& p) {
             p.mask.full = {i32({1, 1, 9}), {}, i32({1, 1, 9, 3})};
             p.mask.partial.offsets = i32({2, 1, 10});
           }},
          {"rows differ",
           [](P& p) {
             p.mask.full = {i32({1, 1, 9}), {}, i32({1, 1, 9, 3})};
           },
           {"attention: mask.partial: expected 9 rows as full has, got 4"}},
          {"heads",
           [](P& p) {
             p.mask.full.counts = i32({1, 2, 4});
           },
           {"attention: mask.full.counts: expected shape [batch = 2 or 1, heads = 8 or 1, rows]",
            "got i32[1, 2, 4]"}},
          {"both forms",
           [](P& p) {
             p.mask.full.offsets = i32({1, 8, 5});
           },
           {"attention: mask.full: expected either counts or offsets, got both"}},
          {"neither form",
           [](P& p) { p.mask.full.counts = {}; },
           {"attention: mask.full: expected counts or offsets beside indices, got neither"}},
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
           {"attention: mask.bit_tile: expected a tile for each partial block, got none"}},
          {"bit_tile without bits",
           [](P& p) { p.mask.bits = {}; },
           {"attention: mask.bits: expected a tensor, got none"}},
          {"bits without partial lists",
           [](P& p) { p.mask.partial = {}; },
           {"attention: mask.partial: expected lists, as bit_tile or bits is given, got none"}},
          {"bit_tile's shape",
           [](P& p) { p.mask.bit_tile = i32({16}); },
           {"attention: mask.bit_tile: expected shape [total = 17], got i32[16]"}},
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
      kCheck);
  P p = packed();
  p.mask = {.block_q = 10, .block_kv = 10, .full = {i32({1, 1, 2}), {}, i32({1, 1, 2, 5})}};
  EXPECT_PRED2(tessera::testing::contains, tessera::testing::error_text([&] { shape_of(p); }),
               "max_q_length");
  p.max_q_length = 20;
  EXPECT_EQ(shape_of(p).mask_rows, 2);
}

TEST(AttentionShape, backward) {
  const auto make = [] {
    B b{.forward = dense(), .dout = bf16({2, 100, 8, 32})};
    b.forward.lse = f32({2, 8, 100});
    b.dq = f32({2, 100, 8, 64});
    b.dk = bf16({2, 200, 2, 64});
    b.dv = bf16({2, 200, 2, 32});
    return b;
  };
  expect_cases(
      make,
      std::vector<BackwardCase>{
          {"as it is", [](B&) {}},
          {"dv alone", [](B& b) { b.dq = b.dk = {}; }},
          {"forward's arguments",
           [](B& b) { b.forward.softcap = -1; },
           {"attention_backward: forward.softcap: expected"}},
          {"no lse",
           [](B& b) { b.forward.lse = {}; },
           {"attention_backward: forward.lse: expected a tensor, got none"}},
          {"no out",
           [](B& b) { b.forward.out = {}; },
           {"attention_backward: forward.out: expected a tensor, got none"}},
          {"out is read only", [](B& b) { b.forward.out.strides[0] = 0; }},
          {"pages",
           [](B& b) {
             b.forward = paged(), b.forward.lse = f32({2, 8, 100});
           },
           {"attention_backward: forward.page_table: expected none in a backward pass: gather the "
            "pages",
            "got i32[2, 20]"}},
          {"no dout",
           [](B& b) { b.dout = {}; },
           {"attention_backward: dout: expected a tensor, got none"}},
          {"dout's shape",
           [](B& b) {
             b.dout = bf16({2, 100, 8, 64});
           },
           {"attention_backward: dout: expected shape", "dim_v = 32", "got bf16[2, 100, 8, 64]"}},
          {"dout's dtype",
           [](B& b) { b.dout.dtype = DType::f32; },
           {"attention_backward: dout: expected dtype bf16 as forward.out has, got f32"}},
          {"dout broadcast", [](B& b) { b.dout.strides[0] = 0; }},
          {"dq's shape",
           [](B& b) {
             b.dq = f32({2, 100, 8, 32});
           },
           {"attention_backward: dq: expected shape", "dim = 64], the shape of q",
            "got f32[2, 100, 8, 32]"}},
          {"dk's shape",
           [](B& b) {
             b.dk = bf16({2, 200, 8, 64});
           },
           {"attention_backward: dk: expected shape", "the shape of k", "got bf16[2, 200, 8, 64]"}},
          {"dv's dtype",
           [](B& b) { b.dv.dtype = DType::e4m3; },
           {"attention_backward: dv: expected dtype f32, f16 or bf16, got e4m3"}},
          {"dv aliases",
           [](B& b) { b.dv.strides[2] = 0; },
           {"attention_backward: dv: expected strides"}},
          {"dlse",
           [](B& b) {
             b.dlse = f32({2, 8, 100});
           }},
          {"dlse's dtype",
           [](B& b) {
             b.dlse = bf16({2, 8, 100});
           },
           {"attention_backward: dlse: expected dtype f32, got bf16"}},
          {"dsinks", [](B& b) { b.forward.sinks = bf16({8}), b.dsinks = f32({8}); }},
          {"dsinks without sinks",
           [](B& b) { b.dsinks = f32({8}); },
           {"attention_backward: dsinks: expected none, as forward.sinks is absent, got f32[8]"}},
          {"dsinks' dtype",
           [](B& b) { b.forward.sinks = bf16({8}), b.dsinks = bf16({8}); },
           {"attention_backward: dsinks: expected dtype f32, got bf16[8]"}},
          {"packed",
           [](B& b) {
             b.forward = packed();
             b.forward.lse = f32({8, 100});
             b.dout = bf16({100, 8, 32});
             b.dq = bf16({100, 8, 64});
             b.dk = b.dv = {};
           }},
      },
      kCheck);
}

TEST(MergeShape, tensors) {
  const auto make = [] {
    const Tensor out = bf16({2, 10, 8, 64}), lse = f32({2, 8, 10});
    return M{.outs = {out, out, out}, .lses = {lse, lse, lse}, .out = out, .lse = lse};
  };
  const MergeShape shape = shape_of(make());
  EXPECT_EQ(shape.parts, 3);
  EXPECT_EQ(shape.batch, 2);
  EXPECT_EQ(shape.length, 10);
  EXPECT_EQ(shape.heads, 8);
  EXPECT_EQ(shape.dim, 64);
  expect_cases(
      make,
      std::vector<MergeCase>{
          {"without lse", [](M& m) { m.lse = {}; }},
          {"one part", [](M& m) { m.outs.resize(1), m.lses.resize(1); }},
          {"packed",
           [](M& m) {
             m = {.outs = {bf16({10, 8, 64})}, .lses = {f32({8, 10})}, .out = f32({10, 8, 64})};
           }},
          {"no parts",
           [](M& m) { m.outs.clear(), m.lses.clear(); },
           {"merge_states: outs: expected at least one partial result, got none"}},
          {"an lse too few",
           [](M& m) { m.lses.pop_back(); },
           {"merge_states: lses: expected 3, one for each of outs, got 2"}},
          {"rank",
           [](M& m) {
             m.outs[0] = bf16({8, 64});
           },
           {"merge_states: outs[0]: expected shape [batch, length, heads, dim]", "bf16[8, 64]"}},
          {"shapes differ",
           [](M& m) {
             m.outs[2] = bf16({2, 11, 8, 64});
           },
           {"merge_states: outs[2]: expected shape [batch = 2, length = 10, heads = 8, dim = 64]",
            "got bf16[2, 11, 8, 64]"}},
          {"dtypes differ",
           [](M& m) { m.outs[1].dtype = DType::f16; },
           {"merge_states: outs[1]: expected dtype bf16 as outs[0] has, got f16"}},
          {"dtype",
           [](M& m) { m.outs[0].dtype = DType::e4m3; },
           {"merge_states: outs[0]: expected dtype f32, f16 or bf16, got e4m3"}},
          {"devices differ",
           [](M& m) { m.outs[1].device.kind = DeviceKind::cuda; },
           {"merge_states: outs[1]: expected all tensors on cpu", "cuda:0"}},
          {"an lse's shape",
           [](M& m) {
             m.lses[1] = f32({2, 10, 8});
           },
           {"merge_states: lses[1]: expected shape [batch = 2, heads = 8, length = 10]",
            "got f32[2, 10, 8]"}},
          {"an lse's dtype",
           [](M& m) { m.lses[1].dtype = DType::f16; },
           {"merge_states: lses[1]: expected dtype f32, got f16"}},
          {"out",
           [](M& m) {
             m.out = bf16({2, 10, 8, 63});
           },
           {"merge_states: out: expected shape", "dim = 64", "got bf16[2, 10, 8, 63]"}},
          {"out aliases",
           [](M& m) { m.out.strides[3] = 0; },
           {"merge_states: out: expected strides"}},
          {"lse",
           [](M& m) {
             m.lse = f32({2, 8, 9});
           },
           {"merge_states: lse: expected shape", "got f32[2, 8, 9]"}},
          {"lse aliases",
           [](M& m) { m.lse.strides[0] = 0; },
           {"merge_states: lse: expected strides"}},
          {"sinks", [](M& m) { m.sinks = f32({8}); }},
          {"sinks' shape",
           [](M& m) { m.sinks = f32({7}); },
           {"merge_states: sinks: expected shape [heads = 8], got f32[7]"}},
          {"nothing in it",
           [](M& m) {
             m = {.outs = {bf16({0, 8, 64})}, .lses = {f32({8, 0})}, .out = f32({0, 8, 64})};
           }},
      },
      kCheck);
}

}  // namespace
}  // namespace tessera::planning
