#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/attention.hpp"

// Masks with a list per 64 queries: each row group of a tile has its own list, and consumers skip
// steps that only other lists need.
namespace tessera {
namespace {

using generate::attention_case;
using generate::AttentionOptions;
using generate::Presence;
using gpu_test::matches_oracle;
using gpu_test::OnGpu;

class GpuAttentionRowGroups : public gpu_test::OfBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, GpuAttentionRowGroups, gpu_test::gpu_backends(),
                         gpu_test::backend_name);

/// Whether a row that walks several lists together supports a problem. sm80 has no such rows: a row
/// that walks the lists as they are.
bool walks_row_groups(const AttentionProblem& problem) {
  const bool together = gpu_test::backend_under_test() == Backend::sm90;
  for (const int row : gpu_test::attention_rows()) {
    const bool walks =
        together ? gpu_test::row_at(row).tile.row_groups > 1 : !gpu_test::composes(row, problem);
    if (walks && gpu_test::takes(row, problem)) return true;
  }
  return false;
}

AttentionOptions row_group_options(std::uint64_t seed, std::int64_t block_q,
                                   std::int64_t block_kv) {
  AttentionOptions options = gpu_test::options_for(seed);
  options.mask = Presence::always;
  options.dims = {32, 64, 72, 128};
  options.longest = 500;
  options.blocks.block_q = block_q;
  options.blocks.block_kv = block_kv;
  return options;
}

constexpr std::int64_t kBlocksQ[] = {64, 192, 320}, kBlocksKv[] = {64, 128, 192};

/// Runs a case. Returns whether lists were walked together.
bool match_row_groups(generate::Case<AttentionProblem>& c,
                      gpu_test::Rows rows = gpu_test::Rows::all) {
  const OnGpu gpu(c);
  const bool walked = walks_row_groups(gpu.moved(c.problem));
  matches_oracle(c, rows);
  return walked;
}

TEST_P(GpuAttentionRowGroups, DrawnListsMatchTheOracle) {
  int walked = 0;
  for (std::uint64_t seed = 0; seed < 90; ++seed) {
    const AttentionOptions options =
        row_group_options(seed, kBlocksQ[seed % 3], kBlocksKv[seed / 3 % 3]);
    walked += match_row_groups(*attention_case(seed, options));
  }
  EXPECT_GT(walked, 60);
}

TEST_P(GpuAttentionRowGroups, DrawnListsOfFp8MatchTheOracle) {
  if (GetParam() == Backend::sm80) GTEST_SKIP() << "rows of sm80_attention do not support FP8";
  int walked = 0;
  for (std::uint64_t seed = 0; seed < 90; ++seed) {
    AttentionOptions options = row_group_options(seed, kBlocksQ[seed % 3], kBlocksKv[seed / 3 % 3]);
    options.dtype = DType::e4m3;
    options.dims = {32, 64, 128, 192, 256};
    options.v_by_keys = seed % 2 == 0 ? Presence::maybe : Presence::never;
    walked += match_row_groups(*attention_case(seed, options));
  }
  EXPECT_GT(walked, 40);
}

/// A pattern: whether the list of a row names a column of blocks.
struct Kind {
  const char* name;
  std::function<bool(std::int64_t, std::int64_t)> names;
};

/// Pairs of adjacent lists: in blocks of 64 rows, an even row of blocks and the next one share a
/// tile.
TEST_P(GpuAttentionRowGroups, EveryKindOfNeighboursMatchesTheOracle) {
  const Kind kinds[] = {
      {"all", [](std::int64_t, std::int64_t) { return true; }},
      {"none", [](std::int64_t, std::int64_t) { return false; }},
      {"equal", [](std::int64_t, std::int64_t col) { return col % 3 != 1; }},
      {"disjoint", [](std::int64_t row, std::int64_t col) { return (row + col) % 2 == 0; }},
      {"banded", [](std::int64_t row, std::int64_t col) { return std::abs(row - col) <= 1; }},
      {"even rows are empty", [](std::int64_t row, std::int64_t) { return row % 2 == 1; }},
      {"odd rows are empty", [](std::int64_t row, std::int64_t) { return row % 2 == 0; }},
      {"even rows end first",
       [](std::int64_t row, std::int64_t col) { return row % 2 == 1 || col < 2; }},
      {"even rows begin last",
       [](std::int64_t row, std::int64_t col) { return (col >= 2) == (row % 2 == 0); }},
      {"long runs are skipped",
       [](std::int64_t row, std::int64_t col) { return row % 2 == 0 || col == 0 || col == 6; }},
      {"whole tiles are empty", [](std::int64_t row, std::int64_t) { return row / 2 % 2 == 1; }},
  };
  int walked = 0;
  std::uint64_t seed = 1000;
  for (const auto& kind : kinds)
    for (const std::int64_t block_q : kBlocksQ)
      for (const std::int64_t block_kv : kBlocksKv) {
        AttentionOptions options = row_group_options(++seed, block_q, block_kv);
        options.blocks.names = kind.names;
        options.largest_kv_heads = 1;
        const auto c = attention_case(seed, options);
        c->text += std::string(", ") + kind.name;
        walked += match_row_groups(*c);
      }
  EXPECT_GT(walked, 60);
}

/// Both pieces of a step are for the same row groups. A step that lacks its second piece delays
/// later steps, and is published without it before too many steps wait. That takes long walks with
/// few steps that only one row group needs.
TEST_P(GpuAttentionRowGroups, LongWalksOfFewOwnBlocksMatchTheOracle) {
  const Kind kinds[] = {
      {"one block alone, then shared",
       [](std::int64_t row, std::int64_t col) { return row % 2 == 0 || col != 0; }},
      {"shared, and alternately alone",
       [](std::int64_t row, std::int64_t col) { return col % 45 != (row % 2 == 0 ? 7 : 29); }},
      {"alone, and shared far apart",
       [](std::int64_t row, std::int64_t col) { return row % 2 == 0 || col % 67 == 2; }},
      {"unrelated", [](std::int64_t row, std::int64_t col) { return (row + 3) * col % 7 < 2; }},
      {"equal except for a few",
       [](std::int64_t row, std::int64_t col) { return col % 3 != 1 || (row + col) % 11 == 0; }},
  };
  std::uint64_t seed = 7000;
  for (const auto& kind : kinds) {
    int walked = 0;
    for (const std::uint64_t end = seed + 100; seed < end && walked < 2; ++seed) {
      AttentionOptions options = row_group_options(seed, 64, 64);
      options.blocks.names = kind.names;
      options.longest = 12000;
      options.max_queries = 256;
      options.packed_q = options.packed_kv = options.positions = Presence::never;
      options.largest_batch = options.largest_kv_heads = options.group = 1;
      options.dims = {128};
      const auto c = attention_case(seed, options);
      const planning::AttentionShape shape = planning::shape_of(c->problem);
      if (shape.q_length <= 64 || shape.kv_length < 5000) continue;
      c->text += std::string(", ") + kind.name;
      walked += match_row_groups(*c);
    }
    EXPECT_EQ(walked, 2) << kind.name;
  }
}

/// Keys that one row group lists and sees, and the other one does not.
TEST_P(GpuAttentionRowGroups, PositionsMatchTheOracle) {
  int walked = 0;
  for (std::uint64_t seed = 2000; seed < 2060; ++seed) {
    AttentionOptions options = row_group_options(seed, kBlocksQ[seed % 3], 64);
    options.positions = Presence::always;
    options.packed_q = options.packed_kv = seed % 2 == 0 ? Presence::always : Presence::never;
    options.blocks.names = [](std::int64_t row, std::int64_t col) { return (row + col) % 2 == 0; };
    walked += match_row_groups(*attention_case(seed, options));
  }
  EXPECT_GT(walked, 35);
}

/// Two row groups share a block that the row group between them does not list, so no query sees
/// some of the block's keys.
TEST_P(GpuAttentionRowGroups, NarrowWindowsLeaveGapsBetweenRowGroups) {
  int walked = 0;
  for (std::uint64_t seed = 5000; seed < 5040; ++seed) {
    AttentionOptions options = row_group_options(seed, 64, kBlocksKv[1 + seed % 2]);
    options.positions = Presence::always;
    options.longest_window = 8;
    options.dims = {64};
    walked += match_row_groups(*attention_case(seed, options));
  }
  EXPECT_GT(walked, 20);
}

TEST_P(GpuAttentionRowGroups, RisingScoresMatchTheOracle) {
  int walked = 0;
  for (std::uint64_t seed = 6000; seed < 6030; ++seed) {
    AttentionOptions options = row_group_options(seed, kBlocksQ[seed % 3], 64);
    options.rising = true;
    options.longest = 700;
    options.largest_kv_heads = 1;
    walked += match_row_groups(*attention_case(seed, options));
  }
  EXPECT_GT(walked, 15);
}

TEST_P(GpuAttentionRowGroups, BadValuesSpreadAsTheOracleSays) {
  int walked = 0;
  for (std::uint64_t seed = 3000; seed < 3030; ++seed) {
    AttentionOptions options = row_group_options(seed, 64, kBlocksKv[seed % 3]);
    options.bad_values = true;
    options.dtype = DType::bf16;  // f16 makes a small P zero, and zero times infinity is NaN
    options.positions = options.softcap = Presence::never;
    walked += match_row_groups(*attention_case(seed, options), gpu_test::Rows::without_composing);
  }
  EXPECT_GT(walked, 18);
}

/// More tiles than thread blocks, so that consumers advance from tile to tile independently.
TEST_P(GpuAttentionRowGroups, ManyTilesGiveTheSameBitsEveryTime) {
  int found = 0;
  for (std::uint64_t seed = 4000; seed < 4030 && found < 2; ++seed) {
    AttentionOptions options = row_group_options(seed, 64, 64);
    options.packed_q = options.packed_kv = Presence::never;
    options.dims = {64, 128};
    options.longest = 900;
    options.largest_kv_heads = 20;
    const auto c = attention_case(seed, options);
    const planning::AttentionShape shape = planning::shape_of(c->problem);
    if (shape.batch * shape.heads * shape.q_length < 150 * 128) continue;
    const OnGpu gpu(*c);
    const AttentionProblem problem = gpu.moved(c->problem);
    if (!walks_row_groups(problem)) continue;
    ++found;
    matches_oracle(*c);
    for (const int row : gpu_test::attention_rows()) {
      if (!gpu_test::takes(row, problem)) continue;
      std::vector<std::byte> first;
      for (int i = 0; i < 20; ++i) {
        c->memory.reset();
        gpu.upload();
        gpu_test::run_by(row, problem);
        gpu.download();
        if (i == 0) first = c->memory.outputs();
        EXPECT_EQ(c->memory.outputs(), first) << c->text << " by " << gpu_test::name_of(row);
      }
    }
  }
  EXPECT_EQ(found, 2);
}

TEST_P(GpuAttentionRowGroups, HostileLists) {
  int walked = 0;
  for (std::uint64_t seed = 5000; seed < 5030; ++seed) {
    const auto c =
        attention_case(seed, row_group_options(seed, kBlocksQ[seed % 3], kBlocksKv[seed % 2]));
    gpu_test::expect_hostile_lists_are_harmless(
        *c, seed,
        [&](int, const AttentionProblem& problem) { walked += walks_row_groups(problem); });
  }
  EXPECT_GT(walked, 20);
}

}  // namespace
}  // namespace tessera
