// Scheduling: split last rounds, ordered tiles, and calls that start before the previous one ends.
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

class GpuAttentionSchedule : public gpu_test::OfBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, GpuAttentionSchedule, gpu_test::gpu_backends(),
                         gpu_test::backend_name);

/// Many tiles of few queries and many keys: whole rounds, and a last one that is worth splitting.
AttentionOptions rounds_and_a_rest(std::uint64_t seed, Presence mask) {
  AttentionOptions options = options_for(seed);
  options.packed_q = options.packed_kv = options.positions = Presence::never;
  options.mask = mask;
  options.longest = 3000;
  options.max_queries = 20;
  options.largest_batch = 3;
  options.largest_kv_heads = 90;
  options.group = 1;
  options.dims = {64, 128};
  return options;
}

/// Checks the first cases whose last round is split.
void check_divided_rounds(Presence mask) {
  constexpr int kCases = 3;
  int split = 0;
  for (std::uint64_t seed = 0; seed < 60 && split < kCases; ++seed) {
    const auto c = attention_case(seed, rounds_and_a_rest(seed, mask));
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    const auto row = gpu_test::fastest(problem);
    if (c->problem.q.numel() == 0 || !row || row->why.find("keys of the last") == std::string::npos)
      continue;
    ++split;
    EXPECT_GT(matches_oracle(*c), 0) << c->text;
    std::vector<std::byte> first;
    for (int i = 0; i < 10; ++i) {
      c->memory.reset();
      gpu.upload();
      attention(problem, gpu_test::by(*row));
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      gpu.download();
      if (i == 0) first = c->memory.outputs();
      EXPECT_EQ(c->memory.outputs(), first) << c->text << ", run " << i;
    }
  }
  EXPECT_EQ(split, kCases) << "too few cases were split";
}

TEST_P(GpuAttentionSchedule, DividedRoundsMatchTheOracleWithTheSameBits) {
  check_divided_rounds(Presence::never);
}

/// Tiles are dynamic here, and the shares of split tiles come after them.
TEST_P(GpuAttentionSchedule, DividedRoundsOfListsMatchTheOracleWithTheSameBits) {
  check_divided_rounds(Presence::always);
}

/// More tiles than thread blocks, so that tiles overlap while their row maxes change.
TEST_P(GpuAttentionSchedule, RisingScoresMatchTheOracle) {
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

/// More tiles than thread blocks, of very different lengths.
TEST_P(GpuAttentionSchedule, OrderedTilesMatchTheOracle) {
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

/// Many more tiles than thread blocks, of one or two steps, some without any visible key: the next
/// tile's Q, K and V are loaded while the tile before is still in use.
TEST_P(GpuAttentionSchedule, ShortWalksOfManyTilesMatchTheOracle) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    AttentionOptions options = options_for(seed);
    options.longest = seed % 4 == 0 ? 64 : 140;
    options.largest_batch = 6;
    options.largest_kv_heads = 120;
    options.group = 1;
    options.dims = {64, 128, 192, 256};
    options.positions = seed % 2 == 0 ? Presence::always : Presence::never;
    if (seed % 2 == 0) options.longest_window = 8;
    options.packed_q = options.packed_kv = seed % 8 < 4 ? Presence::never : Presence::always;
    options.mask = seed % 5 == 0 ? Presence::always : Presence::never;
    EXPECT_GT(matches_oracle(*attention_case(seed, options)), 0);
  }
}

/// Few thread blocks with many tiles, which all rings of a thread block go round with.
TEST_P(GpuAttentionSchedule, FewThreadBlocksMatchTheOracle) {
  for (const int units : {1, 3}) {
    const gpu_test::FewUnits few(units);
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      AttentionOptions options = options_for(seed);
      options.largest_batch = options.largest_kv_heads = seed % 4 == 0 ? 2 : 4;
      options.longest = seed % 4 == 0 ? 1500 : 260;
      matches_oracle(*attention_case(seed, options));
    }
  }
}

TEST_P(GpuAttentionSchedule, FewThreadBlocksMatchTheOracleInFp8) {
  if (GetParam() == Backend::sm80) GTEST_SKIP() << "rows of sm80_attention do not support FP8";
  for (const int units : {1, 3}) {
    const gpu_test::FewUnits few(units);
    int taken = 0;
    for (std::uint64_t seed = 0; seed < 36; ++seed) {
      AttentionOptions options = options_for(seed);
      options.dtype = DType::e4m3;
      options.layout = generate::Layout::aligned;
      options.dims = {64, 80, 96, 128, 192, 256};
      options.v_by_keys = seed % 3 == 0 ? Presence::maybe : Presence::never;
      options.largest_batch = options.largest_kv_heads = seed % 4 == 0 ? 2 : 4;
      options.longest = seed % 4 == 0 ? 1500 : 260;
      taken += matches_oracle(*attention_case(seed, options));
    }
    EXPECT_GT(taken, 20);
  }
}

enum class Walks { full, causal, listed, packed };

/// A chain of calls: each reads what the previous call wrote, and writes where the one before that
/// read. Repeated attention would make all rows equal, so every third call starts from new values.
/// These alternate between two sets: a call that reads too early reads the other set.
class Chain {
 public:
  Chain(std::int64_t heads, std::int64_t length, std::int64_t dim, Walks walks)
      : walks_(walks),
        blocks_((length + kBlock - 1) / kBlock),
        numbers_((blocks_ * (blocks_ + 1) + 8) * 4) {
    const std::int64_t count = heads * length * dim;
    std::mt19937 random(7);  // NOLINT: the same numbers each time
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < 2 * count; ++i) {
      const float value = normal(random);
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      start_.push_back(static_cast<std::uint16_t>(bits >> 16));
    }
    bytes_ = static_cast<std::size_t>(count) * 2;
    starts_ = std::make_unique<Room>(2 * count * 2);
    check(cudaMemcpy(starts_->buffer().data, start_.data(), 2 * bytes_, cudaMemcpyHostToDevice),
          "cudaMemcpy");
    for (int i = 0; i < 3; ++i) {
      rooms_.push_back(std::make_unique<Room>(count * 2));
      const void* data = rooms_.back()->buffer().data;
      tensors_.push_back(walks == Walks::packed
                             ? tensor(data, DType::bf16, {length, heads, dim}, kGpu)
                             : tensor(data, DType::bf16, {1, length, heads, dim}, kGpu));
    }
    put_numbers(length);
    for (int i = 0; i < 3; ++i) problems_.push_back(problem(i));
    plans_ = plan(problems_[0], gpu_test::on_backend());
    workspace_ = std::make_unique<Room>(
        static_cast<std::int64_t>(std::max<std::size_t>(plans_.workspace_bytes, 16)));
  }

  void call(int number, void* stream) const {
    if (number % 3 == 0) {
      const auto* start = static_cast<const std::byte*>(starts_->buffer().data);
      check(cudaMemcpyAsync(rooms_[0]->buffer().data, start + number / 3 % 2 * bytes_, bytes_,
                            cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
            "cudaMemcpyAsync");
    }
    Execution execution;
    execution.stream = stream;
    execution.workspace = workspace_->buffer();
    tessera::run(plans_, problems_[static_cast<std::size_t>(number % 3)], execution);
  }
  /// The results of the last three calls.
  std::vector<std::uint16_t> results() const {
    std::vector<std::uint16_t> values(3 * bytes_ / 2);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (std::size_t i = 0; i < 3; ++i)
      check(cudaMemcpy(values.data() + i * bytes_ / 2, rooms_[i]->buffer().data, bytes_,
                       cudaMemcpyDeviceToHost),
            "cudaMemcpy");
    return values;
  }

 private:
  static constexpr std::int64_t kBlock = 128;
  static constexpr Device kGpu{DeviceKind::cuda, 0};

  /// For lists: counts, then indices; row r names r blocks. For packed sequences: offsets.
  void put_numbers(std::int64_t length) {
    std::vector<std::int32_t> numbers;
    if (walks_ == Walks::listed) {
      for (std::int64_t row = 0; row < blocks_; ++row)
        numbers.push_back(static_cast<std::int32_t>(row));
      for (std::int64_t i = 0; i < blocks_ * blocks_; ++i)
        numbers.push_back(static_cast<std::int32_t>(i * 5 % blocks_));
    } else if (walks_ == Walks::packed) {
      for (const std::int64_t offset :
           {std::int64_t{0}, length / 7, length / 7, length / 2, length})
        numbers.push_back(static_cast<std::int32_t>(offset));
    }
    if (numbers.empty()) return;
    check(cudaMemcpy(numbers_.buffer().data, numbers.data(), numbers.size() * 4,
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }

  AttentionProblem problem(int number) const {
    AttentionProblem p;
    p.k = p.v = tensors_[static_cast<std::size_t>(number % 3)];
    p.q = p.k;
    p.out = tensors_[static_cast<std::size_t>((number + 1) % 3)];
    p.causal = walks_ == Walks::causal;
    auto* numbers = static_cast<std::int32_t*>(numbers_.buffer().data);
    if (walks_ == Walks::listed) {
      p.mask.block_q = p.mask.block_kv = kBlock;
      p.mask.full.counts = tensor(numbers, DType::i32, {1, 1, blocks_}, kGpu);
      p.mask.full.indices = tensor(numbers + blocks_, DType::i32, {1, 1, blocks_, blocks_}, kGpu);
    } else if (walks_ == Walks::packed) {
      p.q_offsets = p.kv_offsets = tensor(numbers, DType::i32, {5}, kGpu);
    }
    return p;
  }

  Walks walks_;
  std::int64_t blocks_;
  Room numbers_;
  std::vector<std::uint16_t> start_;
  std::size_t bytes_ = 0;
  std::unique_ptr<Room> starts_;
  std::vector<std::unique_ptr<Room>> rooms_;
  std::vector<Tensor> tensors_;
  std::vector<AttentionProblem> problems_;
  Plan plans_;
  std::unique_ptr<Room> workspace_;
};

TEST_P(GpuAttentionSchedule, CallsWaitForTheOneBefore) {
  constexpr int kCalls = 30;  // a multiple of 6, so that a graph of them can be replayed
  const struct {
    std::int64_t heads, length, dim;
    Walks walks;
  } cases[] = {{8, 512, 64, Walks::full},      {8, 1024, 128, Walks::full},
               {5, 300, 96, Walks::causal},    {40, 1100, 64, Walks::causal},
               {37, 700, 128, Walks::full},    {20, 2100, 256, Walks::causal},
               {40, 1100, 128, Walks::listed}, {40, 1100, 64, Walks::listed},
               {3, 1100, 128, Walks::listed},  {40, 1100, 128, Walks::packed},
               {9, 4500, 128, Walks::listed},  {9, 4500, 128, Walks::packed},  // long: ordered
               {12, 4500, 64, Walks::listed}};
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << c.heads << " heads of " << c.dim << ", " << c.length);
    const Chain chain(c.heads, c.length, c.dim, c.walks);
    for (int i = 0; i < 2 * kCalls; ++i) {
      chain.call(i, nullptr);
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    const auto expected = chain.results();
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 2 * kCalls; ++i) chain.call(i, nullptr);
      EXPECT_EQ(chain.results(), expected) << "one stream, round " << round;
    }
    const gpu_test::Graph graph([&](void* stream) {
      for (int i = 0; i < kCalls; ++i) chain.call(i, stream);
    });
    for (int round = 0; round < 3; ++round) {
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      graph.start();
      graph.replay();
      EXPECT_EQ(chain.results(), expected) << "a graph twice, round " << round;
    }
  }
}

}  // namespace
}  // namespace tessera
