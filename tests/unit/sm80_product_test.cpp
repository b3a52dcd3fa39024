// Block-sparse products by sm80_product: the index arithmetic of its operands in shared memory,
// with ldmatrix and mma.sync emulated as PTX defines them; which devices plan which row, when it is
// chosen, and what it refuses.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/kernels/cuda/sm80/product/operands.hpp"
#include "src/kernels/cuda/sm80/product/plan.hpp"
#include "src/kernels/cuda/sm80/product/rows.hpp"
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
template <bool kDenseDeep, bool kBlocksDeep>
void expect_product() {
  using Dense = DenseSide<kColumns, kDenseDeep>;
  using Pieces = PieceSide<kRows, kBlocksDeep>;
  expect_whole_copy<typename Dense::Rows>(kDenseDeep ? kColumns : kDepth);
  expect_whole_copy<typename Pieces::Rows>(kBlocksDeep ? kRows : kDepth);
  const Memory dense = filled<typename Dense::Rows>(kColumns, kDenseDeep, 1);
  const Memory pieces = filled<typename Pieces::Rows>(kRows, kBlocksDeep, 2);
  for (int warp = 0; warp < kColumns / kWarpColumns; ++warp)
    for (int quarter = 0; quarter < kRows / 16; ++quarter) {
      std::array<std::array<std::array<int, 4>, 32>, 4> sum{};
      for (int unit = 0; unit < kUnits; ++unit) {
        std::array<unsigned, 32> left_at{};
        for (int lane = 0; lane < 32; ++lane)
          left_at[static_cast<std::size_t>(lane)] = Pieces::at(Pieces::from(lane), quarter, unit);
        expect_no_conflicts(left_at);
        const Words left = ldmatrix(pieces, left_at, !kBlocksDeep);
        for (int pair = 0; pair < 2; ++pair) {
          std::array<unsigned, 32> right_at{};
          for (int lane = 0; lane < 32; ++lane)
            right_at[static_cast<std::size_t>(lane)] =
                Dense::at(Dense::from(warp, lane), unit, pair);
          expect_no_conflicts(right_at);
          const Words right = ldmatrix(dense, right_at, !kDenseDeep);
          mma(sum[static_cast<std::size_t>(pair * 2)], left, right, 0);
          mma(sum[static_cast<std::size_t>(pair * 2 + 1)], left, right, 2);
        }
      }
      for (int lane = 0; lane < 32; ++lane)
        for (int eight = 0; eight < 4; ++eight)
          for (int i = 0; i < 4; ++i) {
            const int row = quarter * 16 + lane / 4 + i / 2 * 8;
            const int column = warp * kWarpColumns + eight * 8 + lane % 4 * 2 + i % 2;
            int expected = 0;
            for (int depth = 0; depth < kDepth; ++depth)
              expected += value(row, depth, 2) * value(column, depth, 1);
            ASSERT_EQ(sum[static_cast<std::size_t>(eight)][static_cast<std::size_t>(lane)]
                         [static_cast<std::size_t>(i)],
                      expected);
          }
    }
}

TEST(Sm80Product, OperandsReachTheRegistersInOrder) {
  expect_product<true, true>();
  expect_product<true, false>();
  expect_product<false, true>();
  expect_product<false, false>();
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
  MatmulProblem grouped = dense;
  grouped.b = shaped({2, 96, 256});
  grouped.group_offsets = shaped({3}, DType::i32);
  EXPECT_NE(refused(grouped).find("group_offsets"), std::string::npos);
}

}  // namespace
