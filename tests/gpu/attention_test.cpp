#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/attention.hpp"
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

class GpuAttention : public gpu_test::OfBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, GpuAttention, gpu_test::gpu_backends(), gpu_test::backend_name);

void all_match(std::uint64_t seeds, const std::function<void(AttentionOptions&)>& change) {
  int taken = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    AttentionOptions options = options_for(seed);
    change(options);
    const auto rows = options.bad_values ? gpu_test::Rows::without_composing : gpu_test::Rows::all;
    taken += matches_oracle(*attention_case(seed, options), rows);
  }
  EXPECT_GT(taken, static_cast<int>(seeds) / 4) << "no row supports most problems";
}

TEST_P(GpuAttention, PlainMatchesTheOracle) {
  all_match(40, [](AttentionOptions& o) {
    o.mask = o.packed_q = o.packed_kv = o.positions = o.sinks = o.softcap = Presence::never;
  });
}

TEST_P(GpuAttention, EverythingDenseMatchesTheOracle) {
  all_match(60, [](AttentionOptions& o) { o.mask = Presence::never; });
}

/// Queries, keys and values in e4m3, with factors. Keys of values are contiguous in some problems,
/// whose rows do not transpose them.
TEST_P(GpuAttention, Fp8MatchesTheOracle) {
  if (GetParam() == Backend::sm80) GTEST_SKIP() << "rows of sm80_attention do not support FP8";
  all_match(80, [](AttentionOptions& o) {
    o.dtype = DType::e4m3;
    o.dims = {16, 64, 64, 80, 96, 128, 128, 192, 256};
    o.longest = 600;
  });
  all_match(100, [](AttentionOptions& o) {
    o.dtype = DType::e4m3;
    o.v_by_keys = Presence::always;
    o.packed_kv = Presence::never;
    o.layout = generate::Layout::aligned;
    o.dims = {16, 64, 64, 80, 96, 128, 128, 192, 256};
    o.longest = 600;
    o.largest_batch = 4;
  });
  for (const std::int64_t page : {64, 128, 192})
    all_match(20, [page](AttentionOptions& o) {
      o.dtype = DType::e4m3;
      o.paged = Presence::always;
      o.page = page;
      o.dims = {64, 128};
      o.longest = 3 * page + 100;
    });
}

TEST_P(GpuAttention, PackedSequencesMatchTheOracle) {
  all_match(40, [](AttentionOptions& o) {
    o.packed_q = o.packed_kv = Presence::always;
    o.largest_batch = 5;
    o.longest = 200;
  });
}

/// Pages of whole pieces of keys, in any order; where the family reads them, smaller ones.
TEST_P(GpuAttention, PagesMatchTheOracle) {
  std::vector<std::int64_t> pages{64, 128, 192, 256};
  if (GetParam() == Backend::sm80) pages.insert(pages.end(), {8, 16, 32});
  for (const std::int64_t page : pages)
    all_match(40, [page](AttentionOptions& o) {
      o.paged = Presence::always;
      o.page = page;
      o.longest = 3 * page + 100;
    });
}

/// With windows as well: consumers join and leave a walk at steps that missing pages shift.
TEST_P(GpuAttention, PagesThatDoNotExistAreSkipped) {
  int skipped = 0;
  for (std::uint64_t seed = 0; seed < 48; ++seed) {
    AttentionOptions options = options_for(seed);
    options.paged = Presence::always;
    options.page = seed % 2 == 0 ? 64 : 128;
    if (GetParam() == Backend::sm80 && seed % 3 == 0) options.page = 8 << seed % 4 % 3;
    options.packed_q = options.mask = Presence::never;
    options.longest = 1000;
    skipped += gpu_test::expect_missing_pages_are_skipped(*attention_case(seed, options),
                                                          gpu_test::attention_family());
  }
  EXPECT_GT(skipped, 40);
}

TEST_P(GpuAttention, BlockMasksMatchTheOracle) {
  all_match(80, [](AttentionOptions& o) { o.mask = Presence::always; });
}

/// The heads of a group share the lists of their KV head. With blocks of 64 queries, two heads are
/// folded into a tile, or four where tiles are larger. Three heads cannot be folded. Problems of
/// few tiles run by rows whose tiles have 64 queries, which need no fold.
TEST_P(GpuAttention, ListsOfHeadsOfKeysMatchTheOracle) {
  for (const std::int64_t group : {2, 3, 4, 8})
    for (std::uint64_t seed = 0; seed < 15; ++seed) {
      AttentionOptions options = options_for(seed);
      options.mask = options.blocks.by_keys = Presence::always;
      options.group = group;
      options.largest_kv_heads = 3;
      options.blocks.block_q = options.blocks.block_kv = 64;
      options.dims = {64, 72, 128};
      options.longest = 500;
      const auto c = attention_case(seed, options);
      const OnGpu gpu(*c);
      const AttentionProblem problem = gpu.moved(c->problem);
      const auto row = gpu_test::fastest(problem);
      if (row && c->problem.q.numel() > 0 && row->kernel.find("_q64_") == std::string::npos) {
        const bool folded = row->why.find(" heads folded into rows") != std::string::npos;
        EXPECT_EQ(folded, group != 3) << c->text << "\n" << row->kernel << ": " << row->why;
      }
      EXPECT_GT(matches_oracle(*c), 0) << c->text;
    }
}

/// Few queries over many keys: the KV is split across CTAs, and some parts have no visible key.
TEST_P(GpuAttention, DividedWalksMatchTheOracle) {
  int divided = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    AttentionOptions options = options_for(seed);
    options.packed_q = Presence::never;
    options.longest = 12000;
    options.largest_batch = options.largest_kv_heads = 1;
    options.dims = {64, 128};
    options.max_queries = 40;
    const auto c = attention_case(seed, options);
    const OnGpu gpu(*c);
    if (c->problem.q.numel() == 0) continue;
    const AttentionProblem problem = gpu.moved(c->problem);
    const auto row = gpu_test::fastest(problem);
    divided += row && row->why.find("keys of the last") != std::string::npos;
    matches_oracle(*c);
  }
  EXPECT_GT(divided, 3);
}

/// Scores grow along the keys, so much that P relative to the first row max is finite or overflows.
TEST_P(GpuAttention, RisingScoresMatchTheOracle) {
  all_match(60, [](AttentionOptions& o) {
    o.rising = true;
    o.longest = 700;
    o.largest_batch = o.largest_kv_heads = 1;
  });
}

/// All scores but those of the first keys are at the cap, so their P are equal and rounded the same
/// way.
TEST_P(GpuAttention, ScoresAtTheirCapMatchTheOracle) {
  all_match(60, [](AttentionOptions& o) {
    o.saturating = true;
    o.softcap = Presence::always;
    o.sinks = Presence::never;
    o.longest = 700;
    o.largest_batch = o.largest_kv_heads = 1;
  });
}

TEST_P(GpuAttention, BadValuesSpreadAsTheOracleSays) {
  all_match(40, [](AttentionOptions& o) {
    o.bad_values = true;
    o.dtype = DType::bf16;  // f16 makes a small P zero, and zero times infinity is NaN
    o.positions = o.softcap = Presence::never;
  });
}

TEST_P(GpuAttention, SameBitsEveryTime) {
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
    attention(problem, gpu_test::on_backend());
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    gpu.download();
    if (i == 0) first = c->memory.outputs();
    EXPECT_EQ(c->memory.outputs(), first) << "run " << i;
  }
}

/// More tiles than thread blocks, lists of very different lengths, and replays with other lists in
/// the same buffers.
TEST_P(GpuAttention, GraphsReplayWithAnotherMask) {
  for (const std::uint64_t seed : {3u, 11u}) {
    AttentionOptions options = options_for(seed);
    options.mask = Presence::always;
    options.packed_q = options.packed_kv = options.positions = Presence::never;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    c->memory.arm();
    if (c->problem.q.numel() == 0 ||
        !explain(problem, device_facts(problem.q.device), gpu_test::on_backend()).supported)
      continue;
    gpu.upload();
    const gpu_test::Captured captured(plan(problem, gpu_test::on_backend()), problem);
    for (int round = 0; round < 3; ++round) {
      c->memory.reset();
      // Each round removes an entry from every list.
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

/// Rows before the first offset and from the last one on are zeros in out and -inf in lse. The
/// device reads the offsets in each replay.
TEST_P(GpuAttention, RowsOfNoSequenceAreZero) {
  int taken = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    AttentionOptions options = options_for(seed);
    options.packed_q = Presence::always;
    options.mask = options.positions = Presence::never;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    c->memory.arm();
    if (c->problem.q.numel() == 0 ||
        !explain(problem, device_facts(problem.q.device), gpu_test::on_backend()).supported)
      continue;
    ++taken;
    gpu.upload();
    const gpu_test::Captured captured(plan(problem, gpu_test::on_backend()), problem);
    for (int round = 0; round < 3; ++round) {
      c->memory.reset();
      // Each round, the first and the last sequence lose a row or more.
      oracle::DenseArray offsets = oracle::read(c->problem.q_offsets);
      if (round > 0 && offsets.values.size() > 1) {
        double& first = offsets.values[0];
        double& last = offsets.values.back();
        first = std::min(first + 1, offsets.values[1]);
        last = std::max(last - 5, offsets.values[offsets.values.size() - 2]);
        oracle::write(c->problem.q_offsets, offsets);
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
  EXPECT_GT(taken, 6);
}

TEST_P(GpuAttention, HostileLists) {
  int ran = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    AttentionOptions options = options_for(seed);
    options.mask = Presence::always;
    options.paged = seed % 3 == 2 ? Presence::always : Presence::never;
    options.page = 64;
    options.dims = {64, 128};
    gpu_test::expect_hostile_lists_are_harmless(*attention_case(seed, options), seed,
                                                [&](int, const AttentionProblem&) { ++ran; });
  }
  EXPECT_GT(ran, 20);
}

TEST_P(GpuAttention, RefusesWithReasons) {
  const Room room(1 << 20);
  const Device device{DeviceKind::cuda, 0};
  const auto tensor_of = [&](std::int64_t dim) {
    return tensor(room.buffer().data, DType::bf16, {1, 64, 2, dim}, device);
  };
  AttentionProblem problem;
  problem.q = problem.k = problem.v = problem.out = tensor_of(65);
  problem.out.data = static_cast<std::byte*>(problem.out.data) + (1 << 19);
  try {
    attention(problem, gpu_test::on_backend());
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a multiple of 8"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera
