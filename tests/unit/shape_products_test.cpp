#include "tests/unit/shape_problems.hpp"

namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using Matmul = tessera::testing::ProblemCase<MatmulProblem>;

constexpr Device kGpu{DeviceKind::cuda, 0};

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

TEST(MatmulShape, tensors) {
  using P = MatmulProblem;
  expect_cases(
      matmul_problem,
      std::vector<Matmul>{
          {"as it is", [](P&) {}},
          {"no operand", [](P& p) { p.b = {}; }, {"matmul: b: expected a dense", "neither"}},
          {"both operands",
           [](P& p) { p.b.sparse = seven_blocks(); },
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
          {"depth of zero",
           [](P& p) {
             p.a = f32({2, 64, 0}), p.b = f32({0, 48});
           }},
      },
      kCheckShape);
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
           [](P& p) { p.epilogue.beta = kInfinity; },
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
      kCheckShape);
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
