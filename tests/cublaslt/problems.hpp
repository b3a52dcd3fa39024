#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tessera/error.hpp>

#include "src/kernels/cuda/cublaslt/plan.hpp"
#include "tests/cublaslt/fake.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/random.hpp"
#include "tests/unit/selecting.hpp"

// Products for the fake library, in host memory, and their runs through the engine.
namespace tessera::lt_test {

using cuda::cublaslt::Engine;
using cuda::cublaslt::Functions;
using fake_lt::state;
using generate::Random;

enum class Order { rows, columns };

/// Host memory whose tensors are told to be on a GPU, for the shape and the launch.
class Problems {
 public:
  explicit Problems(std::uint64_t seed) : random_(seed) {}

  /// [rows, cols] in either order, `padding` elements (NaN) after each line; batch 0: rank 2.
  Tensor matrix(DType dtype, std::int64_t batch, std::int64_t rows, std::int64_t cols, Order order,
                std::int64_t padding, bool poison = false) {
    const bool by_rows = order == Order::rows;
    const std::int64_t length = by_rows ? cols : rows, lines = by_rows ? rows : cols;
    const std::int64_t pitch = length + padding, size = lines * pitch + padding;
    const std::int64_t matrices = std::max<std::int64_t>(batch, 1);
    const std::int64_t r = by_rows ? pitch : 1, c = by_rows ? 1 : pitch;
    void* data = fill(dtype, matrices * size, [&](std::int64_t i) {
      return i % size / pitch < lines && i % size % pitch < length && !poison;
    });
    return batch == 0 ? tensor(data, dtype, {rows, cols}, {r, c})
                      : tensor(data, dtype, {batch, rows, cols}, {size, r, c});
  }
  Tensor vector(DType dtype, std::int64_t batch, std::int64_t length) {
    const std::int64_t pitch = (length + 7) / 8 * 8;
    void* data = fill(dtype, std::max<std::int64_t>(batch, 1) * pitch,
                      [&](std::int64_t i) { return i % pitch < length; });
    return batch == 0 ? tensor(data, dtype, {length})
                      : tensor(data, dtype, {batch, length}, {pitch, 1});
  }

  /// A product of rows without padding.
  MatmulProblem product(DType dtype, DType result, std::int64_t m, std::int64_t n, std::int64_t k) {
    MatmulProblem problem;
    problem.a = matrix(dtype, 0, m, k, Order::rows, 0);
    problem.b = matrix(dtype, 0, k, n, Order::rows, 0);
    problem.out = matrix(result, 0, m, n, Order::rows, 0, true);
    return problem;
  }

 private:
  template <class Inside>
  void* fill(DType dtype, std::int64_t elements, const Inside& inside) {
    HostTensor& made = made_.emplace_back(dtype, std::vector<std::int64_t>{elements});
    for (std::int64_t i = 0; i < elements; ++i)
      store_from_float(made.data<void>(), dtype, i,
                       inside(i) ? static_cast<float>(random_.normal())
                                 : std::numeric_limits<float>::quiet_NaN());
    return made.data<void>();
  }
  Random random_;
  std::list<HostTensor> made_;
};

inline MatmulProblem on_gpu(MatmulProblem p, int index = 0) {
  for (Tensor* t :
       {&p.a.dense, &p.b.dense, &p.out, &p.epilogue.c, &p.epilogue.bias, &p.a.scale, &p.b.scale})
    if (*t) t->device = {DeviceKind::cuda, index};
  return p;
}

inline planning::Request request_of(const MatmulProblem& problem, const char* kernel) {
  planning::Request request{.shape = planning::shape_of(AnyProblem(problem)),
                            .device = device_preset("h100"),
                            .kernel = kernel};
  request.will_run = false;  // whatever this machine has
  return request;
}

inline const char* row_of(DType dtype) {
  if (core::is_fp8(dtype)) return "sm80_cublaslt_e4m3_e5m2";
  return dtype == DType::f32 ? "sm80_cublaslt_f32" : "sm80_cublaslt_f16_bf16";
}

/// Runs by the engine as run() would, and returns the bytes of workspace that it used.
inline std::int64_t run(Engine& engine, const MatmulProblem& host, int device = 0) {
  const AnyProblem problem = on_gpu(host, device);
  const auto planned = planning::choose(
      api::families(), request_of(std::get<MatmulProblem>(problem), row_of(host.a.dense.dtype)));
  std::vector<char> workspace(16);  // not touched: its size is what is passed on
  const planning::AnyShape shape = planning::shape_of(problem);
  planning::Call call{*planned, problem, shape};
  const std::int64_t used = engine.workspace(call);
  EXPECT_LE(used, planned->buffers.workspace);
  if (used > 0) call.workspace = workspace.data();
  engine.run(call);
  return used;
}

inline void expect_right(Engine& engine, const MatmulProblem& host, const std::string& text) {
  oracle::DenseArray former = oracle::read(host.out);
  try {
    run(engine, host);
  } catch (const Error& error) {
    ADD_FAILURE() << text << ": " << error.what();
    return;
  }
  EXPECT_EQ(state().fault, "") << text;
  MatmulProblem asked = host;
  if (asked.epilogue.c.data == host.out.data) asked.epilogue.c = {};  // `former` has what it was
  const oracle::Comparison result = oracle::check(asked, &former);
  EXPECT_TRUE(result.ok) << text << ": " << result.message;
}

/// Each test with the fake's descriptors, and with the real library's.
class CublasLt : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) {
      functions_ = fake_lt::functions();
    } else if (const auto real = fake_lt::functions_with_real_descriptors()) {
      functions_ = *real;
    } else {
      GTEST_SKIP() << "cuBLASLt is not found here";
    }
  }
  Functions functions_{};
};

}  // namespace tessera::lt_test
