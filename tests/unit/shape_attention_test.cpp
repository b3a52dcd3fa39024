#include "tests/unit/shape_problems.hpp"

namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using P = AttentionProblem;
using Case = tessera::testing::ProblemCase<P>;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(AttentionShape, holds_what_the_tensors_say) {
  const AttentionShape shape = shape_of(dense_attention());
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
  P p = packed_attention();
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

  shape = shape_of(paged_attention());
  EXPECT_EQ(shape.kv_layout, KvLayout::paged);
  EXPECT_EQ(shape.page, 16);
  EXPECT_EQ(shape.pages, 50);
  EXPECT_EQ(shape.max_pages, 20);
  EXPECT_EQ(shape.kv_length, 320);
  EXPECT_EQ(shape.kv_total, 800);
}

TEST(AttentionShape, folds_causality_into_the_window) {
  P p = dense_attention();
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

TEST(AttentionShape, dense_tensors) {
  const auto text = [](const char* name) { return std::string("attention: ") + name; };
  expect_cases(
      dense_attention,
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
          {"e4m3 keys", [](P& p) { p.k.dtype = p.v.dtype = DType::e4m3; }},
          {"e4m3 keys alone",
           [](P& p) { p.k.dtype = DType::e4m3; },
           {"attention: v: expected dtype e4m3 as k has, got bf16"}},
          {"scales of all keys and of each head",
           [](P& p) {
             p.k.dtype = p.v.dtype = DType::e4m3;
             p.k_scale = tensor(nullptr, DType::f32, {1});
             p.v_scale = tensor(nullptr, DType::f32, {2, 2});
           }},
          {"scales of other heads",
           [](P& p) {
             p.k.dtype = p.v.dtype = DType::e4m3;
             p.k_scale = tensor(nullptr, DType::f32, {8});
           },
           {"attention: k_scale: expected shape [kv_heads = 2", "got f32[8]"}},
          {"scales of another batch",
           [](P& p) {
             p.k.dtype = p.v.dtype = DType::e4m3;
             p.v_scale = tensor(nullptr, DType::f32, {3, 2});
           },
           {"attention: v_scale: expected shape [batch = 2, kv_heads = 2]", "got f32[3, 2]"}},
          {"scales of 64 and 128 rows",
           [](P& p) {
             p.q.dtype = p.k.dtype = p.v.dtype = DType::e4m3;
             p.q_scale = tensor(nullptr, DType::f32, {2, 8, 2});
             p.k_scale = tensor(nullptr, DType::f32, {2, 2, 4});
             p.v_scale = tensor(nullptr, DType::f32, {2, 2, 2});
           }},
          {"scales of other rows",
           [](P& p) {
             p.q.dtype = p.k.dtype = p.v.dtype = DType::e4m3;
             p.k_scale = tensor(nullptr, DType::f32, {2, 2, 3});
           },
           {"attention: k_scale: expected shape [batch = 2, kv_heads = 2, ", "got f32[2, 2, 3]"}},
          {"q_scale beside q in 16 bits",
           [](P& p) { p.q_scale = tensor(nullptr, DType::f32, {1}); },
           {"attention: q_scale: expected none, as the values are bf16 and not e4m3"}},
          {"scales in 16 bits",
           [](P& p) {
             p.k.dtype = p.v.dtype = DType::e4m3;
             p.k_scale = bf16({1});
           },
           {"attention: k_scale: expected dtype f32, got bf16"}},
          {"scales of 16-bit keys",
           [](P& p) { p.k_scale = tensor(nullptr, DType::f32, {1}); },
           {"attention: k_scale: expected none, as the values are bf16 and not e4m3, got f32[1]"}},
          {"no k", [](P& p) { p.k = {}; }, {"attention: k: expected a tensor, got none"}},
          {"k on another device",
           [](P& p) { p.k.device.kind = DeviceKind::cuda; },
           {"attention: k: expected all tensors on cpu, got", "on cuda:0"}},
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
      kCheckShape);
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
  expect_cases(dense_attention,
               std::vector<Case>{
                   {"no batch", sized(0, 4, 4, 2, 2, 8)},
                   {"no queries", sized(1, 0, 4, 2, 2, 8)},
                   {"no keys", sized(1, 4, 0, 2, 2, 8)},
                   {"no heads", sized(1, 4, 4, 0, 2, 8)},
                   {"no heads at all", sized(1, 4, 4, 0, 0, 8)},
                   {"no dim", sized(1, 4, 4, 2, 2, 0)},
               },
               kCheckShape);
  P p = dense_attention();
  sized(1, 4, 4, 2, 2, 0)(p);
  EXPECT_EQ(shape_of(p).scale, 1.0f);
}

TEST(AttentionShape, parameters) {
  expect_cases(
      dense_attention,
      std::vector<Case>{
          {"scale", [](P& p) { p.scale = -0.0f; }},
          {"NaN scale",
           [](P& p) { p.scale = kNan; },
           {"attention: scale: expected a finite number, got nan"}},
          {"infinite scale", [](P& p) { p.scale = kInfinity; }, {"attention: scale:", "got inf"}},
          {"softcap", [](P& p) { p.softcap = 30; }},
          {"negative softcap",
           [](P& p) { p.softcap = -1; },
           {"attention: softcap: expected 0 (off) or a positive finite number, got -1"}},
          {"NaN softcap", [](P& p) { p.softcap = kNan; }, {"attention: softcap:", "got nan"}},
          {"infinite softcap", [](P& p) { p.softcap = kInfinity; }, {"attention: softcap:", "inf"}},
          {"empty windows", [](P& p) { p.window_left = p.window_right = 0; }},
          {"negative window_left",
           [](P& p) { p.window_left = -1; },
           {"attention: window_left: expected absent or 0 and more, got -1"}},
          {"negative window_right",
           [](P& p) { p.window_right = -2; },
           {"attention: window_right: expected absent or 0 and more, got -2"}},
          {"longest", [](P& p) { p.max_q_length = 100, p.max_kv_length = 200; }},
          {"max length is negative",
           [](P& p) { p.max_q_length = -1; },
           {"attention: max_q_length: expected 0 (unknown) to 100, got -1"}},
          {"max length is too long",
           [](P& p) { p.max_kv_length = 201; },
           {"attention: max_kv_length: expected 0 (unknown) to 200, got 201"}},
      },
      kCheckShape);
}

TEST(AttentionShape, lists_of_sequences) {
  for (const auto& [name, list] :
       {std::pair{"kv_begin", &P::kv_begin}, std::pair{"kv_end", &P::kv_end},
        std::pair{"q_position", &P::q_position}, std::pair{"kv_position", &P::kv_position}}) {
    const std::string start = std::string("attention: ") + name + ": expected ";
    const auto at = list;
    expect_cases(
        dense_attention,
        std::vector<Case>{
            {"i32", [=](P& p) { p.*at = i32({2}); }},
            {"i64", [=](P& p) { p.*at = i64({2}); }},
            {"dtype", [=](P& p) { p.*at = f32({2}); }, {start + "dtype i32 or i64, got f32[2]"}},
            {"length", [=](P& p) { p.*at = i32({3}); }, {start + "shape [batch = 2], got i32[3]"}},
        },
        kCheckShape);
  }
}

TEST(AttentionShape, packed_tensors) {
  expect_cases(
      packed_attention,
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
           {"attention: max_q_length: expected 0 (unknown) to 100, got 101"}},
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
      kCheckShape);
}

TEST(AttentionShape, paged_tensors) {
  expect_cases(
      paged_attention,
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
           {"attention: kv_offsets: expected none with page_table, got i32[3]"}},
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
      kCheckShape);
}

}  // namespace
}  // namespace tessera::planning
