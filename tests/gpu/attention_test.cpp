#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/plan/select.hpp"
#include "tests/fixtures/expect.hpp"
#include "tests/fixtures/tensors.hpp"
#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

namespace tessera {
namespace {

using generate::attention_case;
using generate::AttentionOptions;
using generate::Layout;
using generate::Presence;
using gpu_test::check;
using gpu_test::Room;
using Case = generate::Case<AttentionProblem>;

/// A case's memory and its twin on the GPU, stretch by stretch.
class OnGpu {
 public:
  explicit OnGpu(Case& c) : stretches_(c.memory.stretches()) {
    for (const auto& stretch : stretches_)
      rooms_.push_back(std::make_unique<Room>(static_cast<std::int64_t>(stretch.size())));
  }

  AttentionProblem moved(const AttentionProblem& host) const {
    AttentionProblem p = host;
    for (Tensor* t : inputs_of(p)) move(*t);
    for (Tensor* t : {&p.out, &p.lse}) move(*t);
    return p;
  }
  void upload() const {
    for (std::size_t i = 0; i < rooms_.size(); ++i)
      check(cudaMemcpy(at(i), stretches_[i].data(), stretches_[i].size(), cudaMemcpyHostToDevice),
            "cudaMemcpy");
  }
  void download() const {
    for (std::size_t i = 0; i < rooms_.size(); ++i)
      check(cudaMemcpy(stretches_[i].data(), at(i), stretches_[i].size(), cudaMemcpyDeviceToHost),
            "cudaMemcpy");
  }

 private:
  void* at(std::size_t i) const { return rooms_[i]->buffer().data; }
  void move(Tensor& t) const {
    if (!t) return;
    t.device = {DeviceKind::cuda, 0};
    for (std::size_t i = 0; i < rooms_.size(); ++i) {
      const auto* data = static_cast<const std::byte*>(t.data);
      const auto& s = stretches_[i];
      if (data >= s.data() && data < s.data() + s.size()) {
        t.data = static_cast<std::byte*>(at(i)) + (data - s.data());
        return;
      }
    }
    FAIL() << "a tensor outside the case's memory: " << to_string(t);
  }

  std::vector<std::span<std::byte>> stretches_;
  std::vector<std::unique_ptr<Room>> rooms_;
};

bool takes(int row, const AttentionProblem& problem) {
  return planning::rejections(planning::kernel_table(Backend::sm90)[static_cast<std::size_t>(row)],
                              Op::attention, planning::shape_of(AnyProblem(problem)),
                              device_facts({DeviceKind::cuda, 0}))
      .empty();
}

/// Runs a case by every row that takes it and asks the oracle each time. How many took it.
int matches_oracle(Case& c) {
  const OnGpu gpu(c);
  const AttentionProblem problem = gpu.moved(c.problem);
  c.memory.arm();
  int taken = 0;
  for (const int row : gpu_test::rows_of("attention")) {
    if (!takes(row, problem)) continue;
    ++taken;
    const std::string text = c.text + " by " + gpu_test::name_of(row);
    c.memory.reset();
    gpu.upload();
    try {
      gpu_test::run_by(row, problem);
    } catch (const Error& error) {
      ADD_FAILURE() << text << ": refused: " << error.what();
      continue;
    }
    gpu.download();
    EXPECT_EQ(c.memory.damage(), "") << text;
    const oracle::Comparison result = oracle::check(c.problem);
    EXPECT_TRUE(result.ok) << text << ": " << result.message;
  }
  return taken;
}

AttentionOptions options_for(std::uint64_t seed) {
  AttentionOptions options;
  options.dtype = seed % 2 == 0 ? DType::bf16 : DType::f16;
  options.layout = seed % 3 == 0 ? Layout::contiguous : Layout::aligned;
  options.paged = Presence::never;
  options.dims = {8, 64, 64, 72, 96, 128, 128, 192, 256};
  options.longest = 300;
  options.largest_batch = 2;
  options.largest_kv_heads = 2;
  options.smallest_block = options.block_step = 64;
  return options;
}

void all_match(std::uint64_t seeds, const std::function<void(AttentionOptions&)>& change) {
  int taken = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    AttentionOptions options = options_for(seed);
    change(options);
    taken += matches_oracle(*attention_case(seed, options));
  }
  EXPECT_GT(taken, static_cast<int>(seeds) / 4) << "most problems found no kernel";
}

TEST(GpuAttention, PlainMatchesTheOracle) {
  SKIP_UNLESS_HOPPER();
  all_match(40, [](AttentionOptions& o) {
    o.mask = o.packed_q = o.packed_kv = o.positions = o.sinks = o.softcap = Presence::never;
  });
}

TEST(GpuAttention, EverythingDenseMatchesTheOracle) {
  SKIP_UNLESS_HOPPER();
  all_match(60, [](AttentionOptions& o) { o.mask = Presence::never; });
}

TEST(GpuAttention, PackedSequencesMatchTheOracle) {
  SKIP_UNLESS_HOPPER();
  all_match(40, [](AttentionOptions& o) {
    o.packed_q = o.packed_kv = Presence::always;
    o.largest_batch = 5;
    o.longest = 200;
  });
}

TEST(GpuAttention, BlockMasksMatchTheOracle) {
  SKIP_UNLESS_HOPPER();
  all_match(80, [](AttentionOptions& o) { o.mask = Presence::always; });
}

TEST(GpuAttention, BadValuesSpreadAsTheOracleSays) {
  SKIP_UNLESS_HOPPER();
  all_match(40, [](AttentionOptions& o) {
    o.bad_values = true;
    o.positions = o.softcap = Presence::never;
  });
}

TEST(GpuAttention, SameBitsEveryTime) {
  SKIP_UNLESS_HOPPER();
  AttentionOptions options = options_for(0);
  options.longest = 500;
  options.mask = Presence::never;
  options.positions = Presence::always;
  options.dims = {128};
  const auto c = attention_case(5, options);
  const OnGpu gpu(*c);
  const AttentionProblem problem = gpu.moved(c->problem);
  c->memory.arm();
  std::vector<std::byte> first;
  for (int i = 0; i < 20; ++i) {
    c->memory.reset();
    gpu.upload();
    attention(problem);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    gpu.download();
    if (i == 0) first = c->memory.outputs();
    EXPECT_EQ(c->memory.outputs(), first) << "run " << i;
  }
}

/// More tiles than blocks of threads, lists of very different lengths, and a replay with other
/// lists in the same buffers.
TEST(GpuAttention, GraphsReplayWithAnotherMask) {
  SKIP_UNLESS_HOPPER();
  for (const std::uint64_t seed : {3u, 11u}) {
    AttentionOptions options = options_for(seed);
    options.mask = Presence::always;
    options.packed_q = options.packed_kv = options.positions = Presence::never;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    c->memory.arm();
    if (c->problem.q.numel() == 0 || !explain(problem, device_facts(problem.q.device)).supported)
      continue;
    gpu.upload();
    const gpu_test::Captured captured(plan(problem), problem);
    for (int round = 0; round < 3; ++round) {
      c->memory.reset();
      // Each round the lists' rows lose an entry.
      for (const Tensor& counts : {c->problem.mask.full.counts, c->problem.mask.partial.counts}) {
        if (!counts) continue;
        oracle::DenseArray values = oracle::read(counts);
        for (double& count : values.values) count = std::max(0.0, count - round);
        oracle::write(counts, values);
      }
      c->memory.arm();
      gpu.upload();
      captured.launch();
      gpu.download();
      EXPECT_EQ(c->memory.damage(), "") << c->text;
      const oracle::Comparison result = oracle::check(c->problem);
      EXPECT_TRUE(result.ok) << c->text << ", round " << round << ": " << result.message;
    }
  }
}

/// Counts and indices that nobody checked lead nowhere outside the tensors.
TEST(GpuAttention, HostileLists) {
  SKIP_UNLESS_HOPPER();
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    AttentionOptions options = options_for(seed);
    options.mask = Presence::always;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    if (c->problem.q.numel() == 0 || !explain(problem, device_facts(problem.q.device)).supported)
      continue;
    generate::Random random(seed);
    for (const Tensor& list :
         {c->problem.mask.full.counts, c->problem.mask.full.offsets, c->problem.mask.full.indices,
          c->problem.mask.partial.counts, c->problem.mask.partial.indices, c->problem.mask.bit_tile,
          c->problem.q_offsets, c->problem.kv_offsets, c->problem.kv_end}) {
      if (!list) continue;
      oracle::DenseArray values = oracle::read(list);
      for (double& value : values.values)
        if (random.chance(0.3)) value = random.pick({-1.0, -1e9, 2e9, 1e6, 7.0});
      oracle::write(list, values);
    }
    c->memory.arm();
    gpu.upload();
    attention(problem);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    gpu.download();
    EXPECT_EQ(c->memory.damage(), "") << c->text;
  }
}

TEST(GpuAttention, RefusesWithReasons) {
  SKIP_UNLESS_HOPPER();
  const Room room(1 << 20);
  const Device device{DeviceKind::cuda, 0};
  const auto tensor_of = [&](std::int64_t dim) {
    return tensor(room.buffer().data, DType::bf16, {1, 64, 2, dim}, device);
  };
  AttentionProblem problem;
  problem.q = problem.k = problem.v = problem.out = tensor_of(65);
  problem.out.data = static_cast<std::byte*>(problem.out.data) + (1 << 19);
  try {
    attention(problem);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("multiples of 8"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera
