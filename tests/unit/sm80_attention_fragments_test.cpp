// The index arithmetic of the sm80 attention kernel: where rows lie in shared memory, and which
// elements reach which lane's registers. ldmatrix and mma.sync are emulated as PTX defines them.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "src/kernels/cuda/common/swizzle.hpp"
#include "src/kernels/cuda/sm80/attention/rows.hpp"
#include "tests/unit/emulated_mma.hpp"

namespace tessera::cuda::sm80::attention {
namespace {

template <class Rows, int kRows>
void expect_sound_layout() {
  std::set<int> places;
  for (int row = 0; row < kRows; ++row)
    for (int chunk = 0; chunk < Rows::kChunks; ++chunk) {
      const int at = Rows::offset(row, chunk);
      EXPECT_EQ(at % 16, 0);
      EXPECT_LE(at + 16, Rows::kBytes);
      EXPECT_TRUE(places.insert(at).second) << "row " << row << ", chunk " << chunk;
      // Eight rows further down, and to the right of chunk 0 or 1.
      if (row + 8 < kRows) {
        EXPECT_EQ(Rows::offset(row + 8, chunk), at + 8 * Rows::kLineBytes);
      }
      const auto first = static_cast<unsigned>(Rows::offset(row, chunk % 2));
      EXPECT_EQ(Rows::to_right(first, chunk - chunk % 2), static_cast<unsigned>(at));
    }
  EXPECT_EQ(places.size() * 16, static_cast<std::size_t>(Rows::kBytes));
  // ldmatrix reads a chunk of eight adjacent rows at a time: from eight different bank groups.
  for (int row = 0; row < kRows; row += 8)
    for (int chunk = 0; chunk < Rows::kChunks; ++chunk) {
      std::set<int> banks;
      for (int i = 0; i < 8; ++i) banks.insert(Rows::offset(row + i, chunk) / 16 % 8);
      EXPECT_EQ(banks.size(), 8u) << "row " << row << ", chunk " << chunk;
    }
}

/// Each chunk is copied once, from the row and column that the kernel computes.
template <class Rows, int kRows, int kThreads>
void expect_whole_copy() {
  using Share = CopyShare<Rows, kThreads>;
  std::set<unsigned> places;
  for (int thread = 0; thread < kThreads; ++thread) {
    const Share mine = Share::of(thread);
    const auto to = static_cast<unsigned>(Rows::offset(mine.row, mine.chunk));
    for (int down = 0; down < kRows; down += Share::kDown)
      for (int across = 0; across < Rows::kChunks; across += Share::kAcross) {
        const unsigned at =
            Rows::to_right(to, across) + static_cast<unsigned>(down * Rows::kLineBytes);
        EXPECT_EQ(at, static_cast<unsigned>(Rows::offset(mine.row + down, mine.chunk + across)));
        EXPECT_TRUE(places.insert(at).second);
      }
  }
  EXPECT_EQ(places.size(), static_cast<std::size_t>(kRows * Rows::kChunks));
}

template <std::size_t kRow>
void expect_sound_row() {
  constexpr planning::Tile kTile = planning::kSm80AttentionRows[kRow].tile;
  constexpr int kThreads = kTile.warpgroups * 128;
  using Queries = SwizzledRows<kTile.m, kTile.k>;
  using Keys = SwizzledRows<kTile.n, kTile.k>;
  using Values = SwizzledRows<kTile.n, kTile.v>;
  SCOPED_TRACE(planning::kSm80AttentionRows[kRow].name);
  expect_sound_layout<Queries, kTile.m>();
  expect_sound_layout<Keys, kTile.n>();
  expect_sound_layout<Values, kTile.n>();
  expect_whole_copy<Queries, kTile.m, kThreads>();
  expect_whole_copy<Keys, kTile.n, kThreads>();
  expect_whole_copy<Values, kTile.n, kThreads>();
}

TEST(Sm80AttentionFragments, RowsLieInSharedMemoryWithoutConflicts) {
  []<std::size_t... kRow>(std::index_sequence<kRow...>) { (expect_sound_row<kRow>(), ...); }
  (std::make_index_sequence<std::size(planning::kSm80AttentionRows)>{});
}

using namespace testing;  // NOLINT: the emulated instructions

template <class Rows, int kRows>
Memory filled(int seed) {
  Memory memory(Rows::kBytes / 2);
  for (int row = 0; row < kRows; ++row)
    for (int column = 0; column < Rows::kChunks * 8; ++column)
      memory[static_cast<std::size_t>(Rows::offset(row, column / 8) / 2 + column % 8)] =
          value(row, column, seed);
  return memory;
}

template <class Rows>
std::array<unsigned, 32> addresses(LaneChunk (*of)(int), int first_row, int to_right) {
  std::array<unsigned, 32> all{};
  for (int lane = 0; lane < 32; ++lane) {
    const LaneChunk at = of(lane);
    const auto from = static_cast<unsigned>(Rows::offset(at.row, at.chunk));
    all[static_cast<std::size_t>(lane)] =
        Rows::to_right(from, to_right) + static_cast<unsigned>(first_row * Rows::kLineBytes);
  }
  return all;
}

/// S = Q K^T and O = S V for 16 rows from `kFirst` on, by the addresses and register orders of
/// warp.cuh. Small integers, so that all sums are exact.
template <int kQueries, int kKeys, int kDim, int kDimV>
void expect_products(int first) {
  using Queries = SwizzledRows<kQueries, kDim>;
  using Keys = SwizzledRows<kKeys, kDim>;
  using Values = SwizzledRows<kKeys, kDimV>;
  const Memory q = filled<Queries, kQueries>(1), k = filled<Keys, kKeys>(2),
               v = filled<Values, kKeys>(3);
  std::vector<std::array<std::array<int, 4>, 32>> score(kKeys / 8), out(kDimV / 8);
  for (int i = 0; i < kDim / 16; ++i) {
    const Words a = ldmatrix(q, addresses<Queries>(LaneChunk::of_queries, first, 2 * i), false);
    for (int pair = 0; pair < kKeys / 16; ++pair) {
      const Words b = ldmatrix(k, addresses<Keys>(LaneChunk::of_keys, pair * 16, 2 * i), false);
      mma(score[static_cast<std::size_t>(pair * 2)], a, b, 0);
      mma(score[static_cast<std::size_t>(pair * 2 + 1)], a, b, 2);
    }
  }
  const auto exact_score = [&](int row, int key) {
    int sum = 0;
    for (int d = 0; d < kDim; ++d) sum += value(first + row, d, 1) * value(key, d, 2);
    return sum;
  };
  for (int lane = 0; lane < 32; ++lane)
    for (int eight = 0; eight < kKeys / 8; ++eight)
      for (int i = 0; i < 4; ++i)
        ASSERT_EQ(score[static_cast<std::size_t>(eight)][static_cast<std::size_t>(lane)]
                       [static_cast<std::size_t>(i)],
                  exact_score(lane / 4 + i / 2 * 8, eight * 8 + lane % 4 * 2 + i % 2));
  for (int i = 0; i < kKeys / 16; ++i) {
    Words p;  // word w of MMA i: scores 8 i + 2 w and the next, as compute_p packs them
    for (std::size_t lane = 0; lane < 32; ++lane)
      for (std::size_t word = 0; word < 4; ++word)
        for (std::size_t j = 0; j < 2; ++j) {
          const std::size_t at = static_cast<std::size_t>(i) * 8 + word * 2 + j;
          p[lane][word][j] = score[at / 4][lane][at % 4];
        }
    for (int pair = 0; pair < kDimV / 16; ++pair) {
      const Words b = ldmatrix(v, addresses<Values>(LaneChunk::of_values, i * 16, 2 * pair), true);
      mma(out[static_cast<std::size_t>(pair * 2)], p, b, 0);
      mma(out[static_cast<std::size_t>(pair * 2 + 1)], p, b, 2);
    }
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int column = 0; column < kDimV / 8; ++column)
      for (int i = 0; i < 4; ++i) {
        int sum = 0;
        for (int key = 0; key < kKeys; ++key)
          sum += exact_score(lane / 4 + i / 2 * 8, key) *
                 value(key, column * 8 + lane % 4 * 2 + i % 2, 3);
        ASSERT_EQ(out[static_cast<std::size_t>(column)][static_cast<std::size_t>(lane)]
                     [static_cast<std::size_t>(i)],
                  sum);
      }
}

TEST(Sm80AttentionFragments, ProductsComeOutInTheAccumulatorsOrder) {
  expect_products<64, 64, 64, 64>(16);
  expect_products<64, 64, 96, 96>(32);
  expect_products<128, 64, 128, 128>(112);
  expect_products<64, 64, 192, 128>(0);
  expect_products<64, 64, 256, 256>(48);
}

}  // namespace
}  // namespace tessera::cuda::sm80::attention
