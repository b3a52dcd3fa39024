// Products in FP8 through the fake library: layouts, types, factors of every form, and what is
// refused.
#include "tests/cublaslt/problems.hpp"

namespace tessera {
namespace {

using namespace lt_test;  // NOLINT: a test of many small names

enum class Form { none, one, line, by_128, by_128x128 };

/// Operands as FP8 is multiplied: lines along the depth. `tb`: b is stored as [n, k].
class Fp8Problems : public Problems {
 public:
  using Problems::Problems;

  MatmulProblem product(DType a, DType b, DType result, std::int64_t m, std::int64_t n,
                        std::int64_t k, bool ta, bool tb, Order order, std::int64_t batch = 0) {
    MatmulProblem p;
    p.a = ta ? transpose(matrix(a, batch, k, m, Order::columns, 16))
             : Operand(matrix(a, batch, m, k, Order::rows, 16));
    p.b = tb ? transpose(matrix(b, batch, n, k, Order::rows, 32))
             : Operand(matrix(b, batch, k, n, Order::columns, 32));
    p.out = matrix(result, batch, m, n, order, 16, true);
    return p;
  }

  /// Factors as the library reads them.
  Tensor factors(Form form, const Operand& operand, bool is_left) {
    const Tensor& t = operand.dense;
    const std::int64_t rows = t.size(t.rank - 2), cols = t.size(t.rank - 1);
    const bool in_rows = is_left != operand.transposed;
    const std::int64_t lines = in_rows ? rows : cols, depth = in_rows ? cols : rows;
    const std::int64_t blocks = (depth + 127) / 128, line_blocks = (lines + 127) / 128;
    const auto view = [&](std::int64_t n, std::int64_t d, std::int64_t line, std::int64_t step,
                          std::int64_t size) {
      void* data = vector(DType::f32, 0, size).data;
      return in_rows ? tensor(data, DType::f32, {n, d}, {line, step})
                     : tensor(data, DType::f32, {d, n}, {step, line});
    };
    switch (form) {
      case Form::none:
        return {};
      case Form::one:
        return vector(DType::f32, 0, 1);
      case Form::line:
        return view(lines, 1, 1, 1, lines);
      case Form::by_128:
        return view(lines, blocks, 1, lines, lines * blocks);
      case Form::by_128x128:
        break;
    }
    const std::int64_t pitch = (blocks + 3) / 4 * 4;
    return view(line_blocks, blocks, pitch, 1, line_blocks * pitch);
  }
  void set_factors(MatmulProblem& p, Form a, Form b) {
    p.a.scale = factors(a, p.a, true), p.b.scale = factors(b, p.b, false);
  }
};

/// Why the row refuses a problem on a device.
std::string refused(const MatmulProblem& host, const char* device = "h100") {
  const AnyProblem problem = on_gpu(host);
  std::string all;
  for (const std::string& reason :
       planning::rejections(planning::row_named("sm80_cublaslt_e4m3_e5m2"),
                            planning::shape_of(problem), device_preset(device)))
    all += (all.empty() ? "" : "; ") + reason;
  return all;
}

INSTANTIATE_TEST_SUITE_P(Descriptors, CublasLt, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "OfTheLibrary" : "OfTheFake");
});

TEST_P(CublasLt, Fp8InEveryLayoutAndType) {
  Engine engine(functions_);
  std::uint64_t seed = 0;
  for (const auto& [a, b] :
       {std::pair(DType::e4m3, DType::e4m3), std::pair(DType::e4m3, DType::e5m2),
        std::pair(DType::e5m2, DType::e4m3)})
    for (const DType result : {DType::bf16, DType::f16, DType::f32})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true})
          for (const Order order : {Order::rows, Order::columns})
            for (const std::int64_t batch : {0, 3}) {
              Fp8Problems p(++seed);
              MatmulProblem problem = p.product(a, b, result, 16, 32, 48, ta, tb, order, batch);
              p.set_factors(problem, seed % 2 ? Form::one : Form::none,
                            seed % 3 ? Form::one : Form::none);
              expect_right(engine, problem,
                           planning::describe(planning::shape_of(AnyProblem(problem))));
            }
}

TEST_P(CublasLt, Fp8FactorsOfEveryForm) {
  Engine engine(functions_);
  const std::pair<Form, Form> pairs[] = {{Form::line, Form::line},
                                         {Form::by_128, Form::by_128},
                                         {Form::by_128, Form::by_128x128},
                                         {Form::by_128x128, Form::by_128}};
  std::uint64_t seed = 0;
  for (const auto& [a, b] : pairs)
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const Order order : {Order::rows, Order::columns})
          for (const std::int64_t k : {48, 272}) {
            Fp8Problems p(++seed);
            MatmulProblem problem =
                p.product(DType::e4m3, DType::e5m2, DType::f32, 144, 144, k, ta, tb, order);
            p.set_factors(problem, a, b);
            expect_right(engine, problem,
                         planning::describe(planning::shape_of(AnyProblem(problem))));
          }
  // One row of a beside factors per column of b, as when a model decodes.
  Fp8Problems p(77);
  MatmulProblem decode =
      p.product(DType::e4m3, DType::e4m3, DType::bf16, 1, 64, 64, false, true, Order::rows);
  p.set_factors(decode, Form::one, Form::line);
  expect_right(engine, decode, "one row");
}

TEST_P(CublasLt, Fp8EpilogueWithABiasOf16Bits) {
  Engine engine(functions_);
  for (const auto& [result, bias] :
       {std::pair(DType::bf16, DType::bf16), std::pair(DType::f16, DType::f16),
        std::pair(DType::f32, DType::bf16)}) {
    Fp8Problems p(5);
    MatmulProblem problem =
        p.product(DType::e4m3, DType::e4m3, result, 16, 32, 64, false, true, Order::rows);
    p.set_factors(problem, Form::line, Form::line);
    problem.epilogue.alpha = -0.5f;
    problem.epilogue.bias = p.vector(bias, 0, 32);
    expect_right(engine, problem, to_string(result));
    problem.epilogue.bias = p.vector(DType::f32, 0, 32);
    if (result != DType::f32)
      EXPECT_NE(refused(problem).find("epilogue.bias"), std::string::npos);
    else
      EXPECT_NE(refused(problem).find("beside FP8 and an f32 result: bf16"), std::string::npos);
  }
}

TEST(CublasLtFp8, FactorsPerLineNeedALibraryThatHasThem) {
  Engine engine(fake_lt::functions());
  state().version = 120400;
  Fp8Problems p(1);
  MatmulProblem problem =
      p.product(DType::e4m3, DType::e4m3, DType::bf16, 16, 32, 64, false, true, Order::rows);
  p.set_factors(problem, Form::one, Form::one);
  expect_right(engine, problem, "one factor each");
  p.set_factors(problem, Form::line, Form::line);
  try {
    run(engine, problem);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_STREQ(error.what(),
                 "run: cuBLASLt 120400 has no factors per line or block of FP8; "
                 "120900 and later have");
  }
}

TEST(CublasLtFp8, SaysWhatItRefuses) {
  Fp8Problems p(1);
  const auto plain = [&](bool ta = false, bool tb = true, std::int64_t m = 144,
                         std::int64_t n = 272, std::int64_t k = 272) {
    return p.product(DType::e4m3, DType::e4m3, DType::bf16, m, n, k, ta, tb, Order::rows);
  };
  const auto expect = [](const MatmulProblem& problem, const char* text,
                         const char* device = "h100") {
    EXPECT_NE(refused(problem, device).find(text), std::string::npos) << refused(problem, device);
  };
  EXPECT_EQ(refused(plain()), "");
  EXPECT_EQ(refused(plain(), "l4"), "");
  EXPECT_EQ(refused(plain(), "b200"), "");
  expect(plain(), "requires compute capability 8.9 or later for FP8, the device has 8.0", "a100");

  MatmulProblem problem = plain();
  problem.a.dense.dtype = problem.b.dense.dtype = DType::e5m2;
  expect(problem, "e5m2 times e5m2 is not supported; one side has to be e4m3");
  problem = plain();
  problem.b = p.matrix(DType::e4m3, 0, 272, 272, Order::rows, 0);  // n is contiguous
  expect(problem, "b: expected FP8 that is contiguous along the depth");
  problem = plain();
  problem.a = transpose(p.matrix(DType::e4m3, 0, 272, 144, Order::rows, 0));
  expect(problem, "a: expected FP8 that is contiguous along the depth");
  problem = plain();
  problem.a = p.matrix(DType::e4m3, 0, 144, 264, Order::rows, 8);
  problem.b = transpose(p.matrix(DType::e4m3, 0, 272, 264, Order::rows, 8));
  expect(problem, "the depth of a product in FP8: expected a multiple of 16");
  expect(plain(false, true, 144, 264, 272), "out: expected contiguous lines of a multiple of 16");

  problem = plain();
  p.set_factors(problem, Form::line, Form::line);
  EXPECT_EQ(refused(problem), "");
  for (const char* device : {"l4", "b200"})
    expect(problem, "requires compute capability 9.0 for factors per line or block", device);
  for (const auto& [a, b] :
       {std::pair(Form::line, Form::one), std::pair(Form::none, Form::line),
        std::pair(Form::by_128x128, Form::by_128x128), std::pair(Form::line, Form::by_128)}) {
    problem = plain();
    p.set_factors(problem, a, b);
    expect(problem, "a.scale and b.scale: expected one factor each");
  }
  problem = plain();
  p.set_factors(problem, Form::by_128, Form::by_128x128);
  std::swap(problem.a.scale.strides[0], problem.a.scale.strides[1]);
  problem.a.scale.strides[0] = 3;
  expect(problem, "a.scale: expected at a multiple of 16 bytes");
  p.set_factors(problem, Form::by_128, Form::by_128x128);
  problem.b.scale.strides[0] = 3;
  expect(problem, "b.scale: expected at a multiple of 16 bytes");
  problem = plain(false, true, 142);
  p.set_factors(problem, Form::by_128, Form::by_128);
  expect(problem, "m and n beside factors of 128 elements: expected multiples of 4");
}

}  // namespace
}  // namespace tessera
