#include "tests/unit/shape_problems.hpp"

namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using Matmul = tessera::testing::ProblemCase<MatmulProblem>;

TEST(MatmulShape, grouped_rows) {
  using P = MatmulProblem;
  const auto make = [] {
    P problem{.a = f32({100, 32}), .b = f32({4, 32, 48}), .out = f32({100, 48})};
    problem.group_offsets = i32({5});
    return problem;
  };
  const MatmulShape shape = shape_of(make());
  EXPECT_TRUE(shape.grouped);
  EXPECT_EQ(shape.batch, 4);
  EXPECT_EQ(shape.m, 100);
  expect_cases(
      make,
      std::vector<Matmul>{
          {"i64 offsets", [](P& p) { p.group_offsets = i64({5}); }},
          {"float offsets",
           [](P& p) { p.group_offsets = f32({5}); },
           {"matmul: group_offsets: expected dtype i32 or i64, got f32[5]"}},
          {"offsets of another rank",
           [](P& p) {
             p.group_offsets = i32({1, 5});
           },
           {"matmul: group_offsets: expected shape [groups + 1], got i32[1, 5]"}},
          {"no groups for rows",
           [](P& p) {
             p.group_offsets = i32({1}), p.b = f32({0, 32, 48});
           },
           {"matmul: group_offsets: expected groups + 1 entries", "length of 100", "got i32[1]"}},
          {"no groups and no rows",
           [](P& p) {
             p.a = f32({0, 32}), p.b = f32({0, 32, 48}), p.out = f32({0, 48});
             p.group_offsets = i32({1});
           }},
          {"matrices of b",
           [](P& p) {
             p.b = f32({3, 32, 48});
           },
           {"matmul: b: expected a batch of 4, one matrix per group, got a batch of 3"}},
          {"sparse b",
           [](P& p) {
             p.b = BsrMatrix{f32({40, 8, 16}), i32({4, 5}), i32({40}), 32, 48};
           }},
          {"sparse a",
           [](P& p) { p.a = seven_blocks(); },
           {"matmul: a: expected a dense matrix, as rows are grouped", "got a BSR matrix"}},
          {"batched a",
           [](P& p) {
             p.a = f32({1, 100, 32});
           },
           {"matmul: a: expected shape [rows, cols], as group_offsets", "got f32[1, 100, 32]"}},
          {"out",
           [](P& p) {
             p.out = f32({4, 100, 48});
           },
           {"matmul: out: expected shape [M = 100, N = 48], got f32[4, 100, 48]"}},
          {"a bias per group",
           [](P& p) {
             p.epilogue.bias = f32({4, 48});
           }},
          {"a row bias per group",
           [](P& p) {
             p.epilogue.bias = f32({4, 100}), p.epilogue.bias_axis = BiasAxis::row;
           },
           {"matmul: epilogue.bias: expected shape [M = 100], got f32[4, 100]"}},
          {"axis",
           [](P& p) { p.group_axis = static_cast<GroupAxis>(5); },
           {"matmul: group_axis: expected rows or inner, got number 5"}},
      },
      kCheckShape);
}

TEST(MatmulShape, grouped_inner) {
  using P = MatmulProblem;
  const auto make = [] {
    P problem{.a = f32({32, 100}), .b = f32({100, 48}), .out = f32({4, 32, 48})};
    problem.group_offsets = i32({5});
    problem.group_axis = GroupAxis::inner;
    return problem;
  };
  EXPECT_EQ(shape_of(make()).batch, 4);
  expect_cases(
      make,
      std::vector<Matmul>{
          {"a transposed",
           [](P& p) {
             p.a = transpose(f32({100, 32}));
           }},
          {"sparse b",
           [](P& p) {
             p.a = f32({32, 64});
             p.b = seven_blocks();
           },
           {"matmul: b: expected a dense matrix, as the inner dimension is grouped, got a BSR"}},
          {"batched b",
           [](P& p) {
             p.b = f32({4, 100, 48});
           },
           {"matmul: b: expected shape [rows, cols], as group_offsets", "got f32[4, 100, 48]"}},
          {"out",
           [](P& p) {
             p.out = f32({32, 48});
           },
           {"matmul: out: expected shape [groups = 4, M = 32, N = 48], got f32[32, 48]"}},
      },
      kCheckShape);
}

}  // namespace
}  // namespace tessera::planning
