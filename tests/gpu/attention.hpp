#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/kernels/cuda/attention/layout.hpp"
#include "src/kernels/cuda/sm90/decode/plan.hpp"
#include "tests/fixtures/expect.hpp"
#include "tests/fixtures/tensors.hpp"
#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

// Attention problems on the GPU, by every row that supports them, against the oracle.
namespace tessera::gpu_test {

using generate::AttentionOptions;
using Case = generate::Case<AttentionProblem>;

/// The backend whose rows the current test runs.
inline Backend& backend_under_test() {
  static Backend backend = Backend::sm90;
  return backend;
}
inline Execution on_backend() {
  Execution execution;
  execution.backend = backend_under_test();
  return execution;
}
inline std::string attention_family() {
  return std::string(to_string(backend_under_test())) + "_attention";
}
inline std::vector<int> attention_rows() { return rows_of(attention_family()); }

/// Tests that run once per backend, where the device has it.
class OfBackend : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (GetParam() == Backend::sm90 && !on_hopper())
      GTEST_SKIP() << "needs compute capability 9.0, and kernels for it";
    backend_under_test() = GetParam();
  }
};
inline auto gpu_backends() { return testing::Values(Backend::sm90, Backend::sm80); }
inline std::string backend_name(const testing::TestParamInfo<Backend>& info) {
  return to_string(info.param);
}

/// A copy of a case's memory on the GPU.
class OnGpu {
 public:
  template <class Problem>
  explicit OnGpu(generate::Case<Problem>& c) : stretches_(c.memory.stretches()) {
    for (const auto& stretch : stretches_)
      rooms_.push_back(std::make_unique<Room>(static_cast<std::int64_t>(stretch.size())));
  }

  AttentionProblem moved(const AttentionProblem& host) const {
    AttentionProblem p = host;
    for (Tensor* t : inputs_of(p)) move(*t);
    for (Tensor* t : {&p.out, &p.lse}) move(*t);
    return p;
  }
  AttentionBackwardProblem moved(const AttentionBackwardProblem& host) const {
    AttentionBackwardProblem p = host;
    p.forward = moved(host.forward);
    for (Tensor* t : {&p.dout, &p.dlse, &p.dq, &p.dk, &p.dv, &p.dsinks}) move(*t);
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

template <class Problem>
bool takes(int row, const Problem& problem) {
  Execution execution;
  execution.kernel = name_of(row);
  return explain(problem, device_facts({DeviceKind::cuda, 0}), execution).supported;
}

/// The fastest row of the family under test, whether or not another family's is chosen.
inline std::optional<Candidate> fastest(const AttentionProblem& problem) {
  std::optional<Candidate> best;
  for (const Candidate& one :
       explain(problem, device_facts(problem.q.device), on_backend()).candidates)
    if (one.family == attention_family() && one.reasons.empty() &&
        (!best || one.predicted_ms < best->predicted_ms))
      best = one;
  return best;
}
inline Execution by(const Candidate& row) {
  Execution execution;
  execution.kernel = row.kernel;
  return execution;
}

/// Whether a row composes the mask's blocks into larger ones.
inline bool composes(int row, const AttentionProblem& problem) {
  const planning::AttentionShape shape = planning::shape_of(problem);
  if (numbered_rows()[static_cast<std::size_t>(row)].family == "sm90_decode")
    return static_cast<bool>(planning::decode_layout(shape, row_at(row), 1).tiles.composed);
  return static_cast<bool>(planning::composed_mask(shape, row_at(row).tile));
}
inline bool composes(const Plan& plan) {
  return static_cast<bool>(plan.planned->layout.get<planning::AttentionLayout>().composed);
}

/// A composed block has queries with different lists, and a NaN that one of them sees may reach the
/// others. So problems with bad values run only by rows that do not compose.
enum class Rows { all, without_composing };

/// The problem, and the same without lse, for which rows may have other kernels.
inline std::vector<AttentionProblem> with_and_without_lse(const AttentionProblem& problem) {
  std::vector<AttentionProblem> both{problem};
  if (problem.lse) {
    both.push_back(problem);
    both.back().lse = {};
  }
  return both;
}

/// Runs a case by every row of a family that supports it and compares with the oracle. Returns the
/// number of rows.
inline int matches_oracle(Case& c, Rows rows = Rows::all,
                          const std::string& family = attention_family()) {
  const OnGpu gpu(c);
  c.memory.arm();
  const bool fp8 = c.problem.q.dtype == DType::e4m3;
  const oracle::Attention truth =
      oracle::attention(c.problem, fp8 ? oracle::Sums::fp8 : oracle::Sums::f32);
  const oracle::Attention emulated = oracle::attention_emulated(c.problem);
  int taken = 0;
  const AttentionProblem there = gpu.moved(c.problem);
  for (const int row : rows_of(family)) {
    if (!takes(row, there)) continue;
    if (rows == Rows::without_composing && composes(row, c.problem)) continue;
    ++taken;
    for (const AttentionProblem& problem : with_and_without_lse(c.problem)) {
      const std::string text = c.text + " by " + name_of(row) + (problem.lse ? ", lse" : "");
      c.memory.reset();
      gpu.upload();
      try {
        run_by(row, gpu.moved(problem));
      } catch (const Error& error) {
        ADD_FAILURE() << text << ": refused: " << error.what();
        continue;
      }
      gpu.download();
      EXPECT_EQ(c.memory.damage(), "") << text;
      const oracle::Comparison result = oracle::compare_attention(problem, truth, emulated);
      EXPECT_TRUE(result.ok) << text << ": " << result.message;
    }
  }
  return taken;
}

/// Checks that lists with invalid entries never lead outside the tensors, and that every run ends.
/// Calls ran(row, problem) after each row that supports the problem.
template <class Ran>
void expect_hostile_lists_are_harmless(Case& c, std::uint64_t seed, const Ran& ran,
                                       const std::string& family = attention_family()) {
  const OnGpu gpu(c);
  const AttentionProblem problem = gpu.moved(c.problem);
  if (c.problem.q.numel() == 0) return;
  generate::Random random(seed);
  const BlockMask& mask = c.problem.mask;
  for (const Tensor& list :
       {mask.full.counts, mask.full.offsets, mask.full.indices, mask.partial.counts,
        mask.partial.offsets, mask.partial.indices, mask.bit_tile, c.problem.q_offsets,
        c.problem.kv_offsets, c.problem.kv_end, c.problem.page_table}) {
    if (!list) continue;
    oracle::DenseArray values = oracle::read(list);
    for (double& value : values.values)
      if (random.chance(0.3)) value = random.pick({-1.0, -1e9, 2e9, 1e6, 7.0, 0.0});
    oracle::write(list, values);
  }
  c.memory.arm();
  for (const int row : rows_of(family)) {
    if (!takes(row, problem)) continue;
    gpu.upload();
    run_by(row, problem);
    gpu.download();
    EXPECT_EQ(c.memory.damage(), "") << c.text << " by " << name_of(row);
    ran(row, problem);
  }
}

/// Breaks entries of a page table. Keys on a page that does not exist count as hidden: like a mask
/// without the page's block. Returns how many pages are missing.
inline int expect_missing_pages_are_skipped(Case& c, const std::string& family) {
  AttentionProblem& p = c.problem;
  if (p.q.numel() == 0 || p.page_table.size(1) == 0) return 0;
  // The truth: a mask per sequence, whose blocks are pages, without some of them.
  const std::int64_t batch = p.page_table.size(0), entries = p.page_table.size(1);
  oracle::DenseArray broken = oracle::read(p.page_table);
  std::vector<std::int64_t> counts, indices;
  int missing = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t count = 0;
    for (std::int64_t entry = 0; entry < entries; ++entry) {
      if (c.random.chance(0.3)) {
        broken.values[static_cast<std::size_t>(b * entries + entry)] =
            c.random.pick({-1.0, -7.0, 1e9, static_cast<double>(p.k.size(0))});
        ++missing;
        continue;
      }
      indices.push_back(entry);
      ++count;
    }
    counts.push_back(count);
    indices.resize(static_cast<std::size_t>((b + 1) * entries), 0);
  }
  AttentionProblem masked = p;
  masked.mask.block_q = p.q.size(1);
  masked.mask.block_kv = p.k.size(1);
  masked.mask.full.counts = c.memory.list(DType::i32, {batch, 1, 1}, counts);
  masked.mask.full.indices = c.memory.list(DType::i32, {batch, 1, 1, entries}, indices);
  const oracle::Attention truth = oracle::attention(masked);
  const oracle::Attention emulated = oracle::attention_emulated(masked);
  oracle::write(p.page_table, broken);
  const OnGpu gpu(c);
  c.memory.arm();
  for (const int row : rows_of(family)) {
    const AttentionProblem there = gpu.moved(p);
    if (!takes(row, there)) continue;
    c.memory.reset();
    gpu.upload();
    run_by(row, there);
    gpu.download();
    EXPECT_EQ(c.memory.damage(), "") << c.text;
    const oracle::Comparison result = oracle::compare_attention(p, truth, emulated);
    EXPECT_TRUE(result.ok) << c.text << " by " << name_of(row) << ": " << result.message;
  }
  return missing;
}

inline AttentionOptions options_for(std::uint64_t seed) {
  AttentionOptions options;
  options.dtype = seed % 2 == 0 ? DType::bf16 : DType::f16;
  options.layout = seed % 3 == 0 ? generate::Layout::contiguous : generate::Layout::aligned;
  options.paged = generate::Presence::never;
  options.dims = {8, 64, 64, 72, 96, 128, 128, 192, 256};
  options.longest = 300;
  options.largest_batch = 2;
  options.largest_kv_heads = 2;
  options.blocks.smallest_block = options.blocks.block_step = 64;
  return options;
}

}  // namespace tessera::gpu_test
