// Sparse matrices times few columns by sm80_bsr: when it is chosen, how it divides a product, and
// what it refuses.
#include <gtest/gtest.h>

#include <string>

#include "src/kernels/cuda/bsr/plan.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: a test of many small names
using namespace tessera::planning;  // NOLINT

constexpr const char *kEight = "sm80_bsr_m16_n8_k32_s1", *kSixtyFour = "sm80_bsr_m16_n64_k32_s1";

Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
  return tensor(nullptr, dtype, shape, {DeviceKind::cuda, 0});
}

/// y [tokens, outputs] = x W^T, or with `transposed` false y = x W; W has a fifth of its blocks.
MatmulProblem linear(std::int64_t tokens, std::int64_t outputs, std::int64_t inputs,
                     std::int64_t block, bool transposed = true) {
  MatmulProblem p;
  BsrMatrix w;
  w.rows = transposed ? outputs : inputs;
  w.cols = transposed ? inputs : outputs;
  const std::int64_t stored = (w.rows / block) * (w.cols / block) / 5;
  w.values = shaped({stored, block, block});
  w.row_offsets = shaped({w.rows / block + 1}, DType::i32);
  w.col_indices = shaped({stored}, DType::i32);
  p.a = shaped({tokens, inputs});
  p.b = w;
  p.b.transposed = transposed;
  p.out = shaped({tokens, outputs});
  return p;
}

FewColumnsLayout layout_for(const MatmulProblem& problem, const char* row = kEight,
                            const char* device = "h100") {
  return layout_of<FewColumnsLayout>(row_named(row), shape_of(AnyProblem(problem)),
                                     device_preset(device));
}

std::string refused(const MatmulProblem& problem) {
  std::string all;
  for (const std::string& reason :
       rejections(row_named(kEight), shape_of(AnyProblem(problem)), device_preset("h100")))
    all += reason + "; ";
  return all;
}

TEST(SelectFewColumns, IsChosenForSmallBlocksAndFewTokens) {
  for (const std::int64_t block : {16, 32})
    for (const std::int64_t tokens : {1, 8}) {
      const MatmulProblem problem = linear(tokens, 14336, 4096, block);
      EXPECT_EQ(choose(problem, device_preset("h100")).kernel_name, kEight);
      EXPECT_EQ(choose(problem, device_preset("a100")).kernel_name, kEight);
    }
  // Thousands of tokens share what they read of W.
  EXPECT_EQ(choose(linear(8192, 8192, 8192, 32), device_preset("h100")).kernel_name.substr(0, 8),
            "sm90_bsr");
}

TEST(SelectFewColumns, FewThreadBlocksHaveMoreWarpsForEachStrip) {
  // 896 strips of 16 rows: four of a block of 64 make 224 thread blocks, two make 448.
  EXPECT_EQ(layout_for(linear(1, 14336, 4096, 64)).strips, 2);
  EXPECT_EQ(layout_for(linear(1, 28672, 4096, 64)).strips, 4);
  EXPECT_EQ(layout_for(linear(1, 4096, 4096, 64)).strips, 1);
  EXPECT_EQ(layout_for(linear(1, 28672, 4096, 16)).strips, 1);  // a strip fills a block
  EXPECT_EQ(layout_for(linear(1, 28416, 4032, 96)).strips, 2);  // six strips
  const FewColumnsLayout at = layout_for(linear(100, 14336, 4096, 64), kSixtyFour);
  EXPECT_EQ(at.rows, 14336);
  EXPECT_EQ(at.cols, 100);
  EXPECT_EQ(at.col_tiles, 2);
  EXPECT_EQ(at.ctas * at.strips, 896);
}

TEST(SelectFewColumns, WarpsShareColumnsAcrossRowsOfBlocks) {
  // 256 strips, each a row of blocks: 33 tiles of columns make 1056 thread blocks of eight.
  const FewColumnsLayout many = layout_for(linear(2112, 4096, 4096, 16), kSixtyFour);
  EXPECT_EQ(many.strips, 8);
  EXPECT_EQ(many.ctas, 32);
  EXPECT_EQ(layout_for(linear(128, 4096, 4096, 16), kSixtyFour).strips, 1);
  EXPECT_EQ(layout_for(linear(400, 4032, 4032, 48), kSixtyFour).strips, 4);
}

TEST(SelectFewColumns, OnlyCodeThatWaitsIsLaunchedEarly) {
  EXPECT_TRUE(layout_for(linear(1, 4096, 4096, 16)).overlapped);
  EXPECT_FALSE(layout_for(linear(1, 4096, 4096, 16), kEight, "a100").overlapped);
}

TEST(SelectFewColumns, MoreColumnsAndMoreBlocksTakeLonger) {
  const auto ms = [](const MatmulProblem& problem, const char* row) {
    return predict_ms(row_named(row), shape_of(AnyProblem(problem)), device_preset("h100"));
  };
  EXPECT_LT(ms(linear(1, 4096, 4096, 16), kEight), ms(linear(1, 16384, 4096, 16), kEight));
  EXPECT_LT(ms(linear(64, 4096, 4096, 16), kSixtyFour),
            ms(linear(640, 4096, 4096, 16), kSixtyFour));
  EXPECT_LT(ms(linear(1, 4096, 4096, 16), kEight), ms(linear(1, 4096, 4096, 16), kSixtyFour));
}

TEST(SelectFewColumns, VectorsAreReadAlongTheDepthWhereTheyAreContiguous) {
  const auto ms = [](std::int64_t stride) {
    MatmulProblem p = linear(1, 4096, 4096, 16);
    p.a = p.b, p.a.transposed = false;
    p.b = tensor(nullptr, DType::bf16, {4096, 1}, {stride, 1}, {DeviceKind::cuda, 0});
    p.out = shaped({4096, 1});
    return predict_ms(row_named(kEight), shape_of(AnyProblem(p)), device_preset("h100"));
  };
  EXPECT_LT(ms(1), ms(8));
}

TEST(SelectFewColumns, EveryMatrixOfABatchCounts) {
  MatmulProblem one = linear(1, 16384, 16384, 64), all = one;
  const std::int64_t stored = one.b.sparse.values.size(0);
  all.a = shaped({8, 1, 16384});
  all.b.sparse.values = shaped({8, stored, 64, 64});
  all.out = shaped({8, 1, 16384});
  const auto ms = [](const MatmulProblem& p) {
    return predict_ms(row_named(kEight), shape_of(AnyProblem(p)), device_preset("h100"));
  };
  EXPECT_GT(ms(all), 6 * ms(one));
}

TEST(SelectFewColumns, TheDenseSideMayLieInAnyWay) {
  MatmulProblem problem = linear(3, 4096, 4096, 16);
  problem.a = tensor(nullptr, DType::bf16, {3, 4096}, {4097, 1}, {DeviceKind::cuda, 0});
  EXPECT_EQ(refused(problem), "");
  problem.a = tensor(nullptr, DType::bf16, {3, 4096}, {5, 20}, {DeviceKind::cuda, 0});
  EXPECT_EQ(refused(problem), "");
}

TEST(SelectFewColumns, SaysWhatItRefuses) {
  EXPECT_EQ(refused(linear(1, 4096, 4096, 16)), "");
  EXPECT_NE(refused(linear(1, 4096, 4096, 16, false)).find("transpose_b with a sparse b"),
            std::string::npos);
  EXPECT_NE(refused(linear(1, 4096, 4096, 8)).find("block rows: expected a multiple of 16, got 8"),
            std::string::npos);
  MatmulProblem dense = linear(1, 4096, 4096, 16);
  dense.b = shaped({4096, 4096});
  dense.b.transposed = true;
  EXPECT_NE(refused(dense).find("a sparse a or b"), std::string::npos);
  MatmulProblem turned = linear(1, 4096, 4096, 16);
  turned.b.sparse.values = tensor(nullptr, DType::bf16, {turned.b.sparse.values.size(0), 16, 16},
                                  {256, 1, 16}, {DeviceKind::cuda, 0});
  EXPECT_NE(refused(turned).find("contiguous rows of each block"), std::string::npos);
  MatmulProblem grouped = linear(64, 4096, 4096, 16);
  grouped.b = shaped({2, 4096, 4096});
  grouped.group_offsets = shaped({3}, DType::i32);
  EXPECT_NE(refused(grouped).find("group_offsets"), std::string::npos);
  EXPECT_NE(refused(linear(8 * 65536, 4096, 4096, 16)).find("tiles of columns"), std::string::npos);
}

}  // namespace
