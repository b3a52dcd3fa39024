// Decode rows, against the oracle: pages, contiguous and packed keys, few queries, lists.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/decode.hpp"

namespace tessera {
namespace {

using namespace gpu_test::decode;  // NOLINT: what the tests of decode share

/// Every row that supports a problem matches the oracle; most problems are supported.
void all_match(std::uint64_t seeds, const std::function<void(AttentionOptions&)>& change) {
  int taken = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    AttentionOptions options = decode_options(seed);
    change(options);
    const Rows rows = options.bad_values ? Rows::without_composing : Rows::all;
    taken += gpu_test::matches_oracle(*attention_case(seed, options), rows, kFamily);
  }
  EXPECT_GT(taken, static_cast<int>(seeds)) << "no row supports most problems";
}

/// The simplest case first: if this fails, the others say little.
TEST(GpuDecode, OneQueryOverContiguousKeys) {
  SKIP_UNLESS_HOPPER();
  all_match(24, [](AttentionOptions& o) {
    o.paged = o.packed_q = o.packed_kv = o.positions = o.sinks = o.softcap = Presence::never;
    o.max_queries = 1;
    o.dims = {64, 128};
  });
}

TEST(GpuDecode, PlainPages) {
  SKIP_UNLESS_HOPPER();
  all_match(36, [](AttentionOptions& o) {
    o.paged = Presence::always;
    o.packed_q = o.positions = o.sinks = o.softcap = Presence::never;
  });
}

TEST(GpuDecode, PagesWithEverything) {
  SKIP_UNLESS_HOPPER();
  all_match(90, [](AttentionOptions& o) {
    o.paged = Presence::always;
    o.longest = 3 * o.page + 40;
  });
}

TEST(GpuDecode, ContiguousAndPackedKeysWithEverything) {
  SKIP_UNLESS_HOPPER();
  all_match(80, [](AttentionOptions& o) { o.paged = Presence::never; });
}

TEST(GpuDecode, PackedQueriesAndKeys) {
  SKIP_UNLESS_HOPPER();
  all_match(40, [](AttentionOptions& o) {
    o.packed_q = o.packed_kv = Presence::always;
    o.paged = Presence::never;
    o.longest = 150;
    o.largest_batch = 6;
  });
}

/// Keys and values in e4m3, with factors of every form or without.
TEST(GpuDecode, NarrowKeys) {
  SKIP_UNLESS_HOPPER();
  all_match(60, [](AttentionOptions& o) {
    o.narrow_keys = Presence::always;
    o.paged = o.packed_q = o.positions = o.sinks = o.softcap = Presence::never;
  });
  all_match(120, [](AttentionOptions& o) {
    o.narrow_keys = o.paged = Presence::always;
    o.longest = 3 * o.page + 40;
  });
  all_match(80, [](AttentionOptions& o) {
    o.narrow_keys = Presence::always;
    o.mask = o.blocks.by_keys = Presence::maybe;
    o.longest = 700;
  });
}

/// Queries in e4m3 as well.
TEST(GpuDecode, NarrowQueries) {
  SKIP_UNLESS_HOPPER();
  all_match(60, [](AttentionOptions& o) {
    o.dtype = DType::e4m3;
    o.paged = o.packed_q = o.positions = o.sinks = o.softcap = Presence::never;
  });
  all_match(120, [](AttentionOptions& o) {
    o.dtype = DType::e4m3;
    o.paged = Presence::always;
    o.longest = 3 * o.page + 40;
  });
  all_match(80, [](AttentionOptions& o) {
    o.dtype = DType::e4m3;
    o.mask = o.blocks.by_keys = Presence::maybe;
    o.longest = 700;
  });
}

/// Every group of heads, with few and many rows per tile, folds that divide the tile and others.
TEST(GpuDecode, GroupsAndQueries) {
  SKIP_UNLESS_HOPPER();
  std::uint64_t seed = 0;
  int taken = 0;
  for (const std::int64_t group : {1, 2, 3, 5, 7, 8, 12, 16, 17, 32, 48, 64})
    for (const std::int64_t queries : {1, 2, 3, 4, 7, 16}) {
      AttentionOptions options = decode_options(seed++);
      options.group = group;
      options.max_queries = queries;
      options.largest_batch = options.largest_kv_heads = 2;
      options.longest = 200;
      options.dims = {64, 128};
      taken += gpu_test::matches_oracle(*attention_case(seed, options), Rows::all, kFamily);
    }
  EXPECT_GT(taken, 100);
}

/// More queries than a tile holds.
TEST(GpuDecode, ManyQueries) {
  SKIP_UNLESS_HOPPER();
  all_match(30, [](AttentionOptions& o) {
    o.max_queries = 0;
    o.longest = 250;
  });
}

/// Few tiles with long walks: every tile is split across many CTAs.
TEST(GpuDecode, LongKeysAreSplit) {
  SKIP_UNLESS_HOPPER();
  all_match(24, [](AttentionOptions& o) {
    o.packed_q = Presence::never;
    o.longest = 12000;
    o.max_queries = 4;
    o.largest_batch = o.largest_kv_heads = 1;
    o.dims = {64, 128};
  });
}

/// Few CTAs: long parts of tiles, and many tiles for each.
TEST(GpuDecode, FewCtas) {
  SKIP_UNLESS_HOPPER();
  for (const int units : {1, 2, 3}) {
    const gpu_test::FewUnits few(units);
    all_match(12, [](AttentionOptions& o) {
      o.packed_q = Presence::never;
      o.longest = 12000;
      o.max_queries = 4;
      o.largest_batch = o.largest_kv_heads = 1;
      o.dims = {64, 128};
    });
    all_match(12, [](AttentionOptions& o) {
      o.narrow_keys = o.paged = Presence::always;
      o.mask = o.blocks.by_keys = Presence::maybe;
      o.longest = 4000;
      o.largest_batch = 2;
    });
    all_match(12, [](AttentionOptions& o) {
      o.largest_batch = 300;
      o.longest = 70;
      o.max_queries = 1;
      o.largest_kv_heads = 1;
      o.dims = {64};
    });
  }
}

/// More lists than a CTA counts at once: one for each of many sequences and key heads.
TEST(GpuDecode, ManyLists) {
  SKIP_UNLESS_HOPPER();
  all_match(12, [](AttentionOptions& o) {
    o.mask = Presence::always;
    o.packed_q = Presence::never;
    o.largest_batch = 160;
    o.largest_kv_heads = 8;
    o.max_queries = 1;
    o.longest = 300;
    o.dims = {64};
  });
}

/// Many sequences of very different lengths, some empty: CTAs have several tiles each.
TEST(GpuDecode, ManySequences) {
  SKIP_UNLESS_HOPPER();
  all_match(24, [](AttentionOptions& o) {
    o.largest_batch = 60;
    o.longest = 400;
    o.max_queries = 2;
    o.dims = {64};
  });
}

/// Fixes the positions of the queries. By default the last query is at the last key, so a shorter
/// sequence would move windows to keys that the problem did not select, which are NaN.
void fix_positions(generate::Case<AttentionProblem>& c) {
  AttentionProblem& p = c.problem;
  if (p.q_position) return;
  const oracle::DenseArray ends = oracle::read(p.kv_end);
  const oracle::DenseArray first =
      p.kv_position ? oracle::read(p.kv_position) : oracle::DenseArray{};
  std::vector<std::int64_t> positions;
  for (std::size_t b = 0; b < ends.values.size(); ++b)
    positions.push_back(
        static_cast<std::int64_t>(ends.values[b] + (first.values.empty() ? 0 : first.values[b])) -
        p.q.size(1));
  p.q_position =
      c.memory.list(DType::i32, {static_cast<std::int64_t>(positions.size())}, positions);
}

/// Lengths of one key less and one more than pages and pieces.
TEST(GpuDecode, LengthsAroundThePageSize) {
  SKIP_UNLESS_HOPPER();
  for (const std::int64_t page : kPages)
    for (const std::int64_t extra : {-1, 0, 1}) {
      AttentionOptions options = decode_options(static_cast<std::uint64_t>(page + extra));
      options.paged = Presence::always;
      options.packed_q = Presence::never;
      options.page = page;
      options.largest_batch = 4;
      options.longest = 2 * page + 3;
      options.dims = {128};
      const auto c = attention_case(static_cast<std::uint64_t>(page), options);
      fix_positions(*c);
      oracle::DenseArray ends = oracle::read(c->problem.kv_end);
      const oracle::DenseArray begins =
          c->problem.kv_begin ? oracle::read(c->problem.kv_begin) : oracle::DenseArray{};
      // Only shorter, as keys beyond a sequence are NaN.
      for (std::size_t b = 0; b < ends.values.size(); ++b)
        for (const double wanted : {2.0 * page + extra, 1.0 * page + extra, 64.0 + extra})
          if (wanted <= ends.values[b] && (begins.empty() || wanted >= begins.values[b])) {
            ends.values[b] = wanted;
            break;
          }
      oracle::write(c->problem.kv_end, ends);
      c->text += ", page " + std::to_string(page) + ", extra " + std::to_string(extra);
      gpu_test::matches_oracle(*c, Rows::all, kFamily);
    }
}

/// Lists over pages and contiguous keys, in blocks that tiles fit and blocks that are composed.
TEST(GpuDecode, BlockMasksOfSixtyFourKeys) {
  SKIP_UNLESS_HOPPER();
  all_match(80, [](AttentionOptions& o) {
    o.mask = Presence::always;
    o.blocks.smallest_block = o.blocks.block_step = 64;
  });
}
TEST(GpuDecode, BlockMasksOfAnyBlocks) {
  SKIP_UNLESS_HOPPER();
  all_match(80, [](AttentionOptions& o) {
    o.mask = Presence::always;
    o.blocks.smallest_block = o.blocks.block_step = 1;
  });
}
TEST(GpuDecode, ListsPerKeyHeadOverPages) {
  SKIP_UNLESS_HOPPER();
  std::uint64_t seed = 0;
  int taken = 0;
  for (const std::int64_t block_q : {1, 2, 4, 16, 64})
    for (const std::int64_t page : {16, 64, 256})
      for (const std::int64_t group : {1, 4, 6, 8}) {
        AttentionOptions options = decode_options(++seed);
        options.mask = options.blocks.by_keys = options.paged = Presence::always;
        options.packed_q = Presence::never;
        options.page = page;
        options.group = group;
        options.max_queries = 5;
        options.longest = 700;
        options.blocks.block_q = block_q;
        options.blocks.block_kv = seed % 2 == 0 ? 64 : 128;
        options.dims = {64, 128};
        taken += gpu_test::matches_oracle(*attention_case(seed, options), Rows::all, kFamily);
      }
  EXPECT_GT(taken, 100);
}

TEST(GpuDecode, RisingScores) {
  SKIP_UNLESS_HOPPER();
  all_match(40, [](AttentionOptions& o) {
    o.rising = true;
    o.paged = Presence::never;
    o.longest = 700;
    o.largest_batch = o.largest_kv_heads = 1;
  });
}

TEST(GpuDecode, ScoresAtTheirCap) {
  SKIP_UNLESS_HOPPER();
  all_match(40, [](AttentionOptions& o) {
    o.saturating = true;
    o.softcap = Presence::always;
    o.sinks = o.paged = Presence::never;
    o.longest = 700;
    o.largest_batch = o.largest_kv_heads = 1;
  });
}

TEST(GpuDecode, BadValuesSpreadAsTheOracleSays) {
  SKIP_UNLESS_HOPPER();
  all_match(40, [](AttentionOptions& o) {
    o.bad_values = true;
    o.dtype = DType::bf16;  // f16 makes a small P zero, and zero times infinity is NaN
    o.positions = o.softcap = Presence::never;
  });
}

/// Exchanges the contents of pages, and the entries of the table accordingly.
void exchange_pages(AttentionProblem& p, generate::Random& random) {
  const std::int64_t pages = p.k.size(0);
  if (pages == 0) return;
  std::vector<std::int64_t> to(static_cast<std::size_t>(pages));
  std::iota(to.begin(), to.end(), std::int64_t{0});
  random.shuffle(to);
  for (const Tensor& pool : {p.k, p.v}) {
    const oracle::DenseArray from = oracle::read(pool);
    oracle::DenseArray moved = from;
    const std::size_t each = from.values.size() / static_cast<std::size_t>(pages);
    for (std::size_t page = 0; page < to.size(); ++page)
      std::copy_n(from.values.begin() + static_cast<std::ptrdiff_t>(page * each), each,
                  moved.values.begin() +
                      static_cast<std::ptrdiff_t>(static_cast<std::size_t>(to[page]) * each));
    oracle::write(pool, moved);
  }
  oracle::DenseArray table = oracle::read(p.page_table);
  for (double& entry : table.values)
    if (entry >= 0) entry = static_cast<double>(to[static_cast<std::size_t>(entry)]);
  oracle::write(p.page_table, table);
}

/// One captured graph serves other lengths, tables and lists in the same buffers.
TEST(GpuDecode, GraphsReplayWithOtherLengthsTablesAndLists) {
  SKIP_UNLESS_HOPPER();
  int ran = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    AttentionOptions options = decode_options(seed);
    options.paged = Presence::always;
    options.packed_q = Presence::never;
    options.mask = seed % 2 == 0 ? Presence::never : Presence::always;
    options.longest = seed % 4 < 2 ? 300 : 4000;
    options.max_queries = 2;
    options.largest_batch = 4;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    fix_positions(*c);
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    c->memory.arm();
    if (c->problem.q.numel() == 0) continue;
    const oracle::DenseArray ends = oracle::read(c->problem.kv_end);
    generate::Random random(seed);
    for (const int row : rows_of(kFamily)) {
      if (!takes(row, problem)) continue;
      ++ran;
      gpu.upload();
      const gpu_test::Captured captured(gpu_test::plan_by(row, problem), problem);
      for (int round = 0; round < 4; ++round) {
        c->memory.reset();
        exchange_pages(c->problem, random);
        oracle::DenseArray now = ends;
        for (std::size_t b = 0; b < now.values.size() && round > 0 && round < 3; ++b) {
          const double begin =
              c->problem.kv_begin ? oracle::read(c->problem.kv_begin).values[b] : 0;
          const auto keys = static_cast<std::int64_t>(now.values[b] - begin);
          now.values[b] = begin + static_cast<double>(random.between(0, keys));
        }
        oracle::write(c->problem.kv_end, now);
        for (const Tensor& counts : {c->problem.mask.full.counts, c->problem.mask.partial.counts}) {
          if (!counts || round != 3) continue;
          oracle::DenseArray values = oracle::read(counts);
          for (double& count : values.values) count = std::max(0.0, count - 1);
          oracle::write(counts, values);
        }
        c->memory.arm();
        gpu.upload();
        captured.launch();
        gpu.download();
        EXPECT_EQ(c->memory.damage(), "") << c->text;
        const oracle::Comparison result = oracle::check(c->problem);
        EXPECT_TRUE(result.ok) << c->text << " by " << gpu_test::name_of(row) << ", round " << round
                               << ": " << result.message;
      }
      oracle::write(c->problem.kv_end, ends);
    }
  }
  EXPECT_GT(ran, 20);
}

/// Unchecked lists: offsets, lengths, counts, blocks and pages out of range lead nowhere outside.
TEST(GpuDecode, HostileListsAndTables) {
  SKIP_UNLESS_HOPPER();
  int ran = 0;
  for (std::uint64_t seed = 0; seed < 36; ++seed) {
    AttentionOptions options = decode_options(seed);
    options.mask = seed % 2 == 0 ? Presence::always : Presence::never;
    options.paged = seed % 3 == 0 ? Presence::never : Presence::always;
    options.dims = {64, 128};
    const auto c = attention_case(seed, options);
    c->problem.batch_invariant = seed % 5 < 2;
    gpu_test::expect_hostile_lists_are_harmless(
        *c, seed, [&](int, const AttentionProblem&) { ++ran; }, kFamily);
  }
  EXPECT_GT(ran, 40);
}

TEST(GpuDecode, PagesThatDoNotExistAreSkipped) {
  SKIP_UNLESS_HOPPER();
  int skipped = 0;
  for (std::uint64_t seed = 0; seed < 18; ++seed) {
    AttentionOptions options = decode_options(seed);
    options.paged = Presence::always;
    options.packed_q = options.positions = Presence::never;
    options.longest = 1000;
    options.dims = {64, 128};
    skipped += gpu_test::expect_missing_pages_are_skipped(*attention_case(seed, options), kFamily);
  }
  EXPECT_GT(skipped, 20);
}

/// Without a named row, few queries over pages are run by this family.
TEST(GpuDecode, IsChosenForPages) {
  SKIP_UNLESS_HOPPER();
  AttentionOptions options = decode_options(1);
  options.paged = Presence::always;
  options.dims = {128};
  const auto c = attention_case(4, options);
  const OnGpu gpu(*c);
  const AttentionProblem problem = gpu.moved(c->problem);
  c->memory.arm();
  gpu.upload();
  const Explanation e = explain(problem, device_facts(problem.q.device));
  EXPECT_EQ(std::string(e.plan.kernel_name).find(kFamily), 0u) << to_text(e);
  attention(problem);
  gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  gpu.download();
  const oracle::Comparison result = oracle::check(c->problem);
  EXPECT_TRUE(result.ok) << c->text << ": " << result.message;
}

}  // namespace
}  // namespace tessera
