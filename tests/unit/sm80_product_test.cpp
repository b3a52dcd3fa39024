// Block-sparse products by sm80_product: the index arithmetic of its operands in shared memory,
// with ldmatrix and mma.sync emulated as PTX defines them; the tiles of groups; which devices plan
// which row, when it is chosen, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/kernels/cuda/sm80/product/operands.hpp"
#include "src/kernels/cuda/sm80/product/plan.hpp"
#include "src/kernels/cuda/sm80/product/rows.hpp"
#include "src/walk/bsr_walk.hpp"
#include "src/walk/groups.hpp"
#include "tests/support/random.hpp"
#include "tests/unit/emulated_mma.hpp"
#include "tests/unit/selecting.hpp"

namespace tessera::cuda::sm80::product {
namespace {

using namespace testing;  // NOLINT: the emulated instructions

constexpr int kRows = 128, kColumns = 256, kThreads = 256;

/// Each chunk is copied once, to the place of its row and column.
template <class Rows>
void expect_whole_copy(int rows) {
  using Share = ChunkShare<Rows, kThreads>;
  std::set<unsigned> places;
  for (int thread = 0; thread < kThreads; ++thread) {
    const Share mine = Share::of(thread);
    for (int i = 0; i < Rows::kBytes / 16 / kThreads; ++i) {
      const unsigned at = mine.offset() + static_cast<unsigned>(i * Share::kBytesDown);
      ASSERT_LT(mine.row + i * Share::kDown, rows);
      EXPECT_EQ(at, static_cast<unsigned>(Rows::offset(mine.row + i * Share::kDown, mine.chunk)));
      EXPECT_TRUE(places.insert(at).second);
    }
  }
  EXPECT_EQ(places.size() * 16, static_cast<std::size_t>(Rows::kBytes));
}

/// ldmatrix reads eight rows at a time: from eight different bank groups.
void expect_no_conflicts(const std::array<unsigned, 32>& address) {
  for (std::size_t first = 0; first < 32; first += 8) {
    std::set<unsigned> banks;
    for (std::size_t i = 0; i < 8; ++i) banks.insert(address[first + i] / 16 % 8);
    EXPECT_EQ(banks.size(), 8u);
  }
}

/// Element (line, depth) of an operand in shared memory; a line is a row, or a column, of the
/// product.
template <class Rows>
Memory filled(int lines, bool deep, int seed) {
  Memory memory(Rows::kBytes / 2);
  for (int line = 0; line < lines; ++line)
    for (int depth = 0; depth < kDepth; ++depth) {
      const int row = deep ? line : depth, column = deep ? depth : line;
      memory[static_cast<std::size_t>(Rows::offset(row, column / 8) / 2 + column % 8)] =
          value(line, depth, seed);
    }
  return memory;
}

/// The product of a step, by the addresses and register orders of multiply.cuh.
template <int kRowWarps, bool kDenseDeep, bool kBlocksDeep>
void expect_product() {
  using Grid = WarpGrid<kRows, kColumns, kThreads / 32, kRowWarps>;
  constexpr int kPairs = Grid::kColumns / 16;
  using Dense = DenseSide<kColumns, kDenseDeep>;
  using Pieces = PieceSide<kRows, kBlocksDeep>;
  expect_whole_copy<typename Dense::Rows>(kDenseDeep ? kColumns : kDepth);
  expect_whole_copy<typename Pieces::Rows>(kBlocksDeep ? kRows : kDepth);
  const Memory dense = filled<typename Dense::Rows>(kColumns, kDenseDeep, 1);
  const Memory pieces = filled<typename Pieces::Rows>(kRows, kBlocksDeep, 2);
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    const Grid grid = Grid::of(warp);
    for (int quarter = 0; quarter < Grid::kRows / 16; ++quarter) {
      std::array<std::array<std::array<int, 4>, 32>, kPairs * 2> sum{};
      for (int unit = 0; unit < kUnits; ++unit) {
        std::array<unsigned, 32> left_at{};
        for (int lane = 0; lane < 32; ++lane)
          left_at[static_cast<std::size_t>(lane)] =
              Pieces::at(Pieces::from(grid.first_row, lane), quarter, unit);
        expect_no_conflicts(left_at);
        const Words left = ldmatrix(pieces, left_at, !kBlocksDeep);
        for (int pair = 0; pair < kPairs; ++pair) {
          std::array<unsigned, 32> right_at{};
          for (int lane = 0; lane < 32; ++lane)
            right_at[static_cast<std::size_t>(lane)] =
                Dense::at(Dense::from(grid.first_column, lane), unit, pair);
          expect_no_conflicts(right_at);
          const Words right = ldmatrix(dense, right_at, !kDenseDeep);
          mma(sum[static_cast<std::size_t>(pair * 2)], left, right, 0);
          mma(sum[static_cast<std::size_t>(pair * 2 + 1)], left, right, 2);
        }
      }
      for (int lane = 0; lane < 32; ++lane)
        for (int eight = 0; eight < kPairs * 2; ++eight)
          for (int i = 0; i < 4; ++i) {
            const int row = grid.first_row + quarter * 16 + lane / 4 + i / 2 * 8;
            const int column = grid.first_column + eight * 8 + lane % 4 * 2 + i % 2;
            int expected = 0;
            for (int depth = 0; depth < kDepth; ++depth)
              expected += value(row, depth, 2) * value(column, depth, 1);
            ASSERT_EQ(sum[static_cast<std::size_t>(eight)][static_cast<std::size_t>(lane)]
                         [static_cast<std::size_t>(i)],
                      expected);
          }
    }
  }
}

template <int kRowWarps>
void expect_whole_tile() {
  using Grid = WarpGrid<kRows, kColumns, kThreads / 32, kRowWarps>;
  std::set<std::pair<int, int>> begins;
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    const Grid grid = Grid::of(warp);
    EXPECT_EQ(grid.first_row % Grid::kRows, 0);
    EXPECT_EQ(grid.first_column % Grid::kColumns, 0);
    EXPECT_LT(grid.first_row, kRows);
    EXPECT_LT(grid.first_column, kColumns);
    EXPECT_TRUE(begins.emplace(grid.first_row, grid.first_column).second) << "warp " << warp;
  }
}

TEST(Sm80Product, WarpsShareTheWholeTile) {
  expect_whole_tile<1>();
  expect_whole_tile<2>();
}

TEST(Sm80Product, OperandsReachTheRegistersInOrder) {
  expect_product<1, true, true>();
  expect_product<1, true, false>();
  expect_product<1, false, true>();
  expect_product<1, false, false>();
  expect_product<2, true, true>();
  expect_product<2, true, false>();
  expect_product<2, false, true>();
  expect_product<2, false, false>();
}

}  // namespace
}  // namespace tessera::cuda::sm80::product

namespace {

using namespace tessera;            // NOLINT: a test of many small names
using namespace tessera::planning;  // NOLINT

constexpr const char *kThreeStages = "sm80_product_m128_n256_k64_s3",
                     *kTwoStages = "sm80_product_m128_n256_k64_s2";

Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
  return tensor(nullptr, dtype, shape, {DeviceKind::cuda, 0});
}

/// out [m, n] = A B with a quarter of A's blocks stored.
MatmulProblem product(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t block_rows,
                      std::int64_t block_cols, bool transposed = false) {
  MatmulProblem p;
  BsrMatrix a;
  a.rows = transposed ? k : m;
  a.cols = transposed ? m : k;
  const std::int64_t stored = (a.rows / block_rows) * (a.cols / block_cols) / 4;
  a.values = shaped({stored, block_rows, block_cols});
  a.row_offsets = shaped({a.rows / block_rows + 1}, DType::i32);
  a.col_indices = shaped({stored}, DType::i32);
  p.a = a;
  p.a.transposed = transposed;
  p.b = shaped({k, n});
  p.out = shaped({m, n});
  return p;
}

std::string refused(const MatmulProblem& problem, const char* device = "a100",
                    const char* row = kThreeStages) {
  std::string all;
  for (const std::string& reason :
       rejections(row_named(row), shape_of(AnyProblem(problem)), device_preset(device)))
    all += reason + "; ";
  return all;
}

/// out [tokens, n] = x W[group of the token]^T with dense weights, or a share of blocks of `block`.
MatmulProblem experts(std::int64_t tokens, std::int64_t n, std::int64_t k, std::int64_t groups,
                      std::int64_t block = 0, bool transposed = true) {
  MatmulProblem p;
  p.a = shaped({tokens, k});
  if (block == 0) {
    p.b = transposed ? shaped({groups, n, k}) : shaped({groups, k, n});
  } else {
    BsrMatrix w;
    w.rows = transposed ? n : k;
    w.cols = transposed ? k : n;
    const std::int64_t stored = (w.rows / block) * (w.cols / block) / 4;
    w.values = shaped({groups, stored, block, block});
    w.row_offsets = shaped({groups, w.rows / block + 1}, DType::i32);
    w.col_indices = shaped({groups, stored}, DType::i32);
    p.b = w;
  }
  p.b.transposed = transposed;
  p.out = shaped({tokens, n});
  p.group_offsets = shaped({groups + 1}, DType::i32);
  return p;
}

/// Each element of the columns of groups is in one tile, of its group; other columns are in none.
TEST(Sm80Product, TilesOfGroupsCoverTheirColumnsOnce) {
  constexpr Tile kTile = kSm80ProductRows[0].tile;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    generate::Random random(seed);
    const int groups =
        static_cast<int>(random.chance(0.2) ? random.between(30, 300) : random.between(1, 6));
    const int length = static_cast<int>(random.between(0, random.chance(0.5) ? 40 : 3000));
    std::vector<std::int64_t> offsets;
    for (int g = 0; g <= groups; ++g) offsets.push_back(random.between(0, length));
    std::sort(offsets.begin(), offsets.end());
    if (random.chance(0.5)) offsets.front() = 0, offsets.back() = length;
    const bool hostile = random.chance(0.3);
    if (hostile)
      for (int i = 0; i < 3; ++i)
        offsets[random.bits() % offsets.size()] = random.between(-9, 4000);

    bsr::Walk walk;
    walk.height_shift = static_cast<int>(random.between(4, 6));
    const int height = 1 << walk.height_shift;
    const int n = static_cast<int>(random.between(1, 40)) * height;
    walk.lines = n / height;
    walk.cols = length;
    const GroupView view{{nullptr, offsets.data()}, 1, groups, length};
    const Sm80ProductLayout layout = layout_of<Sm80ProductLayout>(
        kSm80ProductRows[0], shape_of(AnyProblem(experts(length, n, 64, groups))),
        device_preset("a100"));

    // As warps find them: decreasing offsets count as equal ones.
    int number = 0, floor = view.offset(0);
    std::vector<std::vector<int>> group_of(static_cast<std::size_t>((n + kTile.m - 1) / kTile.m),
                                           std::vector<int>(static_cast<std::size_t>(length), -1));
    for (int g = 0; g < groups; ++g) {
      const int begin = floor, end = std::max(floor, view.offset(g + 1));
      floor = end;
      const int tiles = walk.tiles_of_group<kTile.m, kTile.n>(begin, end);
      number += tiles;
      for (int within = 0; within < tiles; ++within) {
        const bsr::TileAt at = walk.tile_of_group<kTile.m, kTile.n>(within, g, begin, end);
        ASSERT_EQ(at.batch, g);
        ASSERT_EQ(at.line * height % kTile.m, 0);
        ASSERT_LT(at.line, walk.lines);
        ASSERT_GE(at.col, begin);
        ASSERT_LT(at.col, end);
        auto& row = group_of[static_cast<std::size_t>(at.line * height / kTile.m)];
        for (int col = at.col; col < std::min(at.col + kTile.n, end); ++col) {
          ASSERT_EQ(row[static_cast<std::size_t>(col)], -1);
          row[static_cast<std::size_t>(col)] = g;
        }
      }
    }
    ASSERT_LE(number, layout.tiles);
    if (hostile) continue;
    for (const auto& row : group_of)
      for (int col = 0; col < length; ++col) {
        const auto after = std::upper_bound(offsets.begin(), offsets.end(), col);
        const int expected =
            col >= offsets.back() ? -1 : static_cast<int>(after - offsets.begin()) - 1;
        ASSERT_EQ(row[static_cast<std::size_t>(col)], expected) << "column " << col;
      }
  }
}

TEST(Sm80Product, GroupsOfRowsHaveARowOnEveryDevice) {
  for (const std::int64_t block : {0, 16, 32, 64, 128})
    for (const bool transposed : {false, true}) {
      const MatmulProblem problem = experts(8192, 4096, 4096, 8, block, transposed);
      for (const char* device : {"a100", "b200"})
        EXPECT_EQ(choose(problem, device_preset(device)).kernel_name, kThreeStages) << block;
      for (const char* device : {"l4", "l40s", "rtx4090"})
        EXPECT_EQ(choose(problem, device_preset(device)).kernel_name, kTwoStages) << block;
    }
}

TEST(Sm80Product, GroupsOnHopperAreLeftToItsOwnFamily) {
  for (const char* device : {"h100", "h200"})
    for (const std::int64_t groups : {1, 8, 64, 256})
      for (const std::int64_t tokens : {1, 64, 512, 8192, 65536}) {
        const MatmulProblem dense = experts(tokens, 4096, 4096, groups),
                            plain = experts(tokens, 2048, 7168, groups, 0, false),
                            sparse = experts(tokens, 4096, 4096, groups, 128);
        for (const MatmulProblem* problem : {&dense, &plain, &sparse})
          EXPECT_EQ(choose(*problem, device_preset(device)).kernel_name.substr(0, 12),
                    "sm90_matmul_")
              << device << ", " << groups << " groups, " << tokens << " tokens";
      }
  // Blocks that Hopper's own family does not support with groups.
  for (const std::int64_t block : {16, 32})
    EXPECT_EQ(choose(experts(8192, 4096, 4096, 8, block), device_preset("h100")).kernel_name,
              kThreeStages);
}

TEST(Sm80Product, GroupsHaveAnUpperBoundOfTiles) {
  const Sm80ProductLayout layout = layout_of<Sm80ProductLayout>(
      row_named(kThreeStages), shape_of(AnyProblem(experts(1000, 272, 64, 5))),
      device_preset("a100"));
  EXPECT_EQ(layout.rows, 272);
  EXPECT_EQ(layout.cols, 1000);
  EXPECT_EQ(layout.tiles, 3 * (4 + 5));
  EXPECT_EQ(layout.ctas, 27);
}

TEST(Sm80Product, MoreTokensAndMoreGroupsTakeLonger) {
  const auto ms = [](const MatmulProblem& problem) {
    return predict_ms(row_named(kTwoStages), shape_of(AnyProblem(problem)), device_preset("a100"));
  };
  EXPECT_LT(ms(experts(8192, 4096, 4096, 8)), ms(experts(16384, 4096, 4096, 8)));
  EXPECT_LT(ms(experts(8192, 4096, 4096, 8)), ms(experts(8192, 4096, 4096, 128)));
  EXPECT_LT(ms(experts(8192, 4096, 4096, 8, 64)), ms(experts(8192, 4096, 4096, 8)));
}

TEST(Sm80Product, SaysWhatGroupsItRefuses) {
  EXPECT_EQ(refused(experts(1000, 272, 80, 5)), "");
  EXPECT_EQ(refused(experts(1000, 272, 80, 5, 16, false)), "");
  EXPECT_EQ(refused(experts(0, 272, 80, 5)), "");
  EXPECT_NE(refused(experts(1000, 264, 80, 5)).find("columns of a dense b: expected a multiple"),
            std::string::npos);
  EXPECT_NE(refused(experts(1000, 272, 88, 5)).find("rows of a dense b: expected a multiple"),
            std::string::npos);
  MatmulProblem columns = experts(1000, 272, 80, 5);  // tokens are contiguous
  columns.a = transpose(Operand(shaped({80, 1000})));
  EXPECT_EQ(refused(columns).find("a:"), 0u) << refused(columns);
  MatmulProblem inner = experts(1000, 272, 80, 5);
  inner.group_axis = GroupAxis::inner;
  inner.a = shaped({96, 1024});
  inner.b = shaped({1024, 272});
  inner.out = shaped({5, 96, 272});
  EXPECT_EQ(refused(inner).find("group_axis inner"), 0u) << refused(inner);
  EXPECT_EQ(refused(inner).find("a sparse"), std::string::npos);
  MatmulProblem wide = experts(1000, 272, 80, 5);
  wide.b.dense.strides[0] = std::int64_t{1} << 34;
  EXPECT_NE(refused(wide).find("64 GiB"), std::string::npos);
  EXPECT_THROW(choose(inner, device_preset("a100")), Error);
}

TEST(Sm80Product, EachDeviceHasARowThatFits) {
  const MatmulProblem problem = product(8192, 8192, 8192, 64, 64);
  for (const char* device : {"a100", "h100", "h200", "b200"}) {
    EXPECT_EQ(refused(problem, device), "") << device;
    EXPECT_EQ(refused(problem, device, kTwoStages), "") << device;
  }
  for (const char* device : {"l4", "l40s", "rtx4090"}) {
    EXPECT_NE(refused(problem, device).find("bytes of shared memory"), std::string::npos);
    EXPECT_EQ(refused(problem, device, kTwoStages), "") << device;
  }
  for (const KernelRow& row : kSm80ProductRows)
    EXPECT_LE(sm80_product_shared_bytes(row.tile), (row.tile.stages > 2 ? 163 : 99) * 1024);
}

TEST(Sm80Product, IsChosenForManyColumnsBeforeAndAfterHopper) {
  for (const std::int64_t block : {32, 64, 128}) {
    const MatmulProblem problem = product(8192, 8192, 8192, block, block);
    for (const char* device : {"a100", "b200"})
      EXPECT_EQ(choose(problem, device_preset(device)).kernel_name, kThreeStages) << block;
    for (const char* device : {"l4", "l40s", "rtx4090"})
      EXPECT_EQ(choose(problem, device_preset(device)).kernel_name, kTwoStages) << block;
  }
}

TEST(Sm80Product, LargeProductsOnHopperAreLeftToItsOwnFamilies) {
  for (const std::int64_t block : {16, 32, 64, 128})
    for (const char* device : {"h100", "h200"}) {
      const MatmulProblem problem = product(8192, 8192, 8192, block, block);
      EXPECT_EQ(choose(problem, device_preset(device)).kernel_name.substr(0, 5), "sm90_") << block;
      EXPECT_EQ(choose(problem, device_preset(device), {.backend = Backend::sm80})
                    .kernel_name.substr(0, 5),
                "sm80_");
    }
}

TEST(Sm80Product, FewColumnsAreLeftToTheOtherFamily) {
  for (const std::int64_t block : {16, 64})
    for (const std::int64_t columns : {1, 8, 16})
      EXPECT_EQ(choose(product(14336, columns, 4096, block, block), device_preset("a100"))
                    .kernel_name.substr(0, 9),
                "sm80_bsr_");
}

TEST(Sm80Product, WalksListsAgainstTheStorage) {
  const MatmulProblem stored = product(4096, 4096, 4096, 32, 64),
                      against = product(4096, 4096, 4096, 32, 64, true);
  EXPECT_EQ(refused(against), "");
  EXPECT_EQ(choose(stored, device_preset("a100")).schedule_bytes, 0);
  EXPECT_GT(choose(against, device_preset("a100")).schedule_bytes, 0);
  EXPECT_EQ(choose(against, device_preset("a100")).kernel_name, kThreeStages);
}

TEST(Sm80Product, DividesAProductIntoTiles) {
  const auto layout = [](const MatmulProblem& problem) {
    return layout_of<Sm80ProductLayout>(row_named(kThreeStages), shape_of(AnyProblem(problem)),
                                        device_preset("a100"));
  };
  const Sm80ProductLayout large = layout(product(8192, 8192, 8192, 64, 64));
  EXPECT_EQ(large.tiles, 64 * 32);
  EXPECT_EQ(large.ctas, 108);
  const Sm80ProductLayout small = layout(product(144, 257, 64, 16, 64));
  EXPECT_EQ(small.rows, 144);
  EXPECT_EQ(small.cols, 257);
  EXPECT_EQ(small.tiles, 2 * 2);
  EXPECT_EQ(small.ctas, 4);
  EXPECT_EQ(layout(product(0, 256, 64, 64, 64)).tiles, 0);
}

TEST(Sm80Product, SmallerBlocksAndMoreOfThemTakeLonger) {
  const auto ms = [](const MatmulProblem& problem, const char* device) {
    return predict_ms(row_named(kTwoStages), shape_of(AnyProblem(problem)), device_preset(device));
  };
  for (const char* device : {"a100", "l4", "h200"}) {
    const auto square = [&](std::int64_t block) {
      return ms(product(8192, 8192, 8192, block, block), device);
    };
    EXPECT_LE(square(128), square(64));
    EXPECT_LT(square(64), square(32));
    EXPECT_LT(square(32), square(16));
    EXPECT_LT(ms(product(8192, 8192, 4096, 64, 64), device), square(64));
  }
}

TEST(Sm80Product, SaysWhatItRefuses) {
  EXPECT_EQ(refused(product(192, 255, 96, 96, 16)).find("b:"), 0u);  // rows of 510 bytes
  EXPECT_NE(
      refused(product(96, 256, 96, 8, 16)).find("block rows: expected a multiple of 16, got 8"),
      std::string::npos);
  EXPECT_NE(refused(product(96, 256, 96, 16, 24)).find("block columns"), std::string::npos);
  MatmulProblem dense = product(96, 256, 96, 16, 16);
  dense.a = shaped({96, 96});
  EXPECT_NE(refused(dense).find("a sparse a or b"), std::string::npos);
}

}  // namespace
