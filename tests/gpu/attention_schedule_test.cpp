// What comes when: divided rounds, ordered tiles, and calls that begin before the last one ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/attention.hpp"
#include "tests/gpu/graph.hpp"
#include "tests/gpu/rows.hpp"

namespace tessera {
namespace {

using generate::attention_case;
using generate::AttentionOptions;
using generate::Presence;
using gpu_test::check;
using gpu_test::matches_oracle;
using gpu_test::OnGpu;
using gpu_test::options_for;
using gpu_test::Room;

/// Many short tiles over long keys: whole rounds, and a last one that is worth dividing.
AttentionOptions rounds_and_a_rest(std::uint64_t seed, Presence mask) {
  AttentionOptions options = options_for(seed);
  options.packed_q = options.packed_kv = options.positions = Presence::never;
  options.mask = mask;
  options.longest = 3000;
  options.most_queries = 20;
  options.largest_batch = 3;
  options.largest_kv_heads = 90;
  options.group = 1;
  options.dims = {64, 128};
  return options;
}

bool divides(const AttentionProblem& problem) {
  const std::string why = to_text(explain(problem, device_facts(problem.q.device)));
  return why.find("keys of the last") != std::string::npos;
}

/// The first cases whose last rounds are divided.
void check_divided_rounds(Presence mask) {
  constexpr int kCases = 3;
  int divided = 0;
  for (std::uint64_t seed = 0; seed < 60 && divided < kCases; ++seed) {
    const auto c = attention_case(seed, rounds_and_a_rest(seed, mask));
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    if (c->problem.q.numel() == 0 || !divides(problem)) continue;
    ++divided;
    EXPECT_GT(matches_oracle(*c), 0) << c->text;
    std::vector<std::byte> first;
    for (int i = 0; i < 10; ++i) {
      c->memory.reset();
      gpu.upload();
      attention(problem);
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      gpu.download();
      if (i == 0) first = c->memory.outputs();
      EXPECT_EQ(c->memory.outputs(), first) << c->text << ", run " << i;
    }
  }
  EXPECT_EQ(divided, kCases) << "cases that were divided";
}

TEST(GpuAttentionSchedule, DividedRoundsMatchTheOracleWithTheSameBits) {
  SKIP_UNLESS_HOPPER();
  check_divided_rounds(Presence::never);
}

/// Here tiles are dealt as they are asked for, and then the shares of those that are divided.
TEST(GpuAttentionSchedule, DividedRoundsOfListsMatchTheOracleWithTheSameBits) {
  SKIP_UNLESS_HOPPER();
  check_divided_rounds(Presence::always);
}

/// More tiles than blocks of threads: tiles run into each other, and their bases move.
TEST(GpuAttentionSchedule, RisingScoresMatchTheOracle) {
  SKIP_UNLESS_HOPPER();
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    AttentionOptions options = options_for(seed);
    options.rising = true;
    options.mask = options.packed_q = options.packed_kv = Presence::never;
    options.dims = {64, 128};
    options.longest = 260;
    options.largest_batch = 2;
    options.largest_kv_heads = 12;
    options.group = 4;
    matches_oracle(*attention_case(seed, options));
  }
}

/// More tiles than blocks of threads, of very different lengths.
TEST(GpuAttentionSchedule, OrderedTilesMatchTheOracle) {
  SKIP_UNLESS_HOPPER();
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    AttentionOptions options = options_for(seed);
    options.longest = 300;
    options.largest_batch = 7;
    options.largest_kv_heads = 30;
    options.group = seed % 2 == 0 ? 1 : 2;
    options.dims = {64};
    if (seed < 3)
      options.packed_q = options.packed_kv = Presence::always;
    else
      options.mask = Presence::always;
    EXPECT_GT(matches_oracle(*attention_case(seed, options)), 0);
  }
}

/// A chain in which every call reads what the one before wrote, and writes where the one before
/// that read.
class Chain {
 public:
  Chain(std::int64_t heads, std::int64_t length, std::int64_t dim, bool causal) : causal_(causal) {
    const std::int64_t count = heads * length * dim;
    std::mt19937 random(7);  // NOLINT: the same numbers each time
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = normal(random);
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      start_.push_back(static_cast<std::uint16_t>(bits >> 16));
    }
    for (int i = 0; i < 3; ++i) {
      rooms_.push_back(std::make_unique<Room>(count * 2));
      tensors_.push_back(tensor(rooms_.back()->buffer().data, DType::bf16, {1, length, heads, dim},
                                {DeviceKind::cuda, 0}));
    }
    for (int i = 0; i < 3; ++i) problems_.push_back(problem(i));
    plans_ = plan(problems_[0]);
    workspace_ = std::make_unique<Room>(
        static_cast<std::int64_t>(std::max<std::size_t>(plans_.workspace_bytes, 16)));
  }

  void reset() const {
    for (const auto& room : rooms_)
      check(
          cudaMemcpy(room->buffer().data, start_.data(), start_.size() * 2, cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  void call(int number, void* stream) const {
    Execution execution;
    execution.stream = stream;
    execution.workspace = workspace_->buffer();
    tessera::run(plans_, problems_[static_cast<std::size_t>(number % 3)], execution);
  }
  std::vector<std::uint16_t> result(int calls) const {
    std::vector<std::uint16_t> values(start_.size());
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemcpy(values.data(), tensors_[static_cast<std::size_t>(calls % 3)].data,
                     values.size() * 2, cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return values;
  }

 private:
  AttentionProblem problem(int number) const {
    AttentionProblem p;
    p.k = p.v = tensors_[static_cast<std::size_t>(number % 3)];
    p.q = p.k;
    p.out = tensors_[static_cast<std::size_t>((number + 1) % 3)];
    p.causal = causal_;
    return p;
  }

  bool causal_;
  std::vector<std::uint16_t> start_;
  std::vector<std::unique_ptr<Room>> rooms_;
  std::vector<Tensor> tensors_;
  std::vector<AttentionProblem> problems_;
  Plan plans_;
  std::unique_ptr<Room> workspace_;
};

TEST(GpuAttentionSchedule, CallsWaitForTheOneBefore) {
  SKIP_UNLESS_HOPPER();
  constexpr int kCalls = 31;
  const struct {
    std::int64_t heads, length, dim;
    bool causal;
  } cases[] = {{8, 512, 64, false},  {8, 1024, 128, false}, {5, 300, 96, true},
               {40, 1100, 64, true}, {37, 700, 128, false}, {20, 2100, 256, true}};
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << c.heads << " heads of " << c.dim << ", " << c.length);
    const Chain chain(c.heads, c.length, c.dim, c.causal);
    chain.reset();
    for (int i = 0; i < kCalls; ++i) {
      chain.call(i, nullptr);
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    const auto expected = chain.result(kCalls);
    for (int round = 0; round < 3; ++round) {
      chain.reset();
      for (int i = 0; i < kCalls; ++i) chain.call(i, nullptr);
      EXPECT_EQ(chain.result(kCalls), expected) << "one stream, round " << round;
    }
    const gpu_test::Graph graph([&](void* stream) {
      for (int i = 0; i < kCalls; ++i) chain.call(i, stream);
    });
    for (int round = 0; round < 3; ++round) {
      chain.reset();
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      graph.replay();
      EXPECT_EQ(chain.result(kCalls), expected) << "one graph, round " << round;
    }
  }
}

}  // namespace
}  // namespace tessera
