#include "src/problem/shape.hpp"
#include "tests/unit/owned_problem.hpp"
#include "tests/unit/problem_table.hpp"

namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using tessera::testing::OwnedProblem;
using Matmul = OwnedProblem<MatmulProblem>;
using Sddmm = OwnedProblem<SddmmProblem>;
using Spgemm = OwnedProblem<SpgemmProblem>;
using Merge = OwnedProblem<MergeStatesProblem>;
template <class Owned>
using Cases = std::vector<tessera::testing::ProblemCase<Owned>>;

const auto kCheck = [](const auto& owned) { check_data(owned.problem, shape_of(owned.problem)); };

// 6 x 8 in blocks of 2 x 2, five stored: rows {0, 3}, {}, {0, 1, 2}.
template <class Owned>
BsrMatrix bsr(Owned& x) {
  return {x.zeros(DType::f32, {5, 2, 2}), x.list({4}, {0, 2, 2, 5}), x.list({5}, {0, 3, 0, 1, 2}),
          6, 8};
}

Matmul sparse_matmul() {
  Matmul x;
  x.problem = {.a = bsr(x), .b = x.zeros(DType::f32, {8, 3}), .out = x.zeros(DType::f32, {6, 3})};
  return x;
}

TEST(MatmulData, pointers) {
  expect_cases(
      sparse_matmul,
      Cases<Matmul>{
          {"as it is", [](Matmul&) {}},
          {"values",
           [](Matmul& x) { x.problem.a.sparse.values.data = nullptr; },
           {"matmul: a.sparse.values: expected data of f32[5, 2, 2]", "got a null pointer"}},
          {"offsets",
           [](Matmul& x) { x.problem.a.sparse.row_offsets.data = nullptr; },
           {"matmul: a.sparse.row_offsets: expected data of i32[4]", "got a null pointer"}},
          {"columns",
           [](Matmul& x) { x.problem.a.sparse.col_indices.data = nullptr; },
           {"matmul: a.sparse.col_indices: expected data", "got a null pointer"}},
          {"dense", [](Matmul& x) { x.problem.b.dense.data = nullptr; }, {"matmul: b: expected"}},
          {"out", [](Matmul& x) { x.problem.out.data = nullptr; }, {"matmul: out: expected data"}},
          {"c",
           [](Matmul& x) {
             x.problem.epilogue.c = tensor(nullptr, DType::f32, {6, 3});
           },
           {"matmul: epilogue.c: expected data"}},
          {"bias",
           [](Matmul& x) { x.problem.epilogue.bias = tensor(nullptr, DType::f32, {3}); },
           {"matmul: epilogue.bias: expected data"}},
          {"factors",
           [](Matmul& x) {
             x.problem.a.sparse.values = x.zeros(DType::e4m3, {5, 2, 2});
             x.problem.b = x.zeros(DType::e4m3, {8, 3});
             x.problem.b.scale = tensor(nullptr, DType::f32, {1});
           },
           {"matmul: b.scale: expected data"}},
          {"no elements need no pointer",
           [](Matmul& x) {
             x.problem.b = tensor(nullptr, DType::f32, {8, 0});
             x.problem.out = tensor(nullptr, DType::f32, {6, 0});
           }},
      },
      kCheck);
}

TEST(MatmulData, lists_of_a_sparse_operand) {
  const auto offsets = [](std::vector<std::int64_t> values) {
    return [=](Matmul& x) { x.problem.a.sparse.row_offsets = x.list({4}, values); };
  };
  const auto columns = [](std::vector<std::int64_t> values) {
    return [=](Matmul& x) { x.problem.a.sparse.col_indices = x.list({5}, values); };
  };
  expect_cases(
      sparse_matmul,
      Cases<Matmul>{
          {"another pattern", offsets({0, 2, 3, 5})},
          {"start",
           offsets({1, 2, 2, 5}),
           {"matmul: a.sparse.row_offsets: expected offsets that start at 0, got 1"}},
          {"decrease",
           offsets({0, 3, 2, 5}),
           {"matmul: a.sparse.row_offsets: expected offsets that never decrease, got 2 after 3"}},
          {"end too late",
           offsets({0, 2, 2, 6}),
           {"matmul: a.sparse.row_offsets: expected offsets 0 to 5, got 6 at entry 3"}},
          {"end too early",
           offsets({0, 2, 2, 4}),
           {"matmul: a.sparse.row_offsets: expected offsets that end at 5, got 4"}},
          {"negative column",
           columns({0, 3, -1, 1, 2}),
           {"matmul: a.sparse.col_indices: expected block columns in [0, 4), got -1 in block row "
            "2"}},
          {"column out of range",
           columns({0, 4, 0, 1, 2}),
           {"matmul: a.sparse.col_indices: expected block columns in [0, 4), got 4 in block row "
            "0"}},
          {"unsorted",
           columns({3, 0, 0, 1, 2}),
           {"matmul: a.sparse.col_indices: expected block columns that are sorted and unique",
            "got 0 after 3 in block row 0"}},
          {"duplicate",
           columns({0, 3, 0, 1, 1}),
           {"matmul: a.sparse.col_indices: expected block columns that are sorted and unique",
            "got 1 after 1 in block row 2"}},
          {"i64 and strides",
           [](Matmul& x) {
             Tensor& list = x.problem.a.sparse.row_offsets;
             list = x.list({4, 2}, {0, -9, 2, -9, 2, -9, 5, -9}, DType::i64);
             list.rank = 1;
             x.problem.a.sparse.col_indices = x.list({5}, {0, 3, 0, 1, 2}, DType::i64);
           }},
          {"negative strides",
           [](Matmul& x) {
             Tensor& list = x.problem.a.sparse.col_indices;
             list = x.list({5}, {2, 1, 0, 3, 0});
             list.data = static_cast<std::int32_t*>(list.data) + 4;
             list.strides[0] = -1;
           }},
          {"on a device: not read",
           [](Matmul& x) {
             BsrMatrix& a = x.problem.a.sparse;
             a.row_offsets = x.list({4}, {9, 9, 9, 9});
             for (Tensor* tensor :
                  {&a.values, &a.row_offsets, &a.col_indices, &x.problem.b.dense, &x.problem.out}) {
               tensor->device.kind = DeviceKind::cuda;
             }
           }},
      },
      kCheck);
}

TEST(MatmulData, batches_of_lists) {
  const auto make = [] {
    Matmul x = sparse_matmul();
    x.problem.out = x.zeros(DType::f32, {2, 6, 3});
    x.problem.a.sparse.values = x.zeros(DType::f32, {2, 5, 2, 2});
    return x;
  };
  const auto pool = [](std::vector<std::int64_t> offsets) {
    return [=](Matmul& x) {
      x.problem.a.sparse.values = x.zeros(DType::f32, {7, 2, 2});
      x.problem.a.sparse.col_indices = x.list({7}, {0, 3, 0, 1, 2, 1, 2});
      x.problem.a.sparse.row_offsets = x.list({2, 4}, offsets);
    };
  };
  expect_cases(
      make,
      Cases<Matmul>{
          {"shared lists", [](Matmul&) {}},
          {"second columns",
           [](Matmul& x) {
             x.problem.a.sparse.col_indices = x.list({2, 5}, {0, 3, 0, 1, 2, 0, 3, 0, 7, 2});
           },
           {"matmul: a.sparse.col_indices: expected block columns in [0, 4), got 7"}},
          {"second offsets",
           [](Matmul& x) {
             x.problem.a.sparse.row_offsets = x.list({2, 4}, {0, 2, 2, 5, 0, 1, 2});
           },
           {"matmul: a.sparse.row_offsets: expected offsets that never decrease, got 0 after 2"}},
          {"pool", pool({0, 2, 2, 5, 5, 7, 7, 7})},
          {"a pool may be shared", pool({0, 2, 2, 5, 2, 5, 7, 7})},
          {"beyond the pool",
           pool({0, 2, 2, 5, 5, 7, 7, 8}),
           {"matmul: a.sparse.row_offsets: expected offsets 0 to 7, got 8 at entry 3"}},
          {"before the pool",
           pool({-1, 2, 2, 5, 5, 7, 7, 7}),
           {"matmul: a.sparse.row_offsets: expected offsets 0 to 7, got -1 at entry 0"}},
      },
      kCheck);
}

TEST(MatmulData, group_offsets) {
  const auto make = [](GroupAxis axis) {
    return [axis] {
      Matmul x;
      const bool rows = axis == GroupAxis::rows;
      x.problem.a = x.zeros(DType::f32, {10, 10});
      x.problem.b = rows ? x.zeros(DType::f32, {3, 10, 4}) : x.zeros(DType::f32, {10, 4});
      x.problem.out = rows ? x.zeros(DType::f32, {10, 4}) : x.zeros(DType::f32, {3, 10, 4});
      x.problem.group_offsets = x.list({4}, {0, 4, 4, 10});
      x.problem.group_axis = axis;
      return x;
    };
  };
  const auto offsets = [](std::vector<std::int64_t> values) {
    return [=](Matmul& x) { x.problem.group_offsets = x.list({4}, values, DType::i64); };
  };
  const Cases<Matmul> cases{
      {"as it is", [](Matmul&) {}},
      {"one group has all rows", offsets({0, 0, 10, 10})},
      {"null",
       [](Matmul& x) { x.problem.group_offsets.data = nullptr; },
       {"matmul: group_offsets: expected data", "null pointer"}},
      {"start",
       offsets({1, 4, 4, 10}),
       {"matmul: group_offsets: expected offsets that start at 0"}},
      {"decrease", offsets({0, 5, 4, 10}), {"matmul: group_offsets:", "got 4 after 5"}},
      {"rows left over", offsets({0, 4, 4, 9}), {"matmul: group_offsets:", "end at 10, got 9"}},
      {"too many", offsets({0, 4, 11, 11}), {"matmul: group_offsets:", "0 to 10, got 11"}},
  };
  expect_cases(make(GroupAxis::rows), cases, kCheck);
  expect_cases(make(GroupAxis::inner), cases, kCheck);
}

TEST(SddmmData, pattern_and_pointers) {
  const auto make = [] {
    Sddmm x;
    x.problem = {.a = x.zeros(DType::f32, {6, 4}), .b = x.zeros(DType::f32, {4, 8}), .out = bsr(x)};
    return x;
  };
  const auto pool = [](std::vector<std::int64_t> offsets) {
    return [=](Sddmm& x) { x.problem.out.row_offsets = x.list({2, 4}, offsets); };
  };
  expect_cases(
      make,
      Cases<Sddmm>{
          {"as it is", [](Sddmm&) {}},
          {"a", [](Sddmm& x) { x.problem.a.dense.data = nullptr; }, {"sddmm: a: expected data"}},
          {"b", [](Sddmm& x) { x.problem.b.dense.data = nullptr; }, {"sddmm: b: expected data"}},
          {"values",
           [](Sddmm& x) { x.problem.out.values.data = nullptr; },
           {"sddmm: out.values: expected data"}},
          {"columns",
           [](Sddmm& x) {
             x.problem.out.col_indices = x.list({5}, {0, 3, 0, 1, 9});
           },
           {"sddmm: out.col_indices: expected block columns in [0, 4), got 9"}},
          {"pieces of one pool", pool({0, 2, 2, 2, 2, 2, 2, 5})},
          {"pieces overlap",
           pool({0, 2, 2, 5, 2, 2, 2, 5}),
           {"sddmm: out.row_offsets: expected matrix 1 of the batch to start at block 5", "got 2"}},
      },
      kCheck);
}

TEST(SpgemmData, patterns_and_pointers) {
  const auto make = [] {
    Spgemm x;
    x.problem = {.a = bsr(x), .b = transpose(bsr(x))};
    return x;
  };
  expect_cases(
      make,
      Cases<Spgemm>{
          {"as it is", [](Spgemm&) {}},
          {"values",
           [](Spgemm& x) { x.problem.a.sparse.values.data = nullptr; },
           {"spgemm: a.sparse.values: expected data"}},
          {"columns of b",
           [](Spgemm& x) {
             x.problem.b.sparse.col_indices = x.list({5}, {0, 3, 0, 1, 1});
           },
           {"spgemm: b.sparse.col_indices: expected block columns that are sorted", "1 after 1"}},
      },
      kCheck);
}

TEST(MergeData, pointers) {
  const auto make = [] {
    Merge x;
    const Tensor out = x.zeros(DType::f32, {3, 2, 4}), lse = x.zeros(DType::f32, {2, 3});
    x.problem = {.outs = {out, out}, .lses = {lse, lse}, .out = out, .lse = lse};
    x.problem.sinks = x.zeros(DType::f32, {2});
    return x;
  };
  expect_cases(make,
               Cases<Merge>{
                   {"as it is", [](Merge&) {}},
                   {"a part",
                    [](Merge& x) { x.problem.outs[1].data = nullptr; },
                    {"merge_states: outs[1]: expected data of f32[3, 2, 4]", "got a null pointer"}},
                   {"its lse",
                    [](Merge& x) { x.problem.lses[1].data = nullptr; },
                    {"merge_states: lses[1]: expected data"}},
                   {"out",
                    [](Merge& x) { x.problem.out.data = nullptr; },
                    {"merge_states: out: expected data"}},
                   {"lse",
                    [](Merge& x) { x.problem.lse.data = nullptr; },
                    {"merge_states: lse: expected data"}},
                   {"sinks",
                    [](Merge& x) { x.problem.sinks.data = nullptr; },
                    {"merge_states: sinks: expected data"}},
               },
               kCheck);
}

}  // namespace
}  // namespace tessera::planning
