#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "tests/fixtures/expect.hpp"

// Any thread may call any function while other threads do. The preset tsan runs these tests under
// ThreadSanitizer, which also reports races that happen to give the right result.
namespace tessera {
namespace {

constexpr int kThreads = 4;

/// Runs body(thread) on several threads that start together.
void at_once(const std::function<void(int)>& body) {
  std::barrier begin(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      begin.arrive_and_wait();
      try {
        body(thread);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << thread << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

template <class AnyCase>
void solve_and_check(AnyCase& c, int thread) {
  expect::matches_oracle(c, {.threads = 1 + thread % 2});
}

// The first calls of the process, where objects are made at their first use.
TEST(Threads, FirstCallsAtOnce) {
  const std::vector<float> a{1, 2, 3, 4}, b{5, 6, 7, 8};
  std::vector<std::vector<float>> results(kThreads, std::vector<float>(4));
  at_once([&](int thread) {
    float* out = results[static_cast<std::size_t>(thread)].data();
    MatmulProblem problem;
    problem.a = tensor(a.data(), DType::f32, {2, 2});
    problem.b = tensor(b.data(), DType::f32, {2, 2});
    problem.out = tensor(out, DType::f32, {2, 2});
    matmul(problem);
  });
  for (const std::vector<float>& result : results)
    EXPECT_EQ(result, (std::vector<float>{19, 22, 43, 50}));
}

// Every operation, with more shapes than a thread's cache of plans can hold.
TEST(Threads, EveryOperation) {
  at_once([](int thread) {
    for (int round = 0; round < 40; ++round) {
      // Threads use the same shapes, each at a different time.
      const auto seed = static_cast<std::uint64_t>((round + thread * 7) % 40);
      solve_and_check(*generate::matmul_case(seed), thread);
      solve_and_check(*generate::sddmm_case(seed), thread);
      solve_and_check(*generate::attention_case(seed), thread);
      solve_and_check(*generate::merge_case(seed), thread);
      if (round % 4 == 0) solve_and_check(*generate::backward_case(seed), thread);
    }
  });
}

TEST(Threads, SparseTimesSparse) {
  at_once([](int thread) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto c = generate::spgemm_case(seed);
      const BsrMatrix out =
          output_for(*c, oracle::spgemm_pattern(c->problem), DType::f32, DType::i32);
      c->memory.arm();
      spgemm_numeric(c->problem, out, {.threads = 1 + thread % 2});
      EXPECT_EQ(c->memory.damage(), "") << c->text;
    }
  });
}

// Concurrent runs share one plan, one schedule and the inputs. Each thread has its own buffers and
// outputs.
TEST(Threads, OnePlanRunsOnAll) {
  const std::int64_t length = 192, heads = 2, dim = 32, block = 32;
  generate::Random random(3);
  const std::vector<std::int64_t> shape{1, length, heads, dim};
  HostTensor q(DType::f32, shape), k(DType::f32, shape), v(DType::f32, shape);
  for (HostTensor* x : {&q, &k, &v})
    for (std::int64_t i = 0; i < x->numel(); ++i)
      x->data<float>()[i] = static_cast<float>(random.normal());
  const HostBlockMask mask =
      make_block_mask(patterns::bigbird(length / block, length / block, 1, 1, 1, 5), block, block);

  const auto problem_of = [&](HostTensor& out) {
    AttentionProblem problem{.q = q, .k = k, .v = v, .out = out};
    problem.mask = mask.view();
    return problem;
  };
  HostTensor expected(DType::f32, shape);
  attention(problem_of(expected), {.threads = 1});

  const Plan made = plan(problem_of(expected), {.threads = 2});
  const expect::Scratch schedule(made.schedule_bytes);
  prepare(made, problem_of(expected), {.schedule = schedule.buffer()});
  at_once([&](int) {
    const expect::Scratch workspace(made.workspace_bytes);
    HostTensor out(DType::f32, shape);
    for (int round = 0; round < 10; ++round) {
      std::fill_n(out.data<float>(), out.numel(), -1.0f);
      run(made, problem_of(out), {.workspace = workspace.buffer(), .schedule = schedule.buffer()});
      EXPECT_TRUE(
          std::equal(out.data<float>(), out.data<float>() + out.numel(), expected.data<float>()));
    }
  });
}

// Descriptions, explanations and errors.
TEST(Threads, ExplanationsAndErrors) {
  std::atomic<int> refused = 0;
  at_once([&](int thread) {
    for (const std::string& name : device_presets()) {
      MatmulProblem problem;
      const DeviceFacts facts = device_preset(name);
      const auto at = [&](std::int64_t rows, std::int64_t cols) {
        Tensor x = tensor(nullptr, DType::bf16, {rows, cols});
        x.device = {facts.kind, 0};
        return x;
      };
      problem.a = at(512, 64 + thread), problem.b = at(64 + thread, 256),
      problem.out = at(512, 256);
      EXPECT_FALSE(to_json(explain(problem, facts)).empty());
      problem.b = at(7, 256);
      try {
        explain(problem, facts);
      } catch (const Error& error) {
        refused += std::string(error.what()).find("b: expected") != std::string::npos;
      }
    }
  });
  EXPECT_EQ(refused, kThreads * static_cast<int>(device_presets().size()));
}

}  // namespace
}  // namespace tessera
