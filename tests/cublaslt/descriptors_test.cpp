// What the family tells cuBLASLt: a fake in the library's place multiplies on the CPU as the
// descriptors say, and the oracle looks at the result. No GPU is needed.
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

namespace tessera {
namespace {

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

MatmulProblem on_gpu(MatmulProblem p, int index = 0) {
  for (Tensor* t : {&p.a.dense, &p.b.dense, &p.out, &p.epilogue.c, &p.epilogue.bias})
    if (*t) t->device = {DeviceKind::cuda, index};
  return p;
}

planning::Request request_of(const MatmulProblem& problem, const char* kernel) {
  planning::Request request{.shape = planning::shape_of(AnyProblem(problem)),
                            .device = device_preset("h100"),
                            .kernel = kernel};
  request.will_run = false;  // whatever this machine has
  return request;
}

const char* row_of(DType dtype) {
  return dtype == DType::f32 ? "sm80_cublaslt_f32" : "sm80_cublaslt_f16_bf16";
}

/// Runs by the engine as run() would, and returns the bytes of workspace that it used.
std::int64_t run(Engine& engine, const MatmulProblem& host, int device = 0) {
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

void expect_right(Engine& engine, const MatmulProblem& host, const std::string& text) {
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
INSTANTIATE_TEST_SUITE_P(Descriptors, CublasLt, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "OfTheLibrary" : "OfTheFake");
});

TEST_P(CublasLt, EveryTransposeOrderTypeAndBatch) {
  Engine engine(functions_);
  const std::pair<DType, DType> types[] = {{DType::f16, DType::f16},
                                           {DType::bf16, DType::bf16},
                                           {DType::bf16, DType::f32},
                                           {DType::f32, DType::f32}};
  std::uint64_t seed = 0;
  for (const auto& [in, result] : types)
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const Order a_order : {Order::rows, Order::columns})
          for (const Order b_order : {Order::rows, Order::columns})
            for (const Order order : {Order::rows, Order::columns})
              for (const int batch : {0, 1, 2, 3}) {
                Problems p(++seed);
                const std::int64_t m = 5, n = 7, k = 9, padding = static_cast<int>(seed % 3);
                // 2: a shared by a batch of 3; 3: b.
                const std::int64_t a_batch = batch == 2 ? 0 : batch,
                                   b_batch = batch == 3 ? 1 : batch;
                const std::int64_t results = batch < 2 ? batch : batch == 2 ? 2 : 3;
                MatmulProblem problem;
                problem.a = ta ? p.matrix(in, a_batch, k, m, a_order, padding)
                               : p.matrix(in, a_batch, m, k, a_order, padding);
                problem.b = tb ? p.matrix(in, b_batch, n, k, b_order, padding + 1)
                               : p.matrix(in, b_batch, k, n, b_order, padding + 1);
                problem.a.transposed = ta, problem.b.transposed = tb;
                problem.out = p.matrix(result, results, m, n, order, padding, true);
                expect_right(engine, problem,
                             planning::describe(planning::shape_of(AnyProblem(problem))));
              }
}

TEST_P(CublasLt, SingleRowsColumnsAndDepths) {
  Engine engine(functions_);
  for (const std::int64_t m : {1, 4})
    for (const std::int64_t n : {1, 3})
      for (const std::int64_t k : {1, 6})
        for (const Order order : {Order::rows, Order::columns}) {
          Problems p(static_cast<std::uint64_t>(m * 100 + n * 10 + k));
          MatmulProblem problem;
          problem.a = p.matrix(DType::bf16, 0, m, k, order, 2);
          problem.b = p.matrix(DType::bf16, 0, k, n, order, 1);
          problem.out = p.matrix(DType::bf16, 0, m, n, order, 3, true);
          expect_right(engine, problem,
                       std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k));
        }
}

TEST_P(CublasLt, AlphaBetaCAndBias) {
  Engine engine(functions_);
  for (const DType dtype : {DType::f16, DType::f32})
    for (const Order order : {Order::rows, Order::columns})
      for (const std::int64_t batch : {0, 3})
        for (int kind = 0; kind < 5; ++kind) {
          Problems p(static_cast<std::uint64_t>(kind + 1));
          const std::int64_t m = 6, n = 5, k = 8;
          MatmulProblem problem;
          problem.a = p.matrix(dtype, batch, m, k, Order::rows, 0);
          problem.b = p.matrix(dtype, batch, k, n, Order::rows, 0);
          const DType result = kind >= 1 && kind <= 3 ? DType::f32 : dtype;  // c: f32 results only
          problem.out = p.matrix(result, batch, m, n, order, 2, kind == 0 || kind == 3);
          Epilogue& e = problem.epilogue;
          e.alpha = -0.5f;
          if (kind == 1) e.beta = 2;                         // the result's former contents
          if (kind == 2) e.beta = 0.25f, e.c = problem.out;  // the same, said
          if (kind == 3) e.beta = 0.25f, e.c = p.matrix(result, batch, m, n, order, 5);
          if (kind >= 3) {
            e.bias_axis = order == Order::rows ? BiasAxis::column : BiasAxis::row;
            e.bias = p.vector(result, kind == 4 ? batch : 0, order == Order::rows ? n : m);
          }
          expect_right(engine, problem,
                       "kind " + std::to_string(kind) +
                           (order == Order::rows ? " rows" : " columns") + " batch " +
                           std::to_string(batch));
        }
}

/// A bias of 16 bits would be added to a sum that is rounded already.
TEST_P(CublasLt, SplitsNoDepthBeforeABiasOf16Bits) {
  for (const DType result : {DType::bf16, DType::f32})
    for (const bool biased : {false, true}) {
      Engine engine(functions_);
      state().queries.clear();
      Problems p(2);
      MatmulProblem problem = p.product(DType::bf16, result, 8, 8, 520);
      if (biased) problem.epilogue.bias = p.vector(result, 0, 8);
      expect_right(engine, problem, "a split depth");
      ASSERT_EQ(state().queries.size(), 1u);
      const bool splits = !biased || result == DType::f32;
      EXPECT_EQ(state().queries[0].preference.reduction,
                static_cast<std::uint32_t>(splits ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                  : CUBLASLT_REDUCTION_SCHEME_NONE));
    }
}

TEST_P(CublasLt, AsksOnceForEachKey) {
  Engine engine(functions_);
  Problems p(1);
  MatmulProblem problem = p.product(DType::bf16, DType::bf16, 8, 8, 520);
  for (int i = 0; i < 3; ++i) expect_right(engine, problem, "the same");
  ASSERT_EQ(state().queries.size(), 1u);
  const fake_lt::Query query = state().queries[0];
  EXPECT_EQ(query.preference.workspace, 32u << 20);
  EXPECT_EQ(query.preference.reduction,
            static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  EXPECT_EQ(query.preference.align_left, 16u);
  EXPECT_EQ(query.preference.align_out, 16u);

  // Another address of the same alignment is the same question, another alignment is not.
  MatmulProblem moved = problem;
  moved.out = p.matrix(DType::bf16, 0, 8, 8, Order::rows, 0, true);
  expect_right(engine, moved, "another out");
  EXPECT_EQ(state().queries.size(), 1u);
  moved.out = p.matrix(DType::bf16, 0, 9, 8, Order::rows, 0, true);
  moved.out.data = static_cast<char*>(moved.out.data) + 2;
  moved.out = tensor(moved.out.data, DType::bf16, {8, 8});
  expect_right(engine, moved, "an out at 2 bytes");
  ASSERT_EQ(state().queries.size(), 2u);
  EXPECT_EQ(state().queries[1].preference.align_out, 2u);
  // A bias is one more question, its address none.
  for (int i = 0; i < 2; ++i) {
    problem.epilogue.bias = p.vector(DType::bf16, 0, 8);
    expect_right(engine, problem, "bias");
  }
  EXPECT_EQ(state().queries.size(), 3u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(state().queries[2].desc.bias), 16u);
  // Another device has a handle of its own.
  const int handles = state().handles;
  run(engine, problem, 1);
  EXPECT_EQ(state().queries.size(), 4u);
  EXPECT_EQ(state().handles, handles + 1);
}

TEST_P(CublasLt, ThreadsShareAlgorithms) {
  Engine engine(functions_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&engine, t] {
      for (int i = 0; i < 40; ++i) {
        Problems p(static_cast<std::uint64_t>(t * 100 + i));
        const std::int64_t m = 1 + i % 5, n = 2 + i % 3;
        expect_right(engine, p.product(DType::f32, DType::f32, m, n, 4), "in a thread");
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(state().products, 160);
  EXPECT_LE(state().queries.size(), 4u * 15u);
}

TEST(CublasLtEngine, AllowsTheLibraryToAllocateInItsFirstCallsAlone) {
  static int allowed = 0;
  Engine engine(fake_lt::functions(), []() -> std::shared_ptr<void> {
    ++allowed;
    return nullptr;
  });
  Problems p(2);
  const MatmulProblem problem = p.product(DType::f16, DType::f16, 3, 2, 8);
  for (int i = 0; i < 3; ++i) expect_right(engine, problem, "the same");
  EXPECT_EQ(allowed, 2);  // the question for an algorithm, and the first run
}

TEST(CublasLtEngine, UsesTheWorkspaceOfTheAlgorithm) {
  Problems p(3);
  // Deep enough for shares of the depth.
  const MatmulProblem deep = p.product(DType::f16, DType::f16, 3, 2, 600);
  for (const std::int64_t unused :
       {std::int64_t{0}, std::int64_t{1} << 20, std::int64_t{1} << 25}) {
    Engine engine(fake_lt::functions());
    state().unused = static_cast<std::uint64_t>(unused);
    EXPECT_EQ(run(engine, deep), (std::int64_t{1} << 25) - unused);
    EXPECT_EQ(state().products, 1);
    EXPECT_EQ(state().fault, "");
  }
}

TEST(CublasLtEngine, EmptyResultsAskNothing) {
  Engine engine(fake_lt::functions());
  MatmulProblem problem;
  problem.a = tensor(nullptr, DType::f32, {0, 4});
  problem.b = tensor(nullptr, DType::f32, {4, 3});
  problem.out = tensor(nullptr, DType::f32, {0, 3});
  run(engine, problem);
  EXPECT_EQ(state().queries.size(), 0u);
  EXPECT_EQ(state().products, 0);
}

TEST(CublasLtEngine, SaysWhatHasNoAlgorithm) {
  Engine engine(fake_lt::functions());
  state().has_algorithm = false;
  Problems p(1);
  MatmulProblem problem;
  problem.a = p.matrix(DType::f32, 0, 2, 4, Order::rows, 0);
  problem.b = p.matrix(DType::f32, 0, 4, 3, Order::rows, 0);
  problem.out = p.matrix(DType::f32, 0, 2, 3, Order::rows, 0);
  try {
    run(engine, problem);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("130100 has no algorithm for 'matmul f32[2x4]"),
              std::string::npos)
        << error.what();
  }
}

TEST(CublasLtLibrary, APathThatIsSetHasToWork) {
  const auto library = cuda::cublaslt::load_library("/nowhere/libcublasLt.so.13");
  EXPECT_FALSE(library.found);
  EXPECT_NE(library.missing.find("TESSERA_CUBLASLT names '/nowhere/libcublasLt.so.13'"),
            std::string::npos)
      << library.missing;
  // A library that is another one.
  const auto other = cuda::cublaslt::load_library("libm.so.6");
  EXPECT_FALSE(other.found);
  EXPECT_NE(other.missing.find("cublasLtCreate is not in it"), std::string::npos) << other.missing;
}

TEST(CublasLtLibrary, IsFoundWithItsVersion) {
  const auto library = cuda::cublaslt::load_library(nullptr);
  if (!library.found) {
    EXPECT_NE(library.missing.find("set TESSERA_CUBLASLT"), std::string::npos);
    GTEST_SKIP() << library.missing;
  }
  EXPECT_GE(std::stoi(library.version), 12);
  EXPECT_EQ(cublaslt_version(), library.version);
}

}  // namespace
}  // namespace tessera
