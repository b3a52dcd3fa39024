// The index arithmetic of the sm80 attention backward kernel: a whole step of a thread block with
// integers, warp by warp. Scores go through shared memory; each product comes out where the kernel
// stores or adds it.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "src/kernels/cuda/sm80/attention_backward/operands.hpp"
#include "src/kernels/cuda/sm80/attention_backward/rows.hpp"
#include "tests/unit/emulated_mma.hpp"

namespace tessera::cuda::sm80::attention_backward {
namespace {

using namespace testing;  // NOLINT: the emulated instructions
using planning::WarpGrid;

std::size_t index_of(int i) { return static_cast<std::size_t>(i); }

/// A matrix with rows of any length.
struct Matrix {
  int columns;
  std::vector<int> values;

  Matrix(int rows, int width) : columns(width), values(index_of(rows * width)) {}
  int& at(int row, int column) { return values[index_of(row * columns + column)]; }
  int at(int row, int column) const { return values[index_of(row * columns + column)]; }
};

Matrix input(int rows, int columns, int seed) {
  Matrix m(rows, columns);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) m.at(i, j) = value(i, j, seed);
  return m;
}

template <class Rows>
Memory in_memory(const Matrix& m) {
  Memory memory(Rows::kBytes / 2);
  for (std::size_t i = 0; i < m.values.size(); ++i) {
    const int row = static_cast<int>(i) / m.columns, column = static_cast<int>(i) % m.columns;
    memory[index_of(Rows::offset(row, column / 8) / 2 + column % 8)] = m.values[i];
  }
  return memory;
}

template <class Operand>
Words loaded(const Memory& memory, const std::vector<Operand>& lanes, int block, int i) {
  std::array<unsigned, 32> address{};
  for (std::size_t lane = 0; lane < 32; ++lane) address[lane] = lanes[lane].at(block, i);
  return ldmatrix(memory, address, Operand::kTransposed);
}

/// As products.cuh multiplies: accumulators of blocks of 16 rows and groups of eight columns.
using Sums = std::vector<std::vector<std::array<std::array<int, 4>, 32>>>;
template <class Left, class Right>
Sums multiply(const Memory& left_memory, const std::vector<Left>& left, const Memory& right_memory,
              const std::vector<Right>& right, int depth, const WarpGrid& grid) {
  Sums sums(index_of(grid.rows / 16), Sums::value_type(index_of(grid.columns / 8)));
  for (int i = 0; i < depth / 16; ++i)
    for (int block = 0; block < grid.rows / 16; ++block) {
      const Words a = loaded(left_memory, left, block, i);
      for (int pair = 0; pair < grid.columns / 16; ++pair) {
        const Words b = loaded(right_memory, right, pair, i);
        auto& row = sums[index_of(block)];
        mma(row[index_of(pair * 2)], a, b, 0);
        mma(row[index_of(pair * 2 + 1)], a, b, 2);
      }
    }
  return sums;
}

template <class Make>
auto of_lanes(const Make& make) {
  std::vector<decltype(make(0))> all;
  for (int lane = 0; lane < 32; ++lane) all.push_back(make(lane));
  return all;
}

template <planning::Tile kTile>
struct Step {
  static constexpr int kM = kTile.m, kN = kTile.n, kDim = kTile.k, kDimV = kTile.v;
  static constexpr int kWarps = planning::backward_warps(kTile);
  using Queries = SwizzledRows<kM, kDim>;
  using Gradients = SwizzledRows<kM, kDimV>;
  using Keys = SwizzledRows<kN, kDim>;
  using Values = SwizzledRows<kN, kDimV>;
  using Scores = SwizzledRows<kM, kN>;

  const Matrix q = input(kM, kDim, 1), dout = input(kM, kDimV, 2), k = input(kN, kDim, 3),
               v = input(kN, kDimV, 4);

  /// S = Q K^T or dP = dO V^T, written to shared memory; two elements share a word.
  template <class Left, class Right>
  Memory scores(const Matrix& left, const Matrix& right) const {
    constexpr WarpGrid kGrid = planning::score_grid(kTile);
    const Memory left_memory = in_memory<Left>(left), right_memory = in_memory<Right>(right);
    Memory memory(Scores::kBytes / 2, 0);
    std::set<unsigned> places;
    for (int warp = 0; warp < kWarps; ++warp) {
      const int row = kGrid.first_row(warp), column = kGrid.first_column(warp);
      const Sums sums = attention_backward::multiply(
          left_memory, of_lanes([&](int lane) { return AlongRows<Left>::left(0, row, lane); }),
          right_memory,
          of_lanes([&](int lane) { return AlongRows<Right>::right(0, column, lane); }),
          left.columns, kGrid);
      for (int block = 0; block < kGrid.rows / 16; ++block)
        for (int i = 0; i < kGrid.columns / 2; i += 2) {
          std::set<unsigned> banks;
          for (int lane = 0; lane < 32; ++lane) {
            const unsigned at = ScorePlaces<Scores>::of(0, row, column, lane).at(block, i);
            EXPECT_TRUE(places.insert(at).second && at % 4 == 0);
            banks.insert(at / 4 % 32);
            for (int j = 0; j < 2; ++j)
              memory[at / 2 + index_of(j)] =
                  sums[index_of(block)][index_of(i / 4)][index_of(lane)][index_of(i % 4 + j)];
          }
          // With 32 keys, lines of 64 bytes: two rows share 128 bytes.
          EXPECT_EQ(banks.size(), 32u) << "bank conflicts";
        }
    }
    EXPECT_EQ(places.size(), index_of(kM * kN / 2));
    return memory;
  }

  /// dV = P^T dO or dK = dS^T Q.
  template <class Rows>
  Matrix gradient(const Memory& scores, const Matrix& rows) const {
    constexpr WarpGrid kGrid = planning::gradient_grid(kTile, Rows::kChunks * 8);
    const Memory memory = in_memory<Rows>(rows);
    Matrix result(kN, rows.columns);
    Matrix written(kN, rows.columns);
    for (int warp = 0; warp < kWarps / 2; ++warp) {
      const Sums sums = attention_backward::multiply(
          scores, of_lanes([&](int lane) {
            return AcrossRows<Scores>::left(0, kGrid.first_row(warp), lane);
          }),
          memory, of_lanes([&](int lane) {
            return AcrossRows<Rows, kGrid.column_warps>::right(0, kGrid.first_of_turns(warp), lane);
          }),
          kM, kGrid);
      for (int block = 0; block < kGrid.rows / 16; ++block)
        for (int i = 0; i < kGrid.columns / 2; ++i)
          for (int lane = 0; lane < 32; ++lane) {
            const int key = kGrid.first_row(warp) + block * 16 + i / 2 % 2 * 8 + lane / 4;
            const int column = kGrid.column_in_turns(warp, i / 4) + lane % 4 * 2 + i % 2;
            EXPECT_EQ(written.at(key, column)++, 0);
            result.at(key, column) =
                sums[index_of(block)][index_of(i / 4)][index_of(lane)][index_of(i % 4)];
          }
    }
    return result;
  }

  /// dQ = dS K, in the order of the sums.
  std::vector<int> dq(const Memory& ds) const {
    constexpr WarpGrid kGrid = planning::dq_grid(kTile);
    constexpr auto kOrder = planning::SumsOrder::by_accumulator;
    const Memory memory = in_memory<Keys>(k);
    std::vector<int> sums_of_block(index_of(kM * kDim), -1'000'000'000);
    for (int warp = 0; warp < kWarps; ++warp) {
      const Sums sums = attention_backward::multiply(
          ds, of_lanes([&](int lane) {
            return AlongRows<Scores>::left(0, kGrid.first_row(warp), lane);
          }),
          memory, of_lanes([&](int lane) {
            return AcrossRows<Keys, kGrid.column_warps>::right(0, kGrid.first_of_turns(warp), lane);
          }),
          kN, kGrid);
      const int base =
          planning::sum_index(kOrder, kGrid.first_row(warp), kGrid.first_of_turns(warp));
      for (int block = 0; block < kGrid.rows / 16; ++block)
        for (int i = 0; i < kGrid.columns / 2; ++i)
          for (int lane = 0; lane < 32; ++lane) {
            const int at = base + lane +
                           planning::sum_index(kOrder, block * 16 + i / 2 % 2 * 8,
                                               kGrid.column_in_turns(0, i / 4) + i % 2);
            EXPECT_EQ(sums_of_block[index_of(at)], -1'000'000'000) << "written twice";
            sums_of_block[index_of(at)] =
                sums[index_of(block)][index_of(i / 4)][index_of(lane)][index_of(i % 4)];
          }
    }
    return sums_of_block;
  }

  void expect_right() const {
    const Memory s = scores<Queries, Keys>(q, k), dp = scores<Gradients, Values>(dout, v);
    Matrix exact_s(kM, kN), exact_dp(kM, kN), exact_dv(kN, kDimV), exact_dk(kN, kDim),
        exact_dq(kM, kDim);
    for (int i = 0; i < kM; ++i)
      for (int j = 0; j < kN; ++j) {
        for (int d = 0; d < kDim; ++d) exact_s.at(i, j) += q.at(i, d) * k.at(j, d);
        for (int d = 0; d < kDimV; ++d) exact_dp.at(i, j) += dout.at(i, d) * v.at(j, d);
        for (int d = 0; d < kDimV; ++d) exact_dv.at(j, d) += exact_s.at(i, j) * dout.at(i, d);
        for (int d = 0; d < kDim; ++d) exact_dk.at(j, d) += exact_dp.at(i, j) * q.at(i, d);
        for (int d = 0; d < kDim; ++d) exact_dq.at(i, d) += exact_dp.at(i, j) * k.at(j, d);
      }
    EXPECT_EQ(s, in_memory<Scores>(exact_s));
    EXPECT_EQ(dp, in_memory<Scores>(exact_dp));
    EXPECT_EQ(gradient<Gradients>(s, dout).values, exact_dv.values);
    EXPECT_EQ(gradient<Queries>(dp, q).values, exact_dk.values);
    const std::vector<int> sums = dq(dp);
    for (int i = 0; i < kM; ++i)
      for (int d = 0; d < kDim; ++d)
        ASSERT_EQ(sums[index_of(planning::sum_index(planning::SumsOrder::by_accumulator, i, d))],
                  exact_dq.at(i, d));
  }
};

template <std::size_t kRow>
void expect_right_row() {
  SCOPED_TRACE(planning::kSm80AttentionBackwardRows[kRow].name);
  Step<planning::kSm80AttentionBackwardRows[kRow].tile>().expect_right();
}

TEST(Sm80AttentionBackwardFragments, AStepOfEachRowIsRight) {
  []<std::size_t... kRow>(std::index_sequence<kRow...>) { (expect_right_row<kRow>(), ...); }
  (std::make_index_sequence<std::size(planning::kSm80AttentionBackwardRows)>{});
}

/// Both orders are permutations; groups of eight columns follow each other.
TEST(Sm80AttentionBackwardFragments, SumsHaveAPlaceEach) {
  for (const auto order : {planning::SumsOrder::by_lane, planning::SumsOrder::by_accumulator}) {
    std::set<int> places;
    for (int query = 0; query < 64; ++query)
      for (int column = 0; column < 256; ++column) {
        const int at = planning::sum_index(order, query, column);
        EXPECT_TRUE(places.insert(at).second);
        EXPECT_EQ(at / 512, column / 8);
      }
    EXPECT_EQ(places.size(), 64u * 256u);
    EXPECT_EQ(*places.rbegin(), 64 * 256 - 1);
  }
  // What a thread of `convert_dq` reads at once: four adjacent numbers.
  for (int query : {0, 1, 7, 17, 50})
    for (int i = 0; i < 4; ++i) {
      using planning::sum_index;
      constexpr auto kLane = planning::SumsOrder::by_lane,
                     kAcc = planning::SumsOrder::by_accumulator;
      EXPECT_EQ(sum_index(kLane, query & ~8, 2 * i), sum_index(kLane, query & ~8, 0) + i * 4);
      EXPECT_EQ(sum_index(kLane, query | 8, 2 * i + 1),
                sum_index(kLane, query & ~8, 0) + i * 4 + 3);
      EXPECT_EQ(sum_index(kAcc, query & ~8, 2 * i + 1), sum_index(kAcc, query & ~8, 0) + 32 + i);
      EXPECT_EQ(sum_index(kAcc, query | 8, 2 * i), sum_index(kAcc, query & ~8, 0) + 64 + i);
    }
}

}  // namespace
}  // namespace tessera::cuda::sm80::attention_backward
