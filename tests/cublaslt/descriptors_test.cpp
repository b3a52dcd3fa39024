// What the family tells cuBLASLt: a fake in the library's place multiplies on the CPU as the
// descriptors say, and the oracle looks at the result. No GPU is needed.
#include "tests/cublaslt/problems.hpp"

namespace tessera {
namespace {

using namespace lt_test;  // NOLINT: a test of many small names

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
