// Dense products in FP8 through cuBLASLt: every layout, type and form of factors against the
// oracle; repeats bit by bit; and block-sparse operands that are expanded.
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/products.hpp"

namespace tessera {
namespace {

using gpu_test::Products;

constexpr const char* kRow = "sm80_cublaslt_e4m3_e5m2";

int capability() {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  return major * 10 + minor;
}

class GpuCublasLtFp8 : public testing::Test {
 protected:
  void SetUp() override {
    if (cublaslt_version().empty()) GTEST_SKIP() << "cuBLASLt is not found";
    if (capability() < 89) GTEST_SKIP() << "needs compute capability 8.9 or later";
  }
  static bool has_forms() { return capability() == 90; }
};

enum class Form { none, one, line, by_128, by_128x128 };

/// Factors as the library reads them; `in_rows`: lines of the product are rows of what is stored.
Tensor factors(Products& p, Form form, std::int64_t lines, std::int64_t depth, bool in_rows) {
  const std::int64_t blocks = (depth + 127) / 128, line_blocks = (lines + 127) / 128;
  const auto view = [&](std::int64_t n, std::int64_t d, std::int64_t line, std::int64_t step,
                        std::int64_t size) {
    const Tensor room = p.matrix(DType::f32, {1, size});
    return in_rows ? tensor(room.data, DType::f32, {n, d}, {line, step})
                   : tensor(room.data, DType::f32, {d, n}, {step, line});
  };
  if (form == Form::none) return {};
  if (form == Form::one) return view(1, 1, 1, 1, 1);
  if (form == Form::line) return view(lines, 1, 1, lines, lines);
  if (form == Form::by_128) return view(lines, blocks, 1, lines, lines * blocks);
  const std::int64_t pitch = (blocks + 3) / 4 * 4;
  return view(line_blocks, blocks, pitch, 1, line_blocks * pitch);
}

struct Sizes {
  std::int64_t m, n, k;
};

/// A product whose lines lie along the depth.
MatmulProblem product(Products& p, DType a, DType b, DType out, Sizes s, bool ta, bool tb,
                      Form a_form, Form b_form) {
  MatmulProblem problem;
  const auto side = [&](DType dtype, std::int64_t lines, bool in_rows) {
    const Tensor stored = p.matrix(dtype, {lines, s.k}, 16);
    return in_rows ? stored : swap_dims(stored, 0, 1);
  };
  problem.a = ta ? transpose(side(a, s.m, false)) : Operand(side(a, s.m, true));
  problem.b = tb ? transpose(side(b, s.n, true)) : Operand(side(b, s.n, false));
  problem.a.scale = factors(p, a_form, s.m, s.k, !ta);
  problem.b.scale = factors(p, b_form, s.n, s.k, tb);
  problem.out = p.matrix(out, {s.m, s.n}, 8, true);
  return problem;
}

std::string expect_right(Products& p, const MatmulProblem& problem, const std::string& text) {
  return p.expect_right(problem, text,
                        [](const MatmulProblem& device) { matmul(device, {.kernel = kRow}); });
}

TEST_F(GpuCublasLtFp8, TypesLayoutsAndSizes) {
  const Sizes sizes[] = {
      {16, 16, 16}, {128, 256, 512}, {48, 144, 272}, {1, 64, 4096}, {33, 1024, 128}};
  for (const auto& [a, b] :
       {std::pair(DType::e4m3, DType::e4m3), std::pair(DType::e4m3, DType::e5m2),
        std::pair(DType::e5m2, DType::e4m3)})
    for (const DType out : {DType::bf16, DType::f16, DType::f32})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true})
          for (const Sizes& s : sizes) {
            Products p(static_cast<std::uint64_t>(s.m + s.n + s.k));
            const MatmulProblem problem = product(p, a, b, out, s, ta, tb, Form::one, Form::none);
            expect_right(p, problem,
                         to_string(a) + std::string(" ") + to_string(b) + " " + to_string(out) +
                             " " + std::to_string(s.m) + "x" + std::to_string(s.n) + "x" +
                             std::to_string(s.k));
            if (HasFailure()) return;
          }
}

TEST_F(GpuCublasLtFp8, FactorsOfEveryForm) {
  if (!has_forms()) GTEST_SKIP() << "factors per line and block need compute capability 9.0";
  const std::pair<Form, Form> pairs[] = {{Form::line, Form::line},
                                         {Form::by_128, Form::by_128},
                                         {Form::by_128, Form::by_128x128},
                                         {Form::by_128x128, Form::by_128}};
  // Sizes that are no multiples of 128, one block and several lines of blocks.
  const Sizes sizes[] = {{128, 128, 128}, {144, 272, 272}, {260, 400, 1040}, {64, 512, 640}};
  for (const auto& [a, b] : pairs)
    for (const DType out : {DType::bf16, DType::f32})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true})
          for (const Sizes& s : sizes) {
            Products p(static_cast<std::uint64_t>(s.m + s.n + s.k));
            const MatmulProblem problem =
                product(p, DType::e4m3, DType::e4m3, out, s, ta, tb, a, b);
            const std::string text = std::string("forms ") + std::to_string(static_cast<int>(a)) +
                                     " " + std::to_string(static_cast<int>(b)) + " m " +
                                     std::to_string(s.m) + " k " + std::to_string(s.k);
            const std::string once = expect_right(p, problem, text);
            EXPECT_TRUE(once == expect_right(p, problem, text)) << text << ": other bits";
            if (HasFailure()) return;
          }
}

TEST_F(GpuCublasLtFp8, AlphaAndABias) {
  for (const auto& [out, bias] :
       {std::pair(DType::bf16, DType::bf16), std::pair(DType::f16, DType::f16),
        std::pair(DType::f32, DType::bf16)}) {
    Products p(9);
    MatmulProblem problem = product(p, DType::e4m3, DType::e4m3, out, {64, 128, 256}, false, true,
                                    Form::one, Form::one);
    problem.epilogue.alpha = -0.5f;
    const Tensor row = p.matrix(bias, {1, 128});
    problem.epilogue.bias = tensor(row.data, bias, {128});
    expect_right(p, problem, to_string(out));
  }
}

/// NaN, infinities of e5m2 and factors of 0 and NaN come through where they belong.
TEST_F(GpuCublasLtFp8, SpecialValues) {
  Products p(10);
  MatmulProblem problem = product(p, DType::e4m3, DType::e5m2, DType::f32, {32, 64, 128}, false,
                                  true, Form::one, Form::one);
  const auto put = [](const Tensor& t, std::int64_t row, std::int64_t col, float value) {
    store_from_float(t.data, t.dtype, row * t.stride(0) + col * t.stride(1), value);
  };
  put(problem.a.dense, 3, 5, std::numeric_limits<float>::quiet_NaN());
  put(problem.b.dense, 7, 9, std::numeric_limits<float>::infinity());
  for (std::int64_t i = 0; i < 32; ++i) put(problem.a.dense, i, 9, i % 2 ? 1.0f : -1.0f);
  expect_right(p, problem, "NaN and infinities");
  static_cast<float*>(problem.a.scale.data)[0] = 0;
  put(problem.a.dense, 3, 5, 1.0f);
  put(problem.b.dense, 7, 9, 1.0f);
  expect_right(p, problem, "a factor of 0");
}

/// A block-sparse operand with one factor is multiplied as a dense copy where that is asked for.
TEST_F(GpuCublasLtFp8, ExpandedBlocks) {
  Products p(11);
  const Pattern pattern{4, 8, {0, 3, 3, 6, 9}, {0, 2, 7, 1, 3, 4, 0, 5, 6}};
  MatmulProblem problem;
  problem.a = p.bsr(DType::e4m3, pattern, 32, 32, DType::i32);
  problem.b = transpose(p.matrix(DType::e4m3, {96, 256}));
  problem.a.scale = factors(p, Form::one, 1, 1, true);
  problem.a.scale = tensor(problem.a.scale.data, DType::f32, {1});
  problem.out = p.matrix(DType::bf16, {128, 96}, 0, true);
  p.expect_right(problem, "expanded", [](const MatmulProblem& device) {
    Execution execution{.kernel = kRow, .expand_bytes = std::int64_t{1} << 30};
    const Plan made = plan(device, execution);
    EXPECT_GT(made.expanded_bytes, 0);
    std::vector<void*> rooms;
    const auto room = [&](std::int64_t bytes) {
      void* data = nullptr;
      gpu_test::check(cudaMalloc(&data, static_cast<std::size_t>(bytes + 1)), "cudaMalloc");
      rooms.push_back(data);
      return data;
    };
    execution.workspace = {room(made.workspace_bytes), made.workspace_bytes};
    execution.schedule = {room(made.schedule_bytes), made.schedule_bytes};
    prepare(made, device, execution);
    run(made, device, execution);
    gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (void* data : rooms) cudaFree(data);
  });
}

}  // namespace
}  // namespace tessera
