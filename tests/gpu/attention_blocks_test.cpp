#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/attention.hpp"

// Masks whose blocks fit no tile: their lists are composed on the device before the kernel walks
// them.
namespace tessera {
namespace {

using generate::attention_case;
using generate::AttentionOptions;
using generate::Presence;
using gpu_test::OnGpu;

class GpuAttentionBlocks : public gpu_test::OfBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, GpuAttentionBlocks, gpu_test::gpu_backends(),
                         gpu_test::backend_name);

struct Block {
  std::int64_t q, kv;
};
constexpr Block kBlocks[] = {{16, 16},  {32, 32},  {32, 64}, {64, 32}, {16, 128}, {32, 128},
                             {128, 16}, {48, 96},  {96, 48}, {64, 96}, {192, 16}, {16, 320},
                             {5, 7},    {100, 36}, {1, 1},   {33, 64}};

AttentionOptions options_for(std::uint64_t seed, const Block& block) {
  AttentionOptions options = gpu_test::options_for(seed);
  options.mask = Presence::always;
  options.blocks.block_q = block.q;
  options.blocks.block_kv = block.kv;
  options.blocks.smallest_block = options.blocks.block_step = 1;
  return options;
}

/// The number of rows that compose the blocks of a problem.
int composing_rows(const AttentionProblem& problem) {
  int count = 0;
  for (const int row : gpu_test::attention_rows())
    count += gpu_test::takes(row, problem) && gpu_test::composes(row, problem);
  return count;
}

int match(std::uint64_t seed, const AttentionOptions& options, const std::string& name = {}) {
  const auto c = attention_case(seed, options);
  c->text += " blocks " + std::to_string(options.blocks.block_q) + " x " +
             std::to_string(options.blocks.block_kv) + " " + name;
  const OnGpu gpu(*c);
  const int rows = composing_rows(gpu.moved(c->problem));
  gpu_test::matches_oracle(*c);
  return rows;
}

/// Full and partial lists in any order and both forms, with and without bits; head groups; dense
/// and packed sequences; causal masks, windows, ranges.
TEST_P(GpuAttentionBlocks, DrawnListsMatchTheOracle) {
  int composed = 0;
  for (std::uint64_t seed = 0; seed < 8 * std::size(kBlocks); ++seed)
    composed += match(seed, options_for(seed, kBlocks[seed % std::size(kBlocks)]));
  EXPECT_GT(composed, 150);
}

/// Typical patterns of small blocks. Keys that no list names are not seen.
TEST_P(GpuAttentionBlocks, ShapesOfListsMatchTheOracle) {
  const struct {
    const char* name;
    std::function<bool(std::int64_t, std::int64_t)> names;
  } kinds[] = {
      {"all", [](std::int64_t, std::int64_t) { return true; }},
      {"none", [](std::int64_t, std::int64_t) { return false; }},
      {"diagonal", [](std::int64_t row, std::int64_t col) { return row == col; }},
      {"above the diagonal", [](std::int64_t row, std::int64_t col) { return col == row + 1; }},
      {"banded", [](std::int64_t row, std::int64_t col) { return std::abs(row - col) <= 2; }},
      {"checkerboard", [](std::int64_t row, std::int64_t col) { return (row + col) % 2 == 0; }},
      {"some columns", [](std::int64_t, std::int64_t col) { return col % 5 == 3; }},
      {"every eighth row", [](std::int64_t row, std::int64_t) { return row % 8 == 5; }},
      {"ends", [](std::int64_t, std::int64_t col) { return col == 0 || col > 12; }},
  };
  int composed = 0;
  std::uint64_t seed = 1000;
  for (const auto& kind : kinds)
    for (const Block& block : {Block{16, 16}, Block{32, 32}, Block{64, 16}, Block{16, 64}})
      for (const bool positions : {false, true}) {
        AttentionOptions options = options_for(++seed, block);
        options.positions = positions ? Presence::always : Presence::never;
        options.blocks.names = kind.names;
        options.dims = {64, 128};
        options.largest_kv_heads = 1;
        composed += match(seed, options, kind.name);
      }
  EXPECT_GT(composed, 150);
}

/// A list may name keys outside the windows of its queries, while other queries of the composed
/// block have the keys in their windows but not in their lists.
TEST_P(GpuAttentionBlocks, NarrowWindowsMatchTheOracle) {
  int composed = 0;
  for (std::uint64_t seed = 2000; seed < 2080; ++seed) {
    AttentionOptions options = options_for(seed, kBlocks[seed % 6]);
    options.positions = Presence::always;
    options.longest_window = seed % 2 == 0 ? 8 : 40;
    options.packed_q = options.packed_kv = seed % 4 < 2 ? Presence::always : Presence::never;
    options.dims = {64, 128};
    composed += match(seed, options);
  }
  EXPECT_GT(composed, 100);
}

/// More columns than are composed at a time, KV splits, and many rows of lists.
TEST_P(GpuAttentionBlocks, LongSequencesMatchTheOracle) {
  int composed = 0;
  for (std::uint64_t seed = 3000; seed < 3012; ++seed) {
    AttentionOptions options = options_for(seed, kBlocks[seed % 3]);
    options.longest = 9000;
    options.max_queries = seed % 2 == 0 ? 40 : 200;
    options.packed_q = options.packed_kv = Presence::never;
    options.largest_batch = options.largest_kv_heads = 1;
    options.dims = {64};
    composed += match(seed, options);
  }
  EXPECT_GT(composed, 12);
}

/// Each replay composes the lists that the buffers hold at that time.
TEST_P(GpuAttentionBlocks, GraphsReplayWithOtherLists) {
  int replayed = 0;
  for (std::uint64_t seed = 4000; seed < 4012; ++seed) {
    AttentionOptions options = options_for(seed, kBlocks[seed % 6]);
    options.packed_q = options.packed_kv = options.positions = Presence::never;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    c->memory.fill_normal(c->problem.q);  // other lists name other keys
    c->memory.fill_normal(c->problem.k);
    c->memory.fill_normal(c->problem.v);
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    c->memory.arm();
    if (c->problem.q.numel() == 0) continue;
    const planning::AttentionShape shape = planning::shape_of(c->problem);
    const std::int64_t columns =
        (shape.kv_length + shape.mask_block.cols - 1) / shape.mask_block.cols;
    const auto row = gpu_test::fastest(problem);
    if (!row) continue;
    const Plan made = plan(problem, gpu_test::by(*row));
    replayed += gpu_test::composes(made);
    gpu.upload();
    const gpu_test::Captured captured(made, problem);
    for (int round = 0; round < 3; ++round) {
      c->memory.reset();
      for (const BlockList* list : {&c->problem.mask.full, &c->problem.mask.partial}) {
        if (!*list || round == 0) continue;
        oracle::DenseArray indices = oracle::read(list->indices);
        for (double& index : indices.values)
          if (index >= 0) index = static_cast<double>(columns) - 1 - index;
        oracle::write(list->indices, indices);
        if (!list->counts) continue;
        oracle::DenseArray counts = oracle::read(list->counts);
        for (double& count : counts.values) count = std::max(0.0, count - 1);
        oracle::write(list->counts, counts);
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
  EXPECT_GT(replayed, 6);
}

TEST_P(GpuAttentionBlocks, SameBitsEveryTime) {
  for (std::uint64_t seed = 5000; seed < 5006; ++seed) {
    AttentionOptions options = options_for(seed, kBlocks[seed % 3]);
    options.longest = 900;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    c->memory.arm();
    for (const int row : gpu_test::attention_rows()) {
      if (!gpu_test::takes(row, problem)) continue;
      std::vector<std::byte> first;
      for (int i = 0; i < 10; ++i) {
        c->memory.reset();
        gpu.upload();
        gpu_test::run_by(row, problem);
        gpu.download();
        if (i == 0) first = c->memory.outputs();
        EXPECT_EQ(c->memory.outputs(), first) << c->text << " by " << gpu_test::name_of(row);
      }
    }
  }
}

TEST_P(GpuAttentionBlocks, HostileLists) {
  int composed = 0;
  for (std::uint64_t seed = 6000; seed < 6032; ++seed) {
    const auto c = attention_case(seed, options_for(seed, kBlocks[seed % std::size(kBlocks)]));
    gpu_test::expect_hostile_lists_are_harmless(*c, seed,
                                                [&](int row, const AttentionProblem& problem) {
                                                  composed += gpu_test::composes(row, problem);
                                                });
  }
  EXPECT_GT(composed, 40);
}

}  // namespace
}  // namespace tessera
