// Dense products through cuBLASLt, forced by name: results, memory, graphs, threads.
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/graph.hpp"
#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

namespace tessera {
namespace {

using gpu_test::Products;

#define SKIP_WITHOUT_CUBLASLT() \
  if (cublaslt_version().empty()) GTEST_SKIP() << "cuBLASLt is not found"

constexpr DType kDtypes[] = {DType::bf16, DType::f16, DType::f32};

const char* row_of(DType dtype) {
  return dtype == DType::f32 ? "sm80_cublaslt_f32" : "sm80_cublaslt_f16_bf16";
}

Execution by_cublaslt(DType dtype) {
  Execution execution;
  execution.kernel = row_of(dtype);
  return execution;
}

std::string expect_right(Products& p, const MatmulProblem& problem, const std::string& text) {
  return p.expect_right(problem, text, [&](const MatmulProblem& device) {
    matmul(device, by_cublaslt(problem.a.dense.dtype));
  });
}

/// The first test: the process has run nothing of the kind yet.
TEST(GpuCublasLt, TheFirstCallMayBeCaptured) {
  SKIP_WITHOUT_CUBLASLT();
  for (DType dtype : kDtypes) {
    Products p(14);
    MatmulProblem problem;
    problem.a = p.matrix(dtype, {222, 1032});
    problem.b = p.matrix(dtype, {1032, 136});
    problem.out = p.matrix(dtype, {222, 136}, 0, true);
    p.expect_right(problem, "captured", [&](const MatmulProblem& device) {
      Execution execution = by_cublaslt(dtype);
      const Plan made = plan(device, execution);
      const gpu_test::Room workspace(made.workspace_bytes);
      execution.workspace = workspace.buffer();
      const gpu_test::Graph graph([&](void* stream) {
        execution.stream = stream;
        run(made, device, execution);
      });
      graph.replay();
      graph.replay();
    });
  }
}

TEST(GpuCublasLt, OddShapesAllTransposes) {
  SKIP_WITHOUT_CUBLASLT();
  const std::int64_t shapes[][3] = {{1, 1, 1},      {1, 8, 64},     {130, 264, 72}, {77, 500, 136},
                                    {128, 256, 64}, {513, 40, 100}, {300, 15, 8},   {64, 257, 65},
                                    {129, 255, 63}, {5, 1030, 300}, {17, 19, 5000}, {0, 20, 30},
                                    {20, 0, 30}};
  for (DType dtype : kDtypes)
    for (const auto& [m, n, k] : shapes)
      for (bool ta : {false, true})
        for (bool tb : {false, true})
          for (int padding : {0, 1, 8}) {
            Products p(7);
            MatmulProblem problem;
            problem.a = ta ? p.matrix(dtype, {k, m}, padding) : p.matrix(dtype, {m, k}, padding);
            problem.b = tb ? p.matrix(dtype, {n, k}) : p.matrix(dtype, {k, n});
            problem.a.transposed = ta;
            problem.b.transposed = tb;
            problem.out = p.matrix(dtype, {m, n}, padding, true);
            expect_right(p, problem,
                         std::string(to_string(dtype)) + " " + std::to_string(m) + "x" +
                             std::to_string(n) + "x" + std::to_string(k) + (ta ? " A^T" : "") +
                             (tb ? " B^T" : "") + " padding " + std::to_string(padding));
          }
}

TEST(GpuCublasLt, ResultsByColumnsAndInFloat) {
  SKIP_WITHOUT_CUBLASLT();
  for (DType dtype : kDtypes)
    for (bool columns : {false, true})
      for (bool wide : {false, true}) {
        Products p(8);
        const DType out = wide ? DType::f32 : dtype;
        MatmulProblem problem;
        problem.a = p.matrix(dtype, {70, 96});
        problem.b = p.matrix(dtype, {96, 130});
        problem.out = columns ? swap_dims(p.matrix(out, {130, 70}, 0, true), 0, 1)
                              : p.matrix(out, {70, 130}, 0, true);
        expect_right(
            p, problem,
            std::string(to_string(dtype)) + (columns ? " by columns" : "") + (wide ? " f32" : ""));
      }
}

TEST(GpuCublasLt, BatchesAndSharedOperands) {
  SKIP_WITHOUT_CUBLASLT();
  for (DType dtype : kDtypes)
    for (bool shared_a : {false, true})
      for (bool shared_b : {false, true}) {
        Products p(9);
        MatmulProblem problem;
        problem.a = shared_a ? p.matrix(dtype, {70, 96}) : p.matrix(dtype, {3, 70, 96});
        problem.b = shared_b ? p.matrix(dtype, {96, 130}) : p.matrix(dtype, {3, 96, 130});
        problem.out = shared_a && shared_b ? p.matrix(dtype, {70, 130}, 0, true)
                                           : p.matrix(dtype, {3, 70, 130}, 0, true);
        expect_right(p, problem, "batch");
      }
}

TEST(GpuCublasLt, AlphaBetaCAndBias) {
  SKIP_WITHOUT_CUBLASLT();
  for (DType dtype : kDtypes)
    for (DType out : {dtype, DType::f32})
      for (bool columns : {false, true})
        for (int kind = 0; kind < 5; ++kind) {
          const bool adds_c = kind >= 1 && kind <= 3;
          if (adds_c && out != DType::f32) continue;
          Products p(10);
          const std::int64_t m = 104, n = 264, k = 640;
          const auto result = [&](std::int64_t padding, bool poison) {
            return columns ? swap_dims(p.matrix(out, {n, m}, padding, poison), 0, 1)
                           : p.matrix(out, {m, n}, padding, poison);
          };
          MatmulProblem problem;
          problem.a = p.matrix(dtype, {m, k});
          problem.b = p.matrix(dtype, {k, n});
          const bool reads_out = kind == 1 || kind == 2;
          problem.out = result(0, !reads_out);
          Epilogue& e = problem.epilogue;
          e.alpha = -0.75f;
          if (kind == 1) e.beta = 2.0f;
          if (kind == 2) e.beta = 0.5f, e.c = problem.out;
          if (kind >= 3) {
            if (kind == 3) e.beta = 0.5f, e.c = result(16, false);
            e.bias_axis = columns ? BiasAxis::row : BiasAxis::column;
            const std::int64_t length = columns ? m : n;
            e.bias = tensor(p.matrix(out, {1, length}).data, out, {length});
          }
          expect_right(p, problem,
                       std::string(to_string(dtype)) + " kind " + std::to_string(kind) +
                           (columns ? " by columns" : ""));
        }
}

TEST(GpuCublasLt, BatchesOfBiases) {
  SKIP_WITHOUT_CUBLASLT();
  for (bool own : {false, true}) {
    Products p(11);
    MatmulProblem problem;
    problem.a = p.matrix(DType::bf16, {3, 40, 64});
    problem.b = p.matrix(DType::bf16, {3, 64, 72});
    problem.out = p.matrix(DType::bf16, {3, 40, 72}, 0, true);
    const Tensor rows = p.matrix(DType::bf16, {3, 72});
    problem.epilogue.bias = own ? rows : tensor(rows.data, DType::bf16, {72});
    expect_right(p, problem, own ? "a bias per matrix" : "one bias");
  }
}

/// fp32 by TF32 would be off by 2^-11 of a product.
TEST(GpuCublasLt, SingleIsNotTf32) {
  SKIP_WITHOUT_CUBLASLT();
  Products p(12);
  MatmulProblem problem;
  problem.a = p.matrix(DType::f32, {256, 256});
  problem.b = p.matrix(DType::f32, {256, 256});
  problem.out = p.matrix(DType::f32, {256, 256}, 0, true);
  expect_right(p, problem, "fp32");
}

TEST(GpuCublasLt, SameBitsEveryTime) {
  SKIP_WITHOUT_CUBLASLT();
  for (DType dtype : kDtypes)
    // The second one splits its depth.
    for (const auto& [m, n, k] : {std::tuple(200, 520, 384), std::tuple(64, 64, 16384)}) {
      Products p(13, 24);
      MatmulProblem problem;
      problem.a = p.matrix(dtype, {m, k});
      problem.b = p.matrix(dtype, {k, n});
      problem.out = p.matrix(dtype, {m, n}, 0, true);
      const std::string first = expect_right(p, problem, "repeat");
      for (int i = 0; i < 5; ++i)
        EXPECT_EQ(expect_right(p, problem, "repeat"), first) << to_string(dtype);
    }
}

TEST(GpuCublasLt, TwoThreadsOnStreamsOfTheirOwn) {
  SKIP_WITHOUT_CUBLASLT();
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([t] {
      cudaStream_t stream = nullptr;
      gpu_test::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
      for (int i = 0; i < 30; ++i) {
        const DType dtype = kDtypes[i % 3];
        Products p(static_cast<std::uint64_t>(100 * t + i));
        MatmulProblem problem;
        problem.a = p.matrix(dtype, {40 + i, 520});
        problem.b = p.matrix(dtype, {520, 88});
        problem.out = p.matrix(dtype, {40 + i, 88}, 0, true);
        p.expect_right(problem, "thread " + std::to_string(t), [&](const MatmulProblem& device) {
          Execution execution = by_cublaslt(dtype);
          execution.stream = stream;
          matmul(device, execution);
          gpu_test::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        });
      }
      cudaStreamDestroy(stream);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(GpuCublasLt, IsChosenAndSaysSo) {
  SKIP_WITHOUT_CUBLASLT();
  const Device gpu{DeviceKind::cuda, 0};
  MatmulProblem single;
  single.a = tensor(nullptr, DType::f32, {64, 64}, gpu);
  single.b = tensor(nullptr, DType::f32, {64, 64}, gpu);
  single.out = tensor(nullptr, DType::f32, {64, 64}, gpu);
  EXPECT_EQ(plan(single).kernel_name, "sm80_cublaslt_f32");
}

}  // namespace
}  // namespace tessera
