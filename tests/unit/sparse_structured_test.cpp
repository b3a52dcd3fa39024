// Generated patterns of pruned weights, meshes, graphs, long contexts and videos: against a second
// implementation of their rules, and hashes that must never change.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/pattern.hpp>

#include "src/sparse/power_law.hpp"
#include "tests/unit/error_text.hpp"
#include "tests/unit/pattern_hash.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names
using tessera::testing::contains;
using tessera::testing::error_text;
using tessera::testing::hash;
using Sizes = std::array<std::int64_t, 3>;

std::int64_t length(const Pattern& pattern, std::int64_t row) {
  const auto i = static_cast<std::size_t>(row);
  return pattern.offsets[i + 1] - pattern.offsets[i];
}

// A new value here is a new version of the generator: results are compared over years.
TEST(Structured, AreVersionOne) {
  EXPECT_EQ(hash(patterns::power_law_graph(96, 96, 0.05, 1.0, 3)), 0xcb3a60d5e3dd0dd7u);
  EXPECT_EQ(hash(patterns::power_law_graph(40, 64, 0.1, 0.5, 4)), 0xe37de0da897c5508u);
  EXPECT_EQ(hash(patterns::n_of_m(32, 64, 2, 8, 1)), 0x2e37e0d8fb69013eu);
  EXPECT_EQ(hash(patterns::n_of_m(32, 30, 1, 4, 2)), 0x405fca0afd920eaau);
  EXPECT_EQ(hash(patterns::vertical_slash(64, 64, 4, 6, true, 1)), 0xa34b5aff4ef0c4adu);
  EXPECT_EQ(hash(patterns::vertical_slash(48, 64, 4, 6, false, 2)), 0x4b83171f9dd87af5u);
  EXPECT_EQ(hash(patterns::heavy_hitters(64, 64, 9, true, 1)), 0x6c6d3b63eeebb830u);
  EXPECT_EQ(hash(patterns::heavy_hitters(48, 64, 9, false, 2)), 0x6196bdac3248e302u);
  EXPECT_EQ(hash(patterns::sliding_tile({5, 4, 6}, {3, 3, 3}, 2)), 0x95ebdcf25ce84dc7u);
  EXPECT_EQ(hash(patterns::mesh({5, 6, 7}, 3, 16)), 0x70a1c103e02ae903u);
}

TEST(Structured, EachGroupOfMColumnsStoresN) {
  for (const std::int64_t cols : {0, 3, 16, 21}) {
    for (const std::int64_t m : {1, 4, 8, 100}) {
      for (std::int64_t n = 0; n <= std::min<std::int64_t>(m, 5); ++n) {
        const Pattern pattern = patterns::n_of_m(9, cols, n, m, 3);
        validate(pattern);
        for (std::int64_t i = 0; i < 9; ++i) {
          for (std::int64_t begin = 0; begin < cols; begin += m) {
            const std::int64_t end = std::min(cols, begin + m);
            std::int64_t stored = 0;
            for (std::int64_t j = begin; j < end; ++j) stored += pattern.contains(i, j);
            ASSERT_EQ(stored, std::min(n, end - begin));
          }
        }
      }
    }
  }
  EXPECT_NE(patterns::n_of_m(9, 32, 1, 4, 3), patterns::n_of_m(9, 32, 1, 4, 4));
  // Each column of a group is drawn equally often, within 6 standard deviations.
  const Pattern pattern = patterns::n_of_m(8000, 8, 2, 8, 5);
  std::map<std::int64_t, int> times;
  for (const std::int64_t col : pattern.indices) ++times[col];
  for (const auto& [col, count] : times) EXPECT_NEAR(count, 2000, 6 * std::sqrt(1500.0)) << col;
  EXPECT_EQ(times.size(), 8u);
}

// The pattern has whole columns and diagonals, among them the first column and the main diagonal.
TEST(Structured, VerticalSlashIsColumnsAndDiagonals) {
  for (const bool causal : {true, false}) {
    for (const std::int64_t cols : {0, 1, 9, 24}) {
      for (const std::int64_t rows : {0, 1, 9, 24}) {
        for (const std::int64_t count : {0, 1, 3, 100}) {
          const auto visible = [&](std::int64_t i, std::int64_t j) {
            return !causal || j <= i + cols - rows;
          };
          const Pattern columns = patterns::vertical_slash(rows, cols, count, 0, causal, 7);
          const Pattern slashes = patterns::vertical_slash(rows, cols, 0, count, causal, 7);
          validate(columns);
          validate(slashes);
          for (std::int64_t i = 0; i < rows; ++i) {
            for (std::int64_t j = 0; j < cols; ++j) {
              const bool first = j == 0 && count > 0 && visible(i, j);
              ASSERT_TRUE(columns.contains(i, j) || !first);
              const bool main = count > 0 && j == i + cols - rows;
              ASSERT_TRUE(slashes.contains(i, j) || !main);
              ASSERT_TRUE(visible(i, j) || !(columns.contains(i, j) || slashes.contains(i, j)));
              // A column or diagonal is stored in all rows that see it, or in none.
              if (visible(i, j)) {
                ASSERT_EQ(columns.contains(i, j), columns.contains(rows - 1, j));
              }
              if (i + 1 < rows && j + 1 < cols) {
                ASSERT_EQ(slashes.contains(i, j), slashes.contains(i + 1, j + 1));
              }
            }
          }
          if (rows > 0) {
            EXPECT_EQ(length(columns, rows - 1), std::min(count, cols));
          }
          if (rows > 0 && causal) {
            EXPECT_EQ(length(slashes, rows - 1), std::min(count, cols));
          }
        }
      }
    }
  }
  const Pattern both = patterns::vertical_slash(64, 64, 3, 4, true, 2);
  EXPECT_NE(both, patterns::vertical_slash(64, 64, 3, 4, true, 3));
  for (const std::int64_t i : {0, 63}) EXPECT_TRUE(both.contains(i, 0) && both.contains(i, i));
  EXPECT_EQ(patterns::vertical_slash(12, 12, 12, 0, true, 1), patterns::causal(12, 12));
  EXPECT_EQ(patterns::vertical_slash(12, 12, 0, 12, true, 1), patterns::causal(12, 12));
  EXPECT_EQ(patterns::vertical_slash(5, 9, 0, 100, false, 1).stored(), 45);
}

TEST(Structured, HeavyHittersAreRecentOrPopular) {
  constexpr std::int64_t kSide = 200, kBest = 20;
  const Pattern pattern = patterns::heavy_hitters(kSide, kSide, kBest, true, 3);
  validate(pattern);
  std::vector<std::int64_t> times(kSide);
  std::int64_t near = 0, far = 0;
  for (std::int64_t i = 0; i < kSide; ++i) {
    EXPECT_EQ(length(pattern, i), std::min(kBest, i + 1));
    EXPECT_TRUE(pattern.contains(i, 0) && pattern.contains(i, i));
    for (std::int64_t j = 0; j < kSide; ++j) {
      if (!pattern.contains(i, j)) continue;
      ASSERT_LE(j, i);
      ++times[static_cast<std::size_t>(j)];
      ++(i - j < 5 ? near : far);
    }
  }
  // Nearly all of the five latest columns are kept; beyond, a few columns are kept again and again.
  EXPECT_GT(near, 4 * kSide);
  EXPECT_GT(far, 4 * kSide);
  std::sort(times.rbegin(), times.rend());
  EXPECT_GT(times[0] + times[1] + times[2], 2 * kSide);
  EXPECT_LT(times[kSide / 2], kSide / 4);
  EXPECT_NE(pattern, patterns::heavy_hitters(kSide, kSide, kBest, true, 4));
  // The causal mask is bottom-right aligned; without it, no column is hidden.
  EXPECT_EQ(patterns::heavy_hitters(7, 11, 100, true, 1), patterns::causal(7, 11));
  EXPECT_EQ(patterns::heavy_hitters(11, 7, 100, true, 1), patterns::causal(11, 7));
  EXPECT_EQ(patterns::heavy_hitters(11, 7, 7, false, 1).stored(), 77);
  EXPECT_EQ(patterns::heavy_hitters(11, 7, 3, false, 1).stored(), 33);
  EXPECT_EQ(patterns::heavy_hitters(4, 4, 0, true, 1).stored(), 0);
}

TEST(Structured, TilesSeeAWindowAroundThem) {
  for (const Sizes& volume : {Sizes{4, 5, 6}, Sizes{1, 1, 7}, Sizes{3, 1, 2}}) {
    for (const Sizes& around : {Sizes{3, 3, 3}, Sizes{1, 2, 5}, Sizes{9, 9, 9}}) {
      for (const std::int64_t blocks : {1, 3}) {
        const Pattern pattern = patterns::sliding_tile(volume, around, blocks);
        validate(pattern);
        const std::int64_t side = volume[0] * volume[1] * volume[2] * blocks;
        ASSERT_EQ(pattern.rows, side);
        ASSERT_EQ(pattern.cols, side);
        const auto place = [&](std::int64_t line) {
          const std::int64_t tile = line / blocks;
          return Sizes{tile / (volume[1] * volume[2]), tile / volume[2] % volume[1],
                       tile % volume[2]};
        };
        for (std::int64_t i = 0; i < side; ++i) {
          for (std::int64_t j = 0; j < side; ++j) {
            bool seen = true;
            for (std::size_t axis = 0; axis < 3; ++axis) {
              // The window begins around the tile, but neither before 0 nor past the end.
              const std::int64_t latest = volume[axis] - around[axis];
              std::int64_t begin = place(i)[axis] - around[axis] / 2;
              if (begin > latest) begin = latest;
              if (begin < 0) begin = 0;
              const std::int64_t at = place(j)[axis];
              seen = seen && at >= begin && at < begin + around[axis];
            }
            ASSERT_EQ(pattern.contains(i, j), seen) << i << " " << j;
          }
        }
      }
    }
  }
}

// Which nodes are neighbours, by their distance along each axis.
std::vector<std::vector<bool>> stencil(const Sizes& sizes) {
  const std::int64_t nodes = sizes[0] * sizes[1] * sizes[2];
  const auto at = [&](std::int64_t node) {
    return Sizes{node / (sizes[1] * sizes[2]), node / sizes[2] % sizes[1], node % sizes[2]};
  };
  std::vector<std::vector<bool>> joined(static_cast<std::size_t>(nodes));
  for (std::int64_t a = 0; a < nodes; ++a) {
    for (std::int64_t b = 0; b < nodes; ++b) {
      bool near = true;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        near = near && std::abs(at(a)[axis] - at(b)[axis]) <= 1;
      }
      joined[static_cast<std::size_t>(a)].push_back(near);
    }
  }
  return joined;
}

// The degrees of all nodes with their neighbours' degrees, sorted: independent of the node order.
std::vector<std::vector<std::int64_t>> shape_of(const Pattern& pattern) {
  std::vector<std::vector<std::int64_t>> shape;
  for (std::int64_t i = 0; i < pattern.rows; ++i) {
    std::vector<std::int64_t> degrees{length(pattern, i)};
    for (std::int64_t j = 0; j < pattern.cols; ++j) {
      if (pattern.contains(i, j)) degrees.push_back(length(pattern, j));
    }
    std::sort(degrees.begin() + 1, degrees.end());
    shape.push_back(degrees);
  }
  std::sort(shape.begin(), shape.end());
  return shape;
}

std::int64_t bandwidth(const Pattern& pattern) {
  std::int64_t widest = 0;
  for (std::int64_t i = 0; i < pattern.rows; ++i) {
    for (std::int64_t j = 0; j < pattern.cols; ++j) {
      if (pattern.contains(i, j)) widest = std::max(widest, std::abs(i - j));
    }
  }
  return widest;
}

Pattern in_natural_order(const Sizes& sizes) {
  Pattern pattern{0, 0, {0}, {}};
  for (const auto& row : stencil(sizes)) {
    for (std::size_t j = 0; j < row.size(); ++j) {
      if (row[j]) pattern.indices.push_back(static_cast<std::int64_t>(j));
    }
    pattern.offsets.push_back(pattern.stored());
    ++pattern.rows;
    ++pattern.cols;
  }
  return pattern;
}

TEST(Structured, AMeshIsAStencilInLevels) {
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{1, 1, 5}, Sizes{1, 4, 7}, Sizes{3, 4, 5}}) {
    const Pattern nodes = patterns::mesh(sizes);
    validate(nodes);
    EXPECT_EQ(transpose(nodes), nodes);
    EXPECT_EQ(shape_of(nodes), shape_of(in_natural_order(sizes)));
    // Each node comes after one of its neighbours, in the order of those neighbours.
    std::int64_t former = 0;
    for (std::int64_t i = 1; i < nodes.rows; ++i) {
      const std::int64_t parent =
          nodes.indices[static_cast<std::size_t>(nodes.offsets[static_cast<std::size_t>(i)])];
      EXPECT_LT(parent, i);
      EXPECT_GE(parent, former);
      former = parent;
    }
    // Each node is a dense block of unknowns. A pattern of larger blocks stores the blocks that
    // contain an unknown.
    const Pattern unknowns = patterns::mesh(sizes, 3);
    EXPECT_EQ(unknowns, refine(nodes, 3, 3));
    if (unknowns.rows % 15 == 0) {
      EXPECT_EQ(patterns::mesh(sizes, 3, 5), coarsen(unknowns, 5, 5));
    }
    const Pattern ragged = patterns::mesh(sizes, 3, 4);
    validate(ragged);
    ASSERT_EQ(ragged.rows, (unknowns.rows + 3) / 4);
    for (std::int64_t i = 0; i < ragged.rows; ++i) {
      for (std::int64_t j = 0; j < ragged.cols; ++j) {
        bool some = false;
        for (std::int64_t a = 4 * i; a < std::min(unknowns.rows, 4 * i + 4); ++a) {
          for (std::int64_t b = 4 * j; b < std::min(unknowns.cols, 4 * j + 4); ++b) {
            some = some || unknowns.contains(a, b);
          }
        }
        ASSERT_EQ(ragged.contains(i, j), some);
      }
    }
  }
  // The bandwidth is small whatever the order of the axes: long axes do not increase it.
  EXPECT_EQ(bandwidth(in_natural_order({20, 3, 1})), 4);
  EXPECT_LE(bandwidth(patterns::mesh({20, 3, 1})), 6);
  EXPECT_LE(bandwidth(patterns::mesh({1, 3, 20})), 6);
  EXPECT_EQ(bandwidth(in_natural_order({1, 3, 20})), 21);
}

TEST(Structured, AGraphHasHubsInRowsAndColumns) {
  constexpr std::int64_t kSide = 300;
  const Pattern graph = patterns::power_law_graph(kSide, kSide, 0.02, 1.0, 5);
  validate(graph);
  const std::int64_t edges = 1800;
  EXPECT_LE(graph.stored(), edges);
  EXPECT_GT(graph.stored(), edges / 2);
  // No node has more edges than its share, and the largest hub has the most edges in both
  // directions.
  const Pattern reverse = transpose(graph);
  auto shares = sparse::zipf_shares(kSide, 1.0, edges, kSide);
  std::sort(shares.rbegin(), shares.rend());
  std::vector<std::int64_t> out, in;
  for (std::int64_t i = 0; i < kSide; ++i) {
    out.push_back(length(graph, i));
    in.push_back(length(reverse, i));
  }
  const auto hub = std::max_element(out.begin(), out.end()) - out.begin();
  EXPECT_EQ(std::max_element(in.begin(), in.end()) - in.begin(), hub);
  std::sort(out.rbegin(), out.rend());
  std::sort(in.rbegin(), in.rend());
  for (std::size_t r = 0; r < shares.size(); ++r) {
    EXPECT_LE(out[r], shares[r]);
    EXPECT_LE(in[r], shares[r]);
  }
  EXPECT_GT(out.front(), 10 * out[kSide / 2]);
  EXPECT_GT(in.front(), 10 * in[kSide / 2]);
  EXPECT_NE(graph, patterns::power_law_graph(kSide, kSide, 0.02, 1.0, 6));
  EXPECT_EQ(patterns::power_law_graph(0, 9, 0.5, 1.0, 1).stored(), 0);
  EXPECT_EQ(patterns::power_law_graph(9, 0, 0.5, 1.0, 1).stored(), 0);
  EXPECT_EQ(patterns::power_law_graph(9, 12, 0.0, 1.0, 1).stored(), 0);
}

TEST(Structured, ArgumentsAreChecked) {
  const double nan = std::nan("");
  constexpr auto kHuge = std::numeric_limits<std::int64_t>::max() / 4;
  const auto text = [](auto&& call, ErrorCode code = ErrorCode::invalid_argument) {
    return error_text(call, code);
  };
  using namespace patterns;  // NOLINT
  EXPECT_PRED2(contains, text([&] { n_of_m(2, 8, 5, 4, 0); }),
               "n_of_m: n: expected 0 to m = 4, got 5");
  EXPECT_PRED2(contains, text([&] { n_of_m(2, 8, -1, 4, 0); }), "n_of_m: n");
  EXPECT_PRED2(contains, text([&] { n_of_m(2, 8, 0, 0, 0); }), "n_of_m: m");
  EXPECT_PRED2(contains, text([&] { n_of_m(-2, 8, 0, 1, 0); }), "n_of_m: rows");
  EXPECT_PRED2(contains, text([&] { vertical_slash(2, 2, -1, 0, true, 0); }), "verticals");
  EXPECT_PRED2(contains, text([&] { vertical_slash(2, 2, 0, -1, true, 0); }), "slashes");
  EXPECT_PRED2(contains, text([&] { vertical_slash(2, -2, 0, 0, true, 0); }), "cols");
  EXPECT_PRED2(contains,
               text([&] { vertical_slash(2, kHuge, 1, 0, true, 0); }, ErrorCode::out_of_memory),
               "cols");
  EXPECT_PRED2(contains, text([&] { heavy_hitters(2, 2, -1, true, 0); }), "heavy_hitters: k");
  EXPECT_PRED2(contains,
               text([&] { heavy_hitters(2, kHuge, 1, true, 0); }, ErrorCode::out_of_memory),
               "heavy_hitters: cols");
  EXPECT_PRED2(contains, text([&] { sliding_tile({2, 0, 2}, {1, 1, 1}); }), "volume");
  EXPECT_PRED2(contains, text([&] { sliding_tile({kHuge, 8, 2}, {1, 1, 1}); }), "volume");
  EXPECT_PRED2(contains, text([&] { sliding_tile({2, 2, 2}, {1, 1, 0}); }), "neighbourhood");
  EXPECT_PRED2(contains, text([&] { sliding_tile({2, 2, 2}, {1, 1, 1}, 0); }), "blocks");
  EXPECT_PRED2(contains, text([&] { mesh({2, 2, 0}); }), "mesh: nodes");
  EXPECT_PRED2(contains, text([&] { mesh({kHuge, 2, 8}); }), "mesh: nodes");
  EXPECT_PRED2(contains,
               text(
                   [&] {
                     mesh({kHuge, 1, 1});
                   },
                   ErrorCode::out_of_memory),
               "mesh: nodes");
  EXPECT_PRED2(contains, text([&] { mesh({2, 2, 2}, 0); }), "unknowns");
  EXPECT_PRED2(contains, text([&] { mesh({2, 2, 2}, kHuge); }), "unknowns");
  EXPECT_PRED2(contains, text([&] { mesh({2, 2, 2}, 1, 0); }), "mesh: block");
  EXPECT_PRED2(contains, text([&] { power_law_graph(2, 2, nan, 1.0, 0); }), "density");
  EXPECT_PRED2(contains, text([&] { power_law_graph(2, 2, 0.5, nan, 0); }), "exponent");
}

}  // namespace
