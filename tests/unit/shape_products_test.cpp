#include <cmath>
#include <limits>

#include "src/plan/shape.hpp"
#include "tests/unit/problem_table.hpp"

// Planning works from shapes alone, so no tensor here has memory.
namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using Matmul = tessera::testing::ProblemCase<MatmulProblem>;
using Sddmm = tessera::testing::ProblemCase<SddmmProblem>;
using Spgemm = tessera::testing::ProblemCase<SpgemmProblem>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kHuge = std::int64_t{1} << 40;
constexpr Device kGpu{DeviceKind::cuda, 0};

Tensor f32(std::initializer_list<std::int64_t> shape) { return tensor(nullptr, DType::f32, shape); }
Tensor i32(std::initializer_list<std::int64_t> shape) { return tensor(nullptr, DType::i32, shape); }
Tensor i64(std::initializer_list<std::int64_t> shape) { return tensor(nullptr, DType::i64, shape); }

// 64 x 32 in blocks of 16 x 8, seven stored.
BsrMatrix bsr() { return {f32({7, 16, 8}), i32({5}), i32({7}), 64, 32}; }

const auto kCheck = [](const auto& problem) { (void)shape_of(problem); };

MatmulProblem matmul_problem() {
  return {.a = f32({2, 64, 32}), .b = f32({32, 48}), .out = f32({2, 64, 48})};
}

TEST(MatmulShape, holds_what_the_operands_say) {
  MatmulProblem problem = matmul_problem();
  problem.b = transpose(f32({1, 48, 32}));
  problem.out.dtype = DType::bf16;
  const MatmulShape shape = shape_of(problem);
  EXPECT_EQ(shape.m, 64);
  EXPECT_EQ(shape.n, 48);
  EXPECT_EQ(shape.k, 32);
  EXPECT_EQ(shape.batch, 2);
  EXPECT_EQ(shape.a.batch, 2);
  EXPECT_EQ(shape.b.batch, 1);
  EXPECT_TRUE(shape.b.transposed);
  EXPECT_EQ(shape.b.rows, 32);
  EXPECT_EQ(shape.out, DType::bf16);
  EXPECT_FALSE(shape.grouped);
}

TEST(MatmulShape, describes_a_sparse_operand_as_stored) {
  const MatmulShape shape =
      shape_of(MatmulProblem{.a = transpose(bsr()), .b = f32({64, 3}), .out = f32({32, 3})});
  EXPECT_TRUE(shape.a.sparse);
  EXPECT_EQ(shape.a.rows, 32);
  EXPECT_EQ(shape.a.cols, 64);
  EXPECT_EQ(shape.a.block, (BlockShape{16, 8}));
  EXPECT_EQ(shape.a.stored, 7);
  EXPECT_EQ(shape.a.index, DType::i32);
  EXPECT_EQ(shape.m, 32);
}

TEST(MatmulShape, tensors) {
  using P = MatmulProblem;
  expect_cases(
      matmul_problem,
      std::vector<Matmul>{
          {"as it is", [](P&) {}},
          {"no operand", [](P& p) { p.b = {}; }, {"matmul: b: expected a dense", "neither"}},
          {"both operands",
           [](P& p) { p.b.sparse = bsr(); },
           {"matmul: b: expected either", "both"}},
          {"inner sizes",
           [](P& p) {
             p.b = f32({31, 48});
           },
           {"matmul: b: expected 32 rows to match the 32 columns of a, got f32[31, 48]"}},
          {"dtypes differ",
           [](P& p) { p.b.dense.dtype = DType::f16; },
           {"matmul: b: expected dtype f32 as a has, got f16"}},
          {"integers as values",
           [](P& p) { p.a.dense.dtype = DType::u8; },
           {"matmul: a: expected dtype f32, f16, bf16 or e4m3, got u8[2, 64, 32]"}},
          {"e4m3 values", [](P& p) { p.a.dense.dtype = p.b.dense.dtype = DType::e4m3; }},
          {"unknown dtype",
           [](P& p) { p.a.dense.dtype = static_cast<DType>(77); },
           {"matmul: a: expected a known dtype, got dtype number 77"}},
          {"rank of an operand",
           [](P& p) { p.a = f32({64}); },
           {"matmul: a: expected shape [rows, cols] or [batch, rows, cols], got f32[64]"}},
          {"impossible rank",
           [](P& p) { p.a.dense.rank = 9; },
           {"matmul: a: expected 1 to 5 dimensions, got rank 9"}},
          {"negative size",
           [](P& p) { p.a.dense.shape[1] = -1; },
           {"matmul: a: expected sizes of zero or more, got f32[2, -1, 32]"}},
          {"overflowing count",
           [](P& p) {
             p.a.dense.shape = {kHuge, kHuge, 32};
           },
           {"matmul: a: expected sizes and strides", "2^60 bytes", "f32[1099511627776, "}},
          {"overflowing count beside a zero",
           [](P& p) {
             p.a.dense.shape = {kHuge, kHuge, 0};
           },
           {"matmul: a:", "2^60 bytes"}},
          {"overflowing stride",
           [](P& p) { p.a.dense.strides[0] = std::numeric_limits<std::int64_t>::min(); },
           {"matmul: a:", "2^60 bytes", "strides"}},
          {"stride of a single element",
           [](P& p) {
             p.a = f32({1, 64, 32});
             p.a.dense.strides[0] = std::numeric_limits<std::int64_t>::min();
             p.out = f32({64, 48});
           }},
          {"devices differ",
           [](P& p) { p.b.dense.device = kGpu; },
           {"matmul: b: expected all tensors on cpu, got f32[32, 48] on cuda:0"}},
          {"batches differ",
           [](P& p) {
             p.b = f32({3, 32, 48});
           },
           {"matmul: b: expected a batch of 2 or 1, got a batch of 3"}},
          {"batch of b",
           [](P& p) {
             p.a = f32({64, 32});
             p.b = f32({2, 32, 48});
           }},
          {"no rows",
           [](P& p) {
             p.a = f32({2, 0, 32}), p.out = f32({2, 0, 48});
           }},
          {"no batch",
           [](P& p) {
             p.a = f32({0, 64, 32}), p.out = f32({0, 64, 48});
           }},
          {"nothing to sum",
           [](P& p) {
             p.a = f32({2, 64, 0}), p.b = f32({0, 48});
           }},
      },
      kCheck);
}

TEST(MatmulShape, out_and_epilogue) {
  using P = MatmulProblem;
  expect_cases(
      matmul_problem,
      std::vector<Matmul>{
          {"no out", [](P& p) { p.out = {}; }, {"matmul: out: expected a tensor, got none"}},
          {"out's shape",
           [](P& p) {
             p.out = f32({2, 48, 64});
           },
           {"matmul: out: expected shape [batch = 2, M = 64, N = 48], got f32[2, 48, 64]"}},
          {"out without the batch",
           [](P& p) {
             p.out = f32({64, 48});
           },
           {"matmul: out: expected shape [batch = 2, M = 64, N = 48], got f32[64, 48]"}},
          {"out with a batch of one",
           [](P& p) {
             p.a = f32({64, 32}), p.out = f32({1, 64, 48});
           }},
          {"out's dtype",
           [](P& p) { p.out.dtype = DType::e4m3; },
           {"matmul: out: expected dtype f32, f16 or bf16, got e4m3"}},
          {"another float out", [](P& p) { p.out.dtype = DType::f16; }},
          {"out written twice",
           [](P& p) { p.out.strides[0] = 0; },
           {"matmul: out: expected strides that give each element", "strides [0, 48, 1]"}},
          {"out's rows overlap", [](P& p) { p.out.strides[1] = 47; }, {"matmul: out:", "address"}},
          {"out transposed and reversed",
           [](P& p) {
             p.out.strides = {-48 * 64, 1, 64};
           }},
          {"interleaved out",
           [](P& p) {
             p.out.strides = {1, 96, 2};
           }},
          {"alpha",
           [](P& p) { p.epilogue.alpha = kNan; },
           {"matmul: epilogue.alpha: expected a finite number, got nan"}},
          {"beta",
           [](P& p) { p.epilogue.beta = HUGE_VALF; },
           {"matmul: epilogue.beta: expected a finite number, got inf"}},
          {"c's shape",
           [](P& p) {
             p.epilogue.c = f32({64, 48});
           },
           {"matmul: epilogue.c: expected shape [batch = 2, M = 64, N = 48], got f32[64, 48]"}},
          {"c of another dtype, broadcast",
           [](P& p) {
             p.epilogue.c = f32({2, 64, 48});
             p.epilogue.c.dtype = DType::bf16;
             p.epilogue.c.strides = {0, 0, 1};
           }},
          {"bias by column", [](P& p) { p.epilogue.bias = f32({48}); }},
          {"bias by column and batch",
           [](P& p) {
             p.epilogue.bias = f32({2, 48});
           }},
          {"bias by row",
           [](P& p) { p.epilogue.bias = f32({64}), p.epilogue.bias_axis = BiasAxis::row; }},
          {"bias of the other axis",
           [](P& p) { p.epilogue.bias = f32({64}); },
           {"matmul: epilogue.bias: expected shape [N = 48], got f32[64]"}},
          {"bias of another batch",
           [](P& p) {
             p.epilogue.bias = f32({3, 48});
           },
           {"matmul: epilogue.bias: expected shape [batch = 2, N = 48], got f32[3, 48]"}},
          {"bias dtype",
           [](P& p) { p.epilogue.bias = i32({48}); },
           {"matmul: epilogue.bias: expected dtype f32, f16 or bf16, got i32[48]"}},
          {"activation",
           [](P& p) { p.epilogue.activation = static_cast<Activation>(9); },
           {"matmul: epilogue.activation: expected a known activation, got number 9"}},
          {"bias axis",
           [](P& p) { p.epilogue.bias_axis = static_cast<BiasAxis>(9); },
           {"matmul: epilogue.bias_axis: expected row or column, got number 9"}},
      },
      kCheck);
}

TEST(MatmulShape, sparse_operand) {
  using P = MatmulProblem;
  const auto make = [] { return P{.a = bsr(), .b = f32({32, 48}), .out = f32({64, 48})}; };
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
           {"matmul: a.sparse.rows: expected a multiple of the block's 16", "got 65"}},
          {"block does not divide the columns",
           [](P& p) { p.a.sparse.cols = 33; },
           {"matmul: a.sparse.cols: expected a multiple of the block's 8", "got 33"}},
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
      kCheck);
}

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
           {"matmul: b: expected a batch of 4, one matrix a group, got a batch of 3"}},
          {"sparse b",
           [](P& p) {
             p.b = BsrMatrix{f32({40, 8, 16}), i32({4, 5}), i32({40}), 32, 48};
           }},
          {"sparse a",
           [](P& p) { p.a = bsr(); },
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
          {"a bias each group",
           [](P& p) {
             p.epilogue.bias = f32({4, 48});
           }},
          {"row bias each group",
           [](P& p) {
             p.epilogue.bias = f32({4, 100}), p.epilogue.bias_axis = BiasAxis::row;
           },
           {"matmul: epilogue.bias: expected shape [M = 100], got f32[4, 100]"}},
          {"axis",
           [](P& p) { p.group_axis = static_cast<GroupAxis>(5); },
           {"matmul: group_axis: expected rows or inner, got number 5"}},
      },
      kCheck);
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
             p.b = bsr();
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
      kCheck);
}

TEST(SddmmShape, tensors) {
  using P = SddmmProblem;
  const auto make = [] { return P{.a = f32({64, 20}), .b = f32({20, 32}), .out = bsr()}; };
  expect_cases(
      make,
      std::vector<Sddmm>{
          {"as it is", [](P&) {}},
          {"sparse a", [](P& p) { p.a = bsr(); }, {"sddmm: a: expected a dense matrix", "BSR"}},
          {"sparse b", [](P& p) { p.b = bsr(); }, {"sddmm: b: expected a dense matrix", "BSR"}},
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
           {"sddmm: out.values: expected own values for each of the 2 matrices", "f32[7, 16, 8]"}},
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
      kCheck);
}

TEST(SpgemmShape, tensors) {
  using P = SpgemmProblem;
  const auto make = [] {
    return P{.a = bsr(), .b = BsrMatrix{f32({3, 8, 4}), i64({5}), i64({3}), 32, 12}};
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
           [](P& p) { p.a = transpose(bsr()); },
           {"spgemm: b: expected 64 rows to match the 64 columns of a"}},
          {"alpha", [](P& p) { p.alpha = kNan; }, {"spgemm: alpha: expected a finite number"}},
          {"beta", [](P& p) { p.beta = kNan; }, {"spgemm: beta: expected a finite number"}},
      },
      kCheck);
}

TEST(AnyShape, keeps_the_order_of_the_problems) {
  const AnyProblem matmul = matmul_problem();
  EXPECT_EQ(op_of(matmul), Op::matmul);
  EXPECT_EQ(std::get<0>(shape_of(matmul)).m, 64);
  const Tensor x = f32({1, 4, 2, 8});
  const AttentionProblem forward{.q = x, .k = x, .v = x, .out = x, .lse = f32({1, 2, 4})};
  AnyProblem attention = forward;
  EXPECT_EQ(op_of(attention), Op::attention);
  EXPECT_EQ(shape_of(attention).index(), 3u);
  attention = AttentionBackwardProblem{.forward = forward, .dout = x};
  EXPECT_EQ(op_of(attention), Op::attention_backward);
  EXPECT_EQ(shape_of(attention).index(), 4u);
  EXPECT_EQ(std::get<4>(shape_of(attention)).heads, 2);
}

}  // namespace
}  // namespace tessera::planning
