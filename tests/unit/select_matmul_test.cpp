// Which Hopper row is chosen for a product, its layout, and what explain says.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/kernels/cuda/sm90/skinny/plan.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
  return tensor(nullptr, dtype, shape, {DeviceKind::cuda, 0});
}

MatmulProblem dense(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype = DType::bf16) {
  MatmulProblem p;
  p.a = shaped({m, k}, dtype), p.b = shaped({n, k}, dtype), p.out = shaped({m, n}, dtype);
  p.b.transposed = true;
  return p;
}

/// By kernels of our own: cuBLASLt has tests of its own.
Explanation on_h200(const MatmulProblem& problem) {
  return select(problem, device_preset("h200"), {.backend = Backend::sm90});
}

MatmulShape shape_for(const MatmulProblem& problem) {
  return std::get<MatmulShape>(shape_of(AnyProblem(problem)));
}

MatmulLayout layout_of(const MatmulProblem& problem, const std::string& row) {
  return matmul_layout(shape_for(problem), row_named(row).tile, device_preset("h200"));
}

SkinnyLayout skinny_of(const MatmulProblem& problem, const std::string& row) {
  return skinny_layout(shape_for(problem), row_named(row), device_preset("h200"));
}

TEST(SelectMatmul, NarrowTilesForTheShortSide) {
  const std::pair<std::int64_t, const char*> sides[] = {
      {1, "sm90_skinny_m256_n16_k64_s24"},    {16, "sm90_skinny_m256_n16_k64_s24"},
      {32, "sm90_skinny_m256_n32_k64_s24"},   {64, "sm90_skinny_m256_n64_k64_s24"},
      {128, "sm90_skinny_m256_n128_k64_s24"}, {8192, "sm90_matmul_m128_n256_k64_s4"}};
  for (const auto& [side, row] : sides) {
    EXPECT_EQ(on_h200(dense(side, 8192, 8192)).plan.kernel_name, row) << side << " rows";
    EXPECT_EQ(on_h200(dense(8192, side, 8192)).plan.kernel_name, row) << side << " columns";
    if (side == 8192) continue;
    EXPECT_TRUE(skinny_of(dense(side, 8192, 8192), row).swapped);
    EXPECT_FALSE(skinny_of(dense(8192, side, 8192), row).swapped);
  }
}

TEST(SelectMatmul, DepthIsSplitWhereTilesAreFew) {
  const char* row = "sm90_matmul_m128_n16_k64_s8";
  EXPECT_EQ(layout_of(dense(1, 16896, 8192), row).splits, 1);  // 132 tiles
  EXPECT_EQ(layout_of(dense(1, 8192, 8192), row).splits, 2);
  EXPECT_EQ(layout_of(dense(1, 4096, 8192), row).splits, 3);
  EXPECT_EQ(layout_of(dense(1, 2048, 8192), row).splits, 6);
  EXPECT_EQ(layout_of(dense(1, 2048, 64), row).splits, 1);  // one step
  EXPECT_EQ(layout_of(dense(8192, 8192, 8192), "sm90_matmul_m128_n256_k64_s4").splits, 1);
}

TEST(SelectMatmul, SkinnyTilesFillTheDeviceAndFit) {
  for (std::int64_t rows : {1, 300, 4096, 8192, 14336, 100000})
    for (std::int64_t tokens : {1, 16, 100, 128, 500})
      for (std::int64_t k : {0, 64, 8192})
        for (const char* row : {"sm90_skinny_m256_n16_k64_s24", "sm90_skinny_m256_n64_k64_s24",
                                "sm90_skinny_m256_n128_k64_s24"})
          for (bool contiguous : {false, true}) {
            MatmulShape shape = shape_for(dense(tokens, rows, k));
            for (OperandShape* o : {&shape.a, &shape.b})
              o->unit_row_stride = contiguous, o->unit_col_stride = !contiguous;
            const Tile& tile = row_named(row).tile;
            const SkinnyLayout at = skinny_layout(shape, row_named(row), device_preset("h200"));
            EXPECT_GE(at.row_tiles * at.height, at.rows);
            EXPECT_GE(at.col_tiles * tile.n, at.cols);
            EXPECT_LE(at.height, tile.m);
            EXPECT_EQ(at.height % (contiguous ? 64 : 8), 0);
            const int columns = skinny_loaded(tile.n, contiguous);
            EXPECT_GE(at.stages, 2);
            EXPECT_LE(at.stages * (at.height + columns) * 128, at.shared_bytes);
            EXPECT_LE(at.at_once * (at.shared_bytes + 3072), 228 * 1024);
          }
}

TEST(SelectMatmul, SplitsNeverPassTheStepsOrTheClusters) {
  for (std::int64_t m : {1, 130, 4000})
    for (std::int64_t n : {1, 100, 5000})
      for (std::int64_t k : {0, 1, 64, 65, 500, 100000})
        for (const KernelRow& row : rows_of(Backend::sm90)) {
          if (family_of(row).name != "sm90_matmul") continue;
          const MatmulLayout at = layout_of(dense(m, n, k), row.name);
          EXPECT_LE(at.splits, std::max<std::int64_t>(at.steps, 1));
          EXPECT_LE(at.splits, can_split(row.tile) ? kMatmulMaxSplits : 1);
        }
}

TEST(SelectMatmul, UnreadableRowsAreCopied) {
  const Explanation odd = on_h200(dense(100, 100, 63));
  ASSERT_TRUE(odd.supported) << to_text(odd);
  EXPECT_NE(to_text(odd).find("copies a "), std::string::npos) << to_text(odd);
  EXPECT_NE(to_text(odd).find("copies b "), std::string::npos) << to_text(odd);
  // The copies of a and b may have either orientation: 63 rows of 128 are larger than 100 of 64.
  EXPECT_EQ(odd.plan.workspace_bytes, 2 * 2 * 63 * 128);
  EXPECT_EQ(on_h200(dense(100, 100, 64)).plan.workspace_bytes, 0);
  EXPECT_EQ(to_text(on_h200(dense(100, 100, 64))).find("copies"), std::string::npos);
}

TEST(SelectMatmul, StoredBlocksAreNotCopied) {
  MatmulProblem p;
  BsrMatrix a{
      tensor(nullptr, DType::bf16, {3, 128, 128}, {128 * 129, 129, 1}, {DeviceKind::cuda, 0}),
      shaped({3}, DType::i32), shaped({3}, DType::i32), 256, 256};
  p.a = a, p.b = shaped({256, 64}), p.out = shaped({256, 64});
  const Explanation e = on_h200(p);
  EXPECT_NE(to_text(e).find("a: expected contiguous rows or columns"), std::string::npos)
      << to_text(e);
}

TEST(SelectMatmul, GroupsOfEitherAxis) {
  MatmulProblem p;
  p.a = shaped({1000, 512}), p.b = shaped({8, 512, 256}), p.out = shaped({1000, 256});
  p.group_offsets = shaped({9}, DType::i32);
  const Explanation rows = on_h200(p);
  ASSERT_TRUE(rows.supported) << to_text(rows);
  const MatmulLayout at = layout_of(p, "sm90_matmul_m128_n256_k64_s4");
  EXPECT_EQ(at.cut, Cut::rows);
  EXPECT_EQ(at.tiles, 8 + 8);  // each group may end with a tile that is not full
  EXPECT_EQ(layout_of(p, "sm90_matmul_m128_n16_k64_s8").cut, Cut::cols);

  p.a = shaped({512, 1000}), p.b = shaped({1000, 256}), p.out = shaped({8, 512, 256});
  p.group_axis = GroupAxis::inner;
  const Explanation inner = on_h200(p);
  ASSERT_TRUE(inner.supported) << to_text(inner);
  EXPECT_EQ(layout_of(p, "sm90_matmul_m128_n256_k64_s4").cut, Cut::depth);
  EXPECT_EQ(layout_of(p, "sm90_matmul_m128_n256_k64_s4").tiles, 4 * 8);
}

TEST(SelectMatmul, F32IsRefused) {
  const Explanation e = on_h200(dense(64, 64, 64, DType::f32));
  EXPECT_FALSE(e.supported);
  EXPECT_NE(to_text(e).find("a: dtype f32 is not supported (supported: f16, bf16)"),
            std::string::npos);
}

/// A sparse matrix [rows, cols] with a quarter of its blocks, times a dense one of `columns`
/// columns; walked by rows of blocks as it is stored, or by columns of blocks.
MatmulProblem sparse(std::int64_t rows, std::int64_t cols, std::int64_t columns, std::int64_t block,
                     bool transposed = false) {
  BsrMatrix m;
  const std::int64_t stored = rows / block * (cols / block) / 4;
  m.rows = rows, m.cols = cols;
  m.values = shaped({stored, block, block});
  m.row_offsets = shaped({rows / block + 1}, DType::i32);
  m.col_indices = shaped({stored}, DType::i32);
  MatmulProblem p;
  p.a = m;
  p.a.transposed = transposed;
  p.b = shaped({transposed ? rows : cols, columns});
  p.out = shaped({transposed ? cols : rows, columns});
  return p;
}

TEST(SelectMatmul, SmallBlocksShareLoads) {
  for (std::int64_t block : {16, 32})
    EXPECT_EQ(on_h200(sparse(8192, 8192, 8192, block)).plan.kernel_name,
              "sm90_bsr_m384_n128_k64_s5");
  for (std::int64_t block : {64, 128})
    EXPECT_EQ(on_h200(sparse(8192, 8192, 8192, block)).plan.kernel_name,
              "sm90_matmul_m128_n256_k64_s4");
}

TEST(SelectMatmul, UnalignedRowsOfAResultCostTheSameInAnyNumberOfGroups) {
  const auto ms = [](std::int64_t groups, std::int64_t n) {
    MatmulProblem p;
    p.a = shaped({8192, 512}), p.b = shaped({groups, n, 512}), p.out = shaped({8192, n});
    p.b.transposed = true;
    p.group_offsets = shaped({groups + 1}, DType::i32);
    return predict_ms(row_named("sm90_matmul_m128_n256_k64_s4"), shape_of(AnyProblem(p)),
                      device_preset("h100"));
  };
  const double few = ms(8, 1001) - ms(8, 1008), many = ms(64, 1001) - ms(64, 1008);
  EXPECT_GT(few, 0.02);
  EXPECT_NEAR(few, many, 0.005);
}

TEST(SelectMatmul, ExplainsHowListsAreWalked) {
  const auto says = [](std::int64_t columns, std::int64_t block, const char* words) {
    const std::string text = to_text(on_h200(sparse(8192, 8192, columns, block)));
    return text.find(words) != std::string::npos;
  };
  EXPECT_TRUE(says(8192, 64, "rows of blocks share their loads"));
  EXPECT_FALSE(says(8192, 128, "rows of blocks share their loads"));
  EXPECT_TRUE(says(8192, 128, "dynamic tiles"));
  EXPECT_FALSE(says(128, 128, "dynamic tiles"));
}

TEST(SelectMatmul, FewColumnsStreamTheStoredBlocks) {
  EXPECT_EQ(on_h200(sparse(14336, 4096, 16, 32)).plan.kernel_name, "sm90_bsr_m64_n64_k64_s4");
  for (std::int64_t block : {64, 128}) {
    EXPECT_EQ(on_h200(sparse(14336, 4096, 1, block)).plan.kernel_name,
              "sm90_skinny_m256_n16_k64_s24");
    EXPECT_EQ(on_h200(sparse(14336, 4096, 16, block)).plan.kernel_name,
              "sm90_skinny_m256_n16_k64_s24");
    EXPECT_EQ(on_h200(sparse(14336, 4096, 64, block)).plan.kernel_name,
              "sm90_skinny_m256_n64_k64_s24");
  }
  // The transposed matrix is walked by columns of blocks.
  EXPECT_EQ(on_h200(sparse(4096, 14336, 16, 64, true)).plan.kernel_name, "sm90_bsr_m64_n64_k64_s4");
}

TEST(SelectMatmul, ListsByColumnArePrepared) {
  for (std::int64_t block : {16, 64, 128}) {
    const Plan by_rows = on_h200(sparse(4096, 8192, 8192, block)).plan;
    const Plan by_columns = on_h200(sparse(4096, 8192, 8192, block, true)).plan;
    EXPECT_EQ(by_rows.schedule_bytes, 0) << block;
    EXPECT_GT(by_columns.schedule_bytes, 0) << block;
    EXPECT_EQ(by_columns.kernel_name, "sm90_bsr_m384_n128_k64_s5") << block;
  }
}

TEST(SelectMatmul, BlocksOfOtherSizesAreRefused) {
  const Explanation refused = on_h200(sparse(4096, 4096, 64, 8));
  EXPECT_FALSE(refused.supported);
  EXPECT_NE(to_text(refused).find("block rows: expected a multiple of 16, got 8"),
            std::string::npos);
}

TEST(SelectMatmul, PlansTellWhichOperandIsUnaligned) {
  MatmulProblem p = dense(64, 64, 64);
  const std::string aligned = on_h200(p).plan.signature;
  p.a = shaped({64, 64});
  p.a.dense.strides[0] = 65;
  const std::string a = on_h200(p).plan.signature;
  p = dense(64, 64, 64);
  p.b.dense.strides[0] = 65;
  const std::string b = on_h200(p).plan.signature;
  EXPECT_NE(a, aligned);
  EXPECT_NE(b, aligned);
  EXPECT_NE(a, b);
}

/// A group may begin at any row, so TMA can only read a where its depth is contiguous.
TEST(SelectMatmul, GroupsOfRowsCopyAColumnMajorA) {
  MatmulProblem p;
  p.a = shaped({256, 128}), p.b = shaped({4, 128, 64}), p.out = shaped({256, 64});
  p.group_offsets = shaped({5}, DType::i32);
  const std::string row = "sm90_matmul_m128_n64_k64_s6";
  EXPECT_FALSE(layout_of(p, row).copy_a);
  p.a.dense.strides[0] = 1, p.a.dense.strides[1] = 256;
  EXPECT_TRUE(layout_of(p, row).copy_a);
  p.a = shaped({128, 256});
  p.a.transposed = true;
  EXPECT_TRUE(layout_of(p, row).copy_a);
}

}  // namespace
