#include "src/problem/expand.hpp"
#include "tests/unit/shape_problems.hpp"

namespace tessera::planning {
namespace {

using tessera::testing::error_text;
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
           {"matmul: a: expected dtype f32, f16, bf16, e4m3 or e5m2, got u8[2, 64, 32]"}},
          {"e4m3 values", [](P& p) { p.a.dense.dtype = p.b.dense.dtype = DType::e4m3; }},
          {"e4m3 times e5m2",
           [](P& p) { p.a.dense.dtype = DType::e4m3, p.b.dense.dtype = DType::e5m2; }},
          {"e4m3 times f16",
           [](P& p) { p.a.dense.dtype = DType::e4m3, p.b.dense.dtype = DType::f16; },
           {"matmul: b: expected dtype e4m3 as a has, got f16"}},
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

MatmulProblem fp8_problem() {
  MatmulProblem p{.a = tensor(nullptr, DType::e4m3, {2, 200, 300}),
                  .b = transpose(tensor(nullptr, DType::e5m2, {150, 300})),
                  .out = f32({2, 200, 150})};
  return p;
}

TEST(MatmulShape, FactorsSayWhichElementsShareThem) {
  const auto forms = [](std::initializer_list<std::int64_t> a,
                        std::initializer_list<std::int64_t> b) {
    MatmulProblem p = fp8_problem();
    p.a.scale = f32(a), p.b.scale = f32(b);
    const MatmulShape shape = shape_of(p);
    return std::pair(shape.a.scale, shape.b.scale);
  };
  using enum ScaleForm;
  EXPECT_EQ(forms({1}, {1, 1}), std::pair(tensor, tensor));
  EXPECT_EQ(forms({2, 1, 1}, {150, 1}), std::pair(matrix, line));
  EXPECT_EQ(forms({1, 200, 1}, {150, 3}), std::pair(line, line_128));
  EXPECT_EQ(forms({2, 200, 3}, {2, 3}), std::pair(line_128, block_128));
  EXPECT_EQ(forms({2, 3}, {1}), std::pair(block_128, tensor));
  EXPECT_EQ(shape_of(fp8_problem()).a.scale, none);
}

TEST(MatmulShape, factors) {
  using P = MatmulProblem;
  const std::string of_a =
      "matmul: a.scale: expected [1], [200, 1] (per row of a), [200, 3] (1 x "
      "128) or [2, 3] (128 x 128); or a batch of 2 of these, got f32";
  const std::string of_b =
      "matmul: b.scale: expected [1], [150, 1] (per column of b), [150, 3] (1 "
      "x 128) or [2, 3] (128 x 128), got f32";
  expect_cases(
      fp8_problem,
      std::vector<Matmul>{
          {"of f32",
           [](P& p) {
             p.a = f32({2, 200, 300}), p.b = f32({300, 150}), p.a.scale = f32({1});
           },
           {"matmul: a.scale: expected none, as the values are f32 and not FP8, got f32[1]"}},
          {"dtype",
           [](P& p) { p.a.scale = tensor(nullptr, DType::bf16, {1}); },
           {"matmul: a.scale: expected dtype f32, got bf16[1]"}},
          {"device",
           [](P& p) { p.a.scale = tensor(nullptr, DType::f32, {1}, kGpu); },
           {"matmul: a.scale: expected all tensors on cpu"}},
          {"along the depth of a",
           [](P& p) {
             p.a.scale = f32({1, 300});
           },
           {of_a + "[1, 300]"}},
          {"along the depth of b",
           [](P& p) {
             p.b.scale = f32({1, 300});
           },
           {of_b + "[1, 300]"}},
          {"128 of a column of a",
           [](P& p) {
             p.a.scale = f32({2, 300});
           },
           {of_a + "[2, 300]"}},
          {"rank 1", [](P& p) { p.a.scale = f32({200}); }, {of_a + "[200]"}},
          {"batch",
           [](P& p) {
             p.a.scale = f32({3, 200, 1});
           },
           {of_a + "[3, 200, 1]"}},
          {"rank above the operand's",
           [](P& p) {
             p.b.scale = f32({1, 150, 1});
           },
           {of_b + "[1, 150, 1]"}},
      },
      kCheckShape);
}

TEST(MatmulShape, FactorsOfStoredBlocks) {
  MatmulProblem p{.a = seven_blocks(), .b = {}, .out = {}};
  p.a.sparse.values.dtype = DType::e4m3;
  const std::int64_t rows = p.a.sparse.rows, cols = p.a.sparse.cols;
  p.b = tensor(nullptr, DType::e4m3, {cols, 16});
  p.out = f32({rows, 16});
  p.a.scale = f32({7});
  EXPECT_EQ(shape_of(p).a.scale, ScaleForm::stored_block);
  EXPECT_TRUE(expansions_of(shape_of(p)).empty());
  p.a.scale = f32({1});
  EXPECT_EQ(shape_of(p).a.scale, ScaleForm::tensor);
  EXPECT_FALSE(expansions_of(shape_of(p)).empty());
  p.a.scale = f32({6});
  EXPECT_EQ(error_text([&] { shape_of(p); }),
            "matmul: a.scale: expected [1] or [7], a factor for each stored block, got f32[6] on "
            "cpu");
  SddmmProblem sampled;
  sampled.a = scaled(f32({rows, 16}), f32({1})), sampled.b = f32({16, cols});
  sampled.out = seven_blocks();
  EXPECT_EQ(error_text([&] { shape_of(sampled); }),
            "sddmm: a.scale: expected none, as only matmul has factors, got f32[1] on cpu");
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
