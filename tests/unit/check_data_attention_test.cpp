#include "src/problem/shape.hpp"
#include "tests/unit/owned_problem.hpp"
#include "tests/unit/problem_table.hpp"

namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using X = tessera::testing::OwnedProblem<AttentionProblem>;
using Backward = tessera::testing::OwnedProblem<AttentionBackwardProblem>;
using Case = tessera::testing::ProblemCase<X>;
using BackwardCase = tessera::testing::ProblemCase<Backward>;
using Values = std::vector<std::int64_t>;

const auto kCheck = [](const auto& owned) { check_data(owned.problem, shape_of(owned.problem)); };

// Two sequences of six queries and ten keys.
X dense() {
  X x;
  x.problem.q = x.zeros(DType::f32, {2, 6, 2, 4});
  x.problem.out = x.zeros(DType::f32, {2, 6, 2, 4});
  x.problem.k = x.problem.v = x.zeros(DType::f32, {2, 10, 2, 4});
  return x;
}
// Three sequences of 2, 0 and 4 queries, 5, 1 and 4 keys.
X packed() {
  X x;
  x.problem.q = x.zeros(DType::f32, {6, 2, 4});
  x.problem.out = x.zeros(DType::f32, {6, 2, 4});
  x.problem.k = x.problem.v = x.zeros(DType::f32, {10, 2, 4});
  x.problem.q_offsets = x.list({4}, {0, 2, 2, 6});
  x.problem.kv_offsets = x.list({4}, {0, 5, 6, 10}, DType::i64);
  return x;
}
// Pages of four keys: up to twelve keys per sequence, five and eight in use.
X paged() {
  X x = dense();
  x.problem.k = x.problem.v = x.zeros(DType::f32, {7, 4, 2, 4});
  x.problem.page_table = x.list({2, 3}, {6, 0, 99, 1, 2, -5});
  x.problem.kv_end = x.list({2}, {5, 8});
  return x;
}
// Blocks of 2 x 4: three rows of queries, three blocks of keys. Row 1 is empty.
X masked() {
  X x = dense();
  x.problem.mask.block_q = 2;
  x.problem.mask.block_kv = 4;
  x.problem.mask.full = {
      x.list({1, 1, 3}, {2, 0, 1}), {}, x.list({1, 1, 3, 2}, {2, 0, 9, 9, 1, -7})};
  x.problem.mask.partial = {
      {}, x.list({1, 2, 4}, {0, 1, 1, 2, 2, 2, 2, 4}), x.list({4}, {1, 0, 0, 2})};
  x.problem.mask.bit_tile = x.list({4}, {0, 1, 0, 1});
  x.problem.mask.bits = x.zeros(DType::u8, {2, 2, 1});
  return x;
}

TEST(AttentionData, pointers) {
  using P = AttentionProblem;
  const auto make = [] {
    X x = masked();
    x.problem.lse = x.zeros(DType::f32, {2, 2, 6});
    x.problem.sinks = x.zeros(DType::f32, {2});
    for (Tensor P::*list : {&P::kv_begin, &P::kv_end, &P::q_position, &P::kv_position}) {
      x.problem.*list = x.list({2}, {0, 0});
    }
    return x;
  };
  std::vector<Case> cases{{"as it is", [](X&) {}}};
  const auto add = [&](const char* name, Tensor& (*get)(P&)) {
    cases.push_back(
        {name,
         [get](X& x) { get(x.problem).data = nullptr; },
         {std::string("attention: ") + name + ": expected data of", "got a null pointer"}});
  };
  add("q", [](P& p) -> Tensor& { return p.q; });
  add("k", [](P& p) -> Tensor& { return p.k; });
  add("v", [](P& p) -> Tensor& { return p.v; });
  add("out", [](P& p) -> Tensor& { return p.out; });
  add("lse", [](P& p) -> Tensor& { return p.lse; });
  add("sinks", [](P& p) -> Tensor& { return p.sinks; });
  add("kv_begin", [](P& p) -> Tensor& { return p.kv_begin; });
  add("kv_end", [](P& p) -> Tensor& { return p.kv_end; });
  add("q_position", [](P& p) -> Tensor& { return p.q_position; });
  add("kv_position", [](P& p) -> Tensor& { return p.kv_position; });
  add("mask.full.counts", [](P& p) -> Tensor& { return p.mask.full.counts; });
  add("mask.full.indices", [](P& p) -> Tensor& { return p.mask.full.indices; });
  add("mask.partial.offsets", [](P& p) -> Tensor& { return p.mask.partial.offsets; });
  add("mask.partial.indices", [](P& p) -> Tensor& { return p.mask.partial.indices; });
  add("mask.bit_tile", [](P& p) -> Tensor& { return p.mask.bit_tile; });
  add("mask.bits", [](P& p) -> Tensor& { return p.mask.bits; });
  expect_cases(make, cases, kCheck);

  expect_cases(masked,
               std::vector<Case>{
                   {"full lists by offsets",
                    [](X& x) {
                      x.problem.mask.full = {
                          {}, tensor(nullptr, DType::i32, {1, 1, 4}), x.list({2}, {0, 1})};
                    },
                    {"attention: mask.full.offsets: expected data of i32[1, 1, 4]"}},
                   {"partial lists by counts",
                    [](X& x) {
                      x.problem.mask.partial = {tensor(nullptr, DType::i32, {1, 1, 3}),
                                                {},
                                                x.zeros(DType::i32, {1, 1, 3, 2})};
                      x.problem.mask.bit_tile = x.zeros(DType::i32, {1, 1, 3, 2});
                    },
                    {"attention: mask.partial.counts: expected data of i32[1, 1, 3]"}},
               },
               kCheck);
  expect_cases(packed,
               std::vector<Case>{
                   {"q_offsets",
                    [](X& x) { x.problem.q_offsets.data = nullptr; },
                    {"attention: q_offsets: expected data"}},
                   {"kv_offsets",
                    [](X& x) { x.problem.kv_offsets.data = nullptr; },
                    {"attention: kv_offsets: expected data"}},
                   {"no elements",
                    [](X& x) {
                      x.problem.q = x.problem.out = tensor(nullptr, DType::f32, {0, 2, 4});
                      x.problem.q_offsets = x.list({4}, {0, 0, 0, 0});
                    }},
               },
               kCheck);
  expect_cases(paged,
               std::vector<Case>{{"page_table",
                                  [](X& x) { x.problem.page_table.data = nullptr; },
                                  {"attention: page_table: expected data"}}},
               kCheck);
}

TEST(AttentionData, offsets_of_packed_sequences) {
  const auto q = [](Values values) {
    return [=](X& x) { x.problem.q_offsets = x.list({4}, values); };
  };
  expect_cases(
      packed,
      std::vector<Case>{
          {"as it is", [](X&) {}},
          {"unused rows", q({0, 1, 2, 3})},
          {"start",
           q({1, 2, 2, 6}),
           {"attention: q_offsets: expected offsets that start at 0, got 1"}},
          {"negative", q({-1, 2, 2, 6}), {"attention: q_offsets:", "start at 0, got -1"}},
          {"decrease",
           q({0, 2, 1, 6}),
           {"attention: q_offsets: expected offsets that never decrease, got 1 after 2 at entry "
            "2"}},
          {"too many rows",
           q({0, 2, 2, 7}),
           {"attention: q_offsets: expected offsets 0 to 6, got 7 at entry 3"}},
          {"keys decrease",
           [](X& x) {
             x.problem.kv_offsets = x.list({4}, {0, 5, 4, 10});
           },
           {"attention: kv_offsets: expected offsets that never decrease, got 4 after 5"}},
          {"longest", [](X& x) { x.problem.max_q_length = 4, x.problem.max_kv_length = 5; }},
          {"longer than the longest",
           [](X& x) { x.problem.max_q_length = 3; },
           {"attention: q_offsets: expected lengths up to 3", "got 4 at entry 2"}},
          {"keys longer than the longest",
           [](X& x) { x.problem.max_kv_length = 4; },
           {"attention: kv_offsets: expected lengths up to 4", "got 5 at entry 0"}},
      },
      kCheck);
}

TEST(AttentionData, ranges_of_keys) {
  const auto range = [](Values begin, Values end) {
    return [=](X& x) {
      if (!begin.empty()) x.problem.kv_begin = x.list({2}, begin);
      if (!end.empty()) x.problem.kv_end = x.list({2}, end, DType::i64);
    };
  };
  expect_cases(
      dense,
      std::vector<Case>{
          {"everything", range({0, 0}, {10, 10})},
          {"nothing", range({10, 3}, {10, 3})},
          {"begin alone", range({10, 0}, {})},
          {"end too late",
           range({}, {10, 11}),
           {"attention: kv_end: expected 0 to 10, the length of the sequence, got 11 for sequence "
            "1"}},
          {"negative end", range({}, {-1, 10}), {"attention: kv_end:", "got -1 for sequence 0"}},
          {"negative begin",
           range({0, -1}, {}),
           {"attention: kv_begin: expected 0 to 10, the end of the valid keys, got -1 for sequence "
            "1"}},
          {"begin after end",
           range({0, 5}, {10, 4}),
           {"attention: kv_begin: expected 0 to 4", "got 5 for sequence 1"}},
          {"every other entry",
           [](X& x) {
             x.problem.kv_end = x.list({4}, {10, 99, 4, 99});
             x.problem.kv_end.shape[0] = x.problem.kv_end.strides[0] = 2;
           }},
          {"on a device: not read",
           [](X& x) {
             x.problem.kv_end = x.list({2}, {99, 99});
             for (Tensor* tensor :
                  {&x.problem.q, &x.problem.k, &x.problem.v, &x.problem.out, &x.problem.kv_end}) {
               tensor->device.kind = DeviceKind::cuda;
             }
           }},
      },
      kCheck);
  expect_cases(packed,
               std::vector<Case>{
                   {"within each",
                    [](X& x) {
                      x.problem.kv_end = x.list({3}, {5, 1, 4});
                    }},
                   {"beyond its own",
                    [](X& x) {
                      x.problem.kv_end = x.list({3}, {5, 2, 4});
                    },
                    {"attention: kv_end: expected 0 to 1", "got 2 for sequence 1"}},
               },
               kCheck);
}

TEST(AttentionData, positions) {
  const std::int64_t far = (std::int64_t{1} << 60) + 1;
  expect_cases(dense,
               std::vector<Case>{
                   {"negative",
                    [](X& x) {
                      x.problem.q_position = x.list({2}, {-5, 1000});
                    }},
                   {"query too far",
                    [=](X& x) {
                      x.problem.q_position = x.list({2}, {0, far}, DType::i64);
                    },
                    {"attention: q_position: expected positions -2^60 to 2^60", "for sequence 1"}},
                   {"key too far",
                    [=](X& x) {
                      x.problem.kv_position = x.list({2}, {-far, 0}, DType::i64);
                    },
                    {"attention: kv_position: expected positions -2^60 to 2^60", "for sequence 0"}},
               },
               kCheck);
}

TEST(AttentionData, pages) {
  expect_cases(
      paged,
      std::vector<Case>{
          {"valid: unused pages hold any number", [](X&) {}},
          {"no keys",
           [](X& x) {
             x.problem.kv_end = x.list({2}, {0, 0});
           }},
          {"lengths beyond max_kv_length",
           [](X& x) {
             x.problem.kv_end = x.list({2}, {5, 11});
             x.problem.max_kv_length = 10;
           },
           {"attention: kv_end: expected 0 to 10, max_kv_length, got 11 for sequence 1"}},
          {"lengths beyond the table",
           [](X& x) {
             x.problem.kv_end = x.list({2}, {5, 13});
           },
           {"attention: kv_end: expected 0 to 12, the capacity of the page table, got 13 for "
            "sequence "
            "1"}},
          {"a page that does not exist",
           [](X& x) {
             x.problem.kv_end = x.list({2}, {9, 8});
           },
           {"attention: page_table: expected pages in [0, 7), got 99 for page 2 of sequence 0"}},
          {"a negative page",
           [](X& x) {
             x.problem.kv_end = x.list({2}, {5, 9});
           },
           {"attention: page_table: expected pages in [0, 7), got -5 for page 2 of sequence 1"}},
          {"pages before the used keys",
           [](X& x) {
             x.problem.page_table = x.list({2, 3}, {-1, 0, 99, 99, 2, -5});
             x.problem.kv_begin = x.list({2}, {4, 5});
           }},
          {"the page of the first used key",
           [](X& x) {
             x.problem.page_table = x.list({2, 3}, {-1, 0, 99, 99, 2, -5});
             x.problem.kv_begin = x.list({2}, {4, 3});
           },
           {"attention: page_table:", "got 99 for page 0 of sequence 1"}},
      },
      kCheck);
}

TEST(AttentionData, lists_of_mask) {
  const auto full = [](Values counts, Values indices) {
    return [=](X& x) {
      x.problem.mask.full = {x.list({1, 1, 3}, counts), {}, x.list({1, 1, 3, 2}, indices)};
    };
  };
  const auto partial = [](Values offsets, Values indices) {
    return [=](X& x) {
      x.problem.mask.partial.offsets = x.list({1, 2, 4}, offsets);
      x.problem.mask.partial.indices = x.list({4}, indices);
    };
  };
  const Values offsets{0, 1, 1, 2, 2, 2, 2, 4};
  expect_cases(
      masked,
      std::vector<Case>{
          {"valid: any order, unused slots hold any number", [](X&) {}},
          {"count too large",
           full({3, 0, 1}, {2, 0, 9, 9, 1, -7}),
           {"attention: mask.full.counts: expected counts 0 to 2, the capacity of indices, got 3 "
            "in "
            "row 0"}},
          {"negative count", full({2, 0, -1}, {2, 0, 0, 0, 1, 0}), {"mask.full.counts:", "got -1"}},
          {"block out of range",
           full({2, 0, 1}, {2, 3, 9, 9, 1, -7}),
           {"attention: mask.full.indices: expected key blocks in [0, 3), got 3 in row 0"}},
          {"negative block",
           full({2, 0, 2}, {2, 0, 9, 9, 1, -7}),
           {"mask.full.indices:", "got -7"}},
          {"block twice in a list",
           full({2, 0, 1}, {2, 2, 9, 9, 1, -7}),
           {"attention: mask.full.indices: expected key blocks that are unique",
            "got 2 twice in row 0"}},
          {"block in both lists",
           partial(offsets, {1, 1, 0, 2}),
           {"attention: mask.partial.indices: expected key blocks that are unique",
            "got 1 twice in row 2"}},
          {"offsets decrease",
           partial({0, 1, 0, 2, 2, 2, 2, 4}, {1, 0, 0, 2}),
           {"attention: mask.partial.offsets: expected offsets that never decrease, got 0 after "
            "1"}},
          {"offsets too large",
           partial({0, 1, 1, 2, 2, 2, 2, 5}, {1, 0, 0, 2}),
           {"attention: mask.partial.offsets: expected offsets 0 to 4, got 5"}},
          {"negative offsets",
           partial({-1, 1, 1, 2, 2, 2, 2, 4}, {1, 0, 0, 2}),
           {"attention: mask.partial.offsets: expected offsets 0 to 4, got -1 in row 0"}},
          {"block of the second head",
           partial(offsets, {1, 0, 0, -1}),
           {"attention: mask.partial.indices: expected key blocks in [0, 3), got -1 in row 2"}},
          {"tile out of range",
           [](X& x) {
             x.problem.mask.bit_tile = x.list({4}, {0, 1, 0, 2});
           },
           {"attention: mask.bit_tile: expected tiles in [0, 2), got 2 in row 2"}},
          {"negative tile",
           [](X& x) {
             x.problem.mask.bit_tile = x.list({4}, {-1, 1, 0, 1});
           },
           {"attention: mask.bit_tile:", "got -1 in row 0"}},
          {"unused rows hold any number",
           [](X& x) {
             x.problem.mask.full = {
                 x.list({1, 1, 4}, {0, 0, 0, 77}), {}, x.list({1, 1, 4, 1}, {0, 0, 0, -3})};
             x.problem.mask.partial = {};
             x.problem.mask.bit_tile = x.problem.mask.bits = {};
           }},
          {"tiles of a table",
           [](X& x) {
             x.problem.mask.full = {};
             x.problem.mask.partial = {
                 x.list({1, 1, 3}, {1, 2, 0}), {}, x.list({1, 1, 3, 2}, {1, 9, 2, 0, 9, 9})};
             x.problem.mask.bit_tile = x.list({1, 1, 3, 2}, {1, 9, 0, 5, 9, 9});
           },
           {"attention: mask.bit_tile: expected tiles in [0, 2), got 5 in row 1"}},
          {"second batch of the indices",
           [](X& x) {
             x.problem.mask.full.indices =
                 x.list({2, 1, 3, 2}, {2, 0, 9, 9, 1, -7, 2, 0, 9, 9, 8, -7});
           },
           {"attention: mask.full.indices: expected key blocks in [0, 3), got 8 in row 2 of batch "
            "1, head 0"}},
      },
      kCheck);
}

TEST(AttentionData, mask_rows_in_use_follow_the_sequences) {
  // Sequences of 2, 0 and 4 queries need 1, 0 and 2 rows of their own lists.
  const auto own = [](Values counts) {
    return [=](X& x) {
      x.problem.max_q_length = 4;
      x.problem.max_kv_length = 5;
      x.problem.mask.block_q = 2;
      x.problem.mask.block_kv = 4;
      x.problem.mask.full = {x.list({3, 1, 2}, counts), {}, x.zeros(DType::i32, {3, 1, 2, 1})};
    };
  };
  const auto shared = [](Values counts) {
    return [=](X& x) {
      x.problem.max_q_length = 6;
      x.problem.max_kv_length = 5;
      x.problem.mask.block_q = 2;
      x.problem.mask.block_kv = 4;
      x.problem.mask.full = {x.list({1, 1, 3}, counts), {}, x.zeros(DType::i32, {1, 1, 3, 1})};
    };
  };
  expect_cases(packed,
               std::vector<Case>{
                   {"rows out of use", own({1, 77, 77, 77, 1, 1})},
                   {"row in use", own({1, 77, 77, 77, 1, 77}), {"mask.full.counts:", "in row 1"}},
                   {"shared rows out of use", shared({1, 1, 77})},
                   {"shared row in use", shared({1, 77, 77}), {"mask.full.counts:", "in row 1"}},
               },
               kCheck);
}

TEST(AttentionBackwardData, pointers_and_lists) {
  const auto make = [] {
    Backward x;
    AttentionBackwardProblem& p = x.problem;
    p.forward.q = p.forward.k = p.forward.v = p.forward.out = x.zeros(DType::f32, {1, 4, 2, 8});
    p.dout = p.forward.q;
    for (Tensor* gradient : {&p.dq, &p.dk, &p.dv}) *gradient = x.zeros(DType::f32, {1, 4, 2, 8});
    p.forward.lse = p.dlse = x.zeros(DType::f32, {1, 2, 4});
    p.forward.sinks = x.zeros(DType::f32, {2});
    p.dsinks = x.zeros(DType::f32, {2});
    return x;
  };
  std::vector<BackwardCase> cases{
      {"as it is", [](Backward&) {}},
      {"forward",
       [](Backward& x) { x.problem.forward.k.data = nullptr; },
       {"attention_backward: forward.k: expected data"}},
      {"lists of forward",
       [](Backward& x) { x.problem.forward.kv_end = x.list({1}, {5}); },
       {"attention_backward: forward.kv_end: expected 0 to 4", "got 5"}},
  };
  using B = AttentionBackwardProblem;
  for (const auto& [name, tensor] :
       {std::pair{"dout", &B::dout}, std::pair{"dlse", &B::dlse}, std::pair{"dq", &B::dq},
        std::pair{"dk", &B::dk}, std::pair{"dv", &B::dv}, std::pair{"dsinks", &B::dsinks}}) {
    const auto at = tensor;
    cases.push_back({name,
                     [at](Backward& x) { (x.problem.*at).data = nullptr; },
                     {std::string("attention_backward: ") + name + ": expected data of",
                      "got a null pointer"}});
  }
  expect_cases(make, cases, kCheck);
}

}  // namespace
}  // namespace tessera::planning
