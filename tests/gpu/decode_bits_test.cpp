// Decode rows give the same bits every time, and if asked whatever else is in the batch.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/decode.hpp"

namespace tessera {
namespace {

using namespace gpu_test::decode;  // NOLINT: what the tests of decode share

TEST(GpuDecodeBits, SameBitsEveryTime) {
  SKIP_UNLESS_HOPPER();
  for (const bool paged : {false, true}) {
    AttentionOptions options = decode_options(3);
    options.packed_q = Presence::never;
    options.paged = paged ? Presence::always : Presence::never;
    options.longest = 9000;
    options.max_queries = 4;
    options.largest_batch = 4;
    options.largest_kv_heads = 2;
    options.dims = {128};
    const auto c = attention_case(5, options);
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    c->memory.arm();
    for (const int row : rows_of(kFamily)) {
      if (!takes(row, problem)) continue;
      std::vector<std::byte> first;
      for (int i = 0; i < 20; ++i) {
        c->memory.reset();
        gpu.upload();
        gpu_test::run_by(row, problem);
        gpu.download();
        if (i == 0) first = c->memory.outputs();
        EXPECT_EQ(c->memory.outputs(), first) << gpu_test::name_of(row) << ", run " << i;
      }
    }
  }
}

std::vector<double> values_of(const AttentionProblem& p, const Tensor& of) {
  std::vector<double> values = oracle::read(of).values;
  if (p.lse) {
    const std::vector<double> lse = oracle::read(p.lse).values;
    values.insert(values.end(), lse.begin(), lse.end());
  }
  return values;
}

/// A sequence has the same bits by itself and in a batch, also where its keys are split.
TEST(GpuDecodeBits, BatchInvariantResultsAreThoseOfASequenceAlone) {
  SKIP_UNLESS_HOPPER();
  int compared = 0, chosen_rows = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    AttentionOptions options = decode_options(seed);
    options.packed_q = options.packed_kv = Presence::never;
    options.mask = seed % 4 == 3 ? Presence::always : Presence::never;
    options.longest = seed % 3 == 0 ? 300 : 9000;
    options.max_queries = seed % 5 == 0 ? 20 : 4;
    options.largest_batch = 5;
    options.largest_kv_heads = 2;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    if (c->problem.q.numel() == 0) continue;
    c->problem.batch_invariant = true;
    const OnGpu gpu(*c);
    c->memory.arm();
    const oracle::Attention truth = oracle::attention(c->problem);
    const oracle::Attention emulated = oracle::attention_emulated(c->problem);
    const Explanation e = explain(gpu.moved(c->problem), device_facts({DeviceKind::cuda, 0}));
    for (const int row : rows_of(kFamily)) {
      if (!takes(row, gpu.moved(c->problem))) continue;
      c->memory.reset();
      gpu.upload();
      gpu_test::run_by(row, gpu.moved(c->problem));
      gpu.download();
      const std::string text = c->text + " by " + gpu_test::name_of(row);
      EXPECT_EQ(c->memory.damage(), "") << text;
      const oracle::Comparison result = oracle::compare_attention(c->problem, truth, emulated);
      EXPECT_TRUE(result.ok) << text << ": " << result.message;
      std::vector<std::vector<double>> in_batch;
      for (std::int64_t b = 0; b < c->problem.q.size(0); ++b) {
        const AttentionProblem one = sequence_of(c->problem, b);
        in_batch.push_back(values_of(one, one.out));
      }
      for (std::int64_t b = 0; b < c->problem.q.size(0); ++b) {
        const AttentionProblem one = sequence_of(c->problem, b);
        c->memory.reset();
        gpu.upload();
        gpu_test::run_by(row, gpu.moved(one));
        gpu.download();
        EXPECT_TRUE(values_of(one, one.out) == in_batch[static_cast<std::size_t>(b)])
            << text << ", sequence " << b;
        ++compared;
        if (e.plan.kernel_name != gpu_test::name_of(row)) continue;
        // The row that is chosen does not depend on the batch either.
        EXPECT_EQ(explain(gpu.moved(one), device_facts({DeviceKind::cuda, 0})).plan.kernel_name,
                  e.plan.kernel_name)
            << c->text;
        ++chosen_rows;
      }
    }
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(chosen_rows, 40);
}

/// Nor do its bits depend on the lengths of the others, with packed queries, masks and pages.
TEST(GpuDecodeBits, BatchInvariantResultsDoNotDependOnNeighbours) {
  SKIP_UNLESS_HOPPER();
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    AttentionOptions options = decode_options(seed);
    options.packed_q = seed % 2 == 0 ? Presence::always : Presence::never;
    options.paged = Presence::always;
    options.mask = seed % 3 == 2 ? Presence::always : Presence::never;
    options.longest = seed % 4 < 2 ? 200 : 3000;
    options.largest_batch = 6;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    AttentionProblem& p = c->problem;
    const std::int64_t batch = p.kv_end ? p.kv_end.size(0) : 0;
    if (p.q.numel() == 0 || batch < 2) continue;
    p.batch_invariant = true;
    const OnGpu gpu(*c);
    c->memory.arm();
    const oracle::DenseArray ends = oracle::read(p.kv_end);
    const std::int64_t kept = c->random.between(0, batch - 1);
    // The rows of the sequence that stays, in the first dimension of out.
    std::int64_t first = kept, count = 1;
    if (p.q_offsets) {
      const oracle::DenseArray offsets = oracle::read(p.q_offsets);
      first = static_cast<std::int64_t>(offsets.values[static_cast<std::size_t>(kept)]);
      count = static_cast<std::int64_t>(offsets.values[static_cast<std::size_t>(kept + 1)]) - first;
    }
    if (count == 0) continue;
    for (const int row : rows_of(kFamily)) {
      if (!takes(row, gpu.moved(p))) continue;
      std::vector<double> truth;
      for (int round = 0; round < 4; ++round) {
        oracle::DenseArray now = ends;
        for (std::int64_t b = 0; b < batch && round > 0; ++b) {
          double& end = now.values[static_cast<std::size_t>(b)];
          const double begin =
              p.kv_begin ? oracle::read(p.kv_begin).values[static_cast<std::size_t>(b)] : 0;
          if (b != kept)
            end = begin +
                  static_cast<double>(c->random.between(0, static_cast<std::int64_t>(end - begin)));
        }
        oracle::write(p.kv_end, now);
        c->memory.arm();
        c->memory.reset();
        gpu.upload();
        gpu_test::run_by(row, gpu.moved(p));
        gpu.download();
        const std::vector<double> all = oracle::read(p.out).values;
        const auto each = static_cast<std::ptrdiff_t>(all.size()) / p.out.size(0);
        const std::vector<double> mine(all.begin() + first * each,
                                       all.begin() + (first + count) * each);
        if (round == 0) truth = mine;
        EXPECT_TRUE(mine == truth) << c->text << " by " << gpu_test::name_of(row) << ", round "
                                   << round << ", sequence " << kept;
        ++compared;
      }
      oracle::write(p.kv_end, ends);
    }
  }
  EXPECT_GT(compared, 60);
}

}  // namespace
}  // namespace tessera
