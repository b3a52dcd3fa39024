#include "tests/unit/shape_problems.hpp"

namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using Matmul = tessera::testing::ProblemCase<MatmulProblem>;
using Sddmm = tessera::testing::ProblemCase<SddmmProblem>;
using Spgemm = tessera::testing::ProblemCase<SpgemmProblem>;

TEST(MatmulShape, describes_a_sparse_operand_as_stored) {
  const MatmulShape shape = shape_of(
      MatmulProblem{.a = transpose(seven_blocks()), .b = f32({64, 3}), .out = f32({32, 3})});
  EXPECT_TRUE(shape.a.sparse);
  EXPECT_EQ(shape.a.rows, 32);
  EXPECT_EQ(shape.a.cols, 64);
  EXPECT_EQ(shape.a.block, (BlockShape{16, 8}));
  EXPECT_EQ(shape.a.stored, 7);
  EXPECT_EQ(shape.a.index, DType::i32);
  EXPECT_EQ(shape.m, 32);
}

TEST(MatmulShape, sparse_operand) {
  using P = MatmulProblem;
  const auto make = [] { return P{.a = seven_blocks(), .b = f32({32, 48}), .out = f32({64, 48})}; };
  const auto batched = [](P& p, bool values, bool offsets, bool columns, std::int64_t batch) {
    if (values) p.a.sparse.values = f32({batch, 7, 16, 8});
    if (offsets) p.a.sparse.row_offsets = i32({batch, 5});
    if (columns) p.a.sparse.col_indices = i32({batch, 7});
    p.out = f32({3, 64, 48});
  };
  expect_cases(
      make,
      std::vector<Matmul>{
          {"as it is", [](P&) {}},
          {"i64 lists",
           [](P& p) { p.a.sparse.row_offsets = i64({5}), p.a.sparse.col_indices = i64({7}); }},
          {"index dtypes differ",
           [](P& p) { p.a.sparse.col_indices = i64({7}); },
           {"matmul: a.sparse.col_indices: expected dtype i32 as row_offsets has, got i64[7]"}},
          {"float indices",
           [](P& p) { p.a.sparse.row_offsets = f32({5}); },
           {"matmul: a.sparse.row_offsets: expected dtype i32 or i64, got f32[5]"}},
          {"rank of values",
           [](P& p) {
             p.a.sparse.values = f32({7, 16});
           },
           {"matmul: a.sparse.values: expected shape [stored, ", "got f32[7, 16]"}},
          {"empty blocks",
           [](P& p) {
             p.a.sparse.values = f32({7, 16, 0});
           },
           {"matmul: a.sparse.values: expected blocks of at least 1 x 1, got f32[7, 16, 0]"}},
          {"block does not divide the rows",
           [](P& p) { p.a.sparse.rows = 65; },
           {"matmul: a.sparse.rows: expected a multiple of the block size 16", "got 65"}},
          {"block does not divide the columns",
           [](P& p) { p.a.sparse.cols = 33; },
           {"matmul: a.sparse.cols: expected a multiple of the block size 8", "got 33"}},
          {"negative columns",
           [](P& p) { p.a.sparse.cols = -8; },
           {"matmul: a.sparse.cols: expected", "got -8"}},
          {"length of the offsets",
           [](P& p) { p.a.sparse.row_offsets = i32({4}); },
           {"matmul: a.sparse.row_offsets: expected shape [block rows + 1 = 5], got i32[4]"}},
          {"length of the columns",
           [](P& p) { p.a.sparse.col_indices = i32({8}); },
           {"matmul: a.sparse.col_indices: expected shape [stored blocks = 7], got i32[8]"}},
          {"no columns",
           [](P& p) { p.a.sparse.col_indices = {}; },
           {"matmul: a.sparse.col_indices: expected a tensor, got none"}},
          {"more blocks than the matrix has",
           [](P& p) {
             p.a.sparse.values = f32({17, 16, 8});
             p.a.sparse.col_indices = i32({17});
           },
           {"matmul: a.sparse.values: expected at most 16 stored blocks", "got f32[17, 16, 8]"}},
          {"every block",
           [](P& p) {
             p.a.sparse.values = f32({16, 16, 8});
             p.a.sparse.col_indices = i32({16});
           }},
          {"more blocks than i32 counts",
           [](P& p) {
             p.a.sparse = {f32({kHuge, 1, 1}), i32({65}), i32({kHuge}), 64, kHuge};
             p.b = f32({kHuge, 48});
           },
           {"matmul: a.sparse.row_offsets: expected dtype i64", "got i32[65]"}},
          {"nothing stored",
           [](P& p) {
             p.a.sparse.values = f32({0, 16, 8});
             p.a.sparse.col_indices = i32({0});
           }},
          {"no rows",
           [](P& p) {
             p.a.sparse = {f32({0, 16, 8}), i32({1}), i32({0}), 0, 32};
             p.out = f32({0, 48});
           }},
          {"all batched", [&](P& p) { batched(p, true, true, true, 3); }},
          {"own values", [&](P& p) { batched(p, true, false, false, 3); }},
          {"own lists", [&](P& p) { batched(p, false, true, true, 3); }},
          {"a pool larger than one matrix",
           [](P& p) {
             p.a.sparse = {f32({40, 16, 8}), i32({3, 5}), i32({40}), 64, 32};
             p.out = f32({3, 64, 48});
           }},
          {"batches inside differ",
           [&](P& p) {
             batched(p, true, false, false, 3);
             p.a.sparse.row_offsets = i32({2, 5});
           },
           {"matmul: a.sparse.row_offsets: expected shape [batch = 3, block rows + 1 = 5]",
            "got i32[2, 5]"}},
      },
      kCheckShape);
}

TEST(SddmmShape, tensors) {
  using P = SddmmProblem;
  const auto make = [] { return P{.a = f32({64, 20}), .b = f32({20, 32}), .out = seven_blocks()}; };
  expect_cases(
      make,
      std::vector<Sddmm>{
          {"as it is", [](P&) {}},
          {"sparse a",
           [](P& p) { p.a = seven_blocks(); },
           {"sddmm: a: expected a dense matrix", "BSR"}},
          {"sparse b",
           [](P& p) { p.b = seven_blocks(); },
           {"sddmm: b: expected a dense matrix", "BSR"}},
          {"inner sizes",
           [](P& p) {
             p.b = f32({21, 32});
           },
           {"sddmm: b: expected 20 rows to match the 20 columns of a, got f32[21, 32]"}},
          {"dtypes differ",
           [](P& p) { p.b.dense.dtype = DType::f16; },
           {"sddmm: b: expected dtype f32 as a has, got f16"}},
          {"no pattern", [](P& p) { p.out = {}; }, {"sddmm: out.values: expected a tensor"}},
          {"out's size",
           [](P& p) {
             p.a = f32({48, 20});
           },
           {"sddmm: out: expected a 48 x 32 matrix", "got 64 x 32"}},
          {"out's dtype",
           [](P& p) { p.out.values.dtype = DType::e4m3; },
           {"sddmm: out.values: expected dtype f32, f16 or bf16, got e4m3"}},
          {"out's batch",
           [](P& p) {
             p.a = f32({2, 64, 20});
           },
           {"sddmm: out: expected a batch of 2, got a batch of 1"}},
          {"own values of one pattern",
           [](P& p) {
             p.a = f32({2, 64, 20}), p.out.values = f32({2, 7, 16, 8});
           }},
          {"own patterns of one product",
           [](P& p) {
             p.out.values = f32({2, 7, 16, 8});
             p.out.row_offsets = i32({2, 5});
             p.out.col_indices = i32({2, 7});
           }},
          {"values shared by a batch",
           [](P& p) {
             p.out.col_indices = i32({2, 7});
           },
           {"sddmm: out.values: expected separate values for each of the 2 matrices",
            "f32[7, 16, 8]"}},
          {"a pool cut by offsets",
           [](P& p) {
             p.out.row_offsets = i32({2, 5});
           }},
          {"aliasing values",
           [](P& p) { p.out.values.strides[1] = 0; },
           {"sddmm: out.values: expected strides", "address"}},
          {"alpha", [](P& p) { p.alpha = kNan; }, {"sddmm: alpha: expected a finite number"}},
          {"beta", [](P& p) { p.beta = kNan; }, {"sddmm: beta: expected a finite number"}},
      },
      kCheckShape);
}

TEST(SpgemmShape, tensors) {
  using P = SpgemmProblem;
  const auto make = [] {
    return P{.a = seven_blocks(), .b = BsrMatrix{f32({3, 8, 4}), i64({5}), i64({3}), 32, 12}};
  };
  const SpgemmShape shape = shape_of(make());
  EXPECT_EQ(shape.m, 64);
  EXPECT_EQ(shape.n, 12);
  EXPECT_EQ(shape.k, 32);
  expect_cases(
      make,
      std::vector<Spgemm>{
          {"dense b",
           [](P& p) {
             p.b = f32({32, 12});
           },
           {"spgemm: b: expected a BSR matrix, got f32[32, 12]"}},
          {"batched a",
           [](P& p) {
             p.a.sparse.values = f32({1, 7, 16, 8});
           },
           {"spgemm: a: expected a BSR matrix without a batch, got f32[1, 7, 16, 8]"}},
          {"inner blocks",
           [](P& p) {
             p.b.sparse = {f32({3, 16, 4}), i32({3}), i32({3}), 32, 12};
           },
           {"spgemm: b: expected blocks of 8 rows", "got blocks of 16 rows"}},
          {"inner blocks of transposed sides",
           [](P& p) {
             p.a = transpose(BsrMatrix{f32({7, 8, 16}), i32({5}), i32({7}), 32, 64});
             p.b = transpose(BsrMatrix{f32({3, 4, 8}), i32({4}), i32({3}), 12, 32});
           }},
          {"sizes",
           [](P& p) { p.a = transpose(seven_blocks()); },
           {"spgemm: b: expected 64 rows to match the 64 columns of a"}},
          {"alpha", [](P& p) { p.alpha = kNan; }, {"spgemm: alpha: expected a finite number"}},
          {"beta", [](P& p) { p.beta = kNan; }, {"spgemm: beta: expected a finite number"}},
      },
      kCheckShape);
}

}  // namespace
}  // namespace tessera::planning
