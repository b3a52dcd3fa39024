// BSR matrices to and from dense ones, and their validation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/pattern.hpp>

#include "tests/support/random.hpp"
#include "tests/unit/error_text.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names
using tessera::testing::contains;
using tessera::testing::error_text;

constexpr float kPoison = 64.0f;

// A dense matrix with small whole values, in rows padded by poison, some blocks all zero.
struct Dense {
  DType dtype;
  std::int64_t rows, cols, pitch;
  HostTensor storage;
  bool turned;  // stored column by column

  Dense(generate::Random& random, DType type, std::int64_t height, std::int64_t width,
        std::int64_t block_rows, std::int64_t block_cols)
      : dtype(type),
        rows(height),
        cols(width),
        pitch(std::max(height, width) + random.between(0, 3)),
        storage(type, {std::max(height, width), pitch}),
        turned(random.chance(0.3)) {
    for (std::int64_t e = 0; e < storage.numel(); ++e) put(e, kPoison);
    std::vector<char> kept(static_cast<std::size_t>(rows / block_rows * (cols / block_cols)));
    for (char& keep : kept) keep = random.chance(0.5);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        const auto block = i / block_rows * (cols / block_cols) + j / block_cols;
        const bool keep = kept[static_cast<std::size_t>(block)] != 0;
        put(place(i, j), keep ? static_cast<float>(random.between(-8, 8)) : 0.0f);
      }
    }
  }
  std::int64_t place(std::int64_t i, std::int64_t j) const {
    return turned ? j * pitch + i : i * pitch + j;
  }
  void put(std::int64_t e, float value) {
    store_from_float(storage.data<std::byte>(), dtype, e, value);
  }
  float at(std::int64_t i, std::int64_t j) const {
    return load_as_float(storage.view().data, dtype, place(i, j));
  }
  Tensor view() const {
    return turned ? tensor(storage.view().data, dtype, {rows, cols}, {1, pitch})
                  : tensor(storage.view().data, dtype, {rows, cols}, {pitch, 1});
  }
};

double block_weight(const Dense& dense, std::int64_t i, std::int64_t j, std::int64_t r,
                    std::int64_t c) {
  double sum = 0;
  for (std::int64_t y = i * r; y < (i + 1) * r; ++y) {
    for (std::int64_t x = j * c; x < (j + 1) * c; ++x) {
      sum += static_cast<double>(dense.at(y, x)) * static_cast<double>(dense.at(y, x));
    }
  }
  return sum;
}

class BsrOfDType : public ::testing::TestWithParam<DType> {};

TEST_P(BsrOfDType, RoundTripsThroughDense) {
  generate::Random random(11);
  for (int round = 0; round < 150; ++round) {
    const std::int64_t r = random.between(1, 4), c = random.between(1, 4);
    const std::int64_t rows = random.between(0, 5) * r, cols = random.between(0, 5) * c;
    const Dense dense(random, GetParam(), rows, cols, r, c);
    const DType index = random.pick({DType::i32, DType::i64});
    const HostBsr bsr = bsr_from_dense(dense.view(), r, c, 0.0, index);
    validate(bsr.view());
    EXPECT_EQ(bsr.row_offsets.view().dtype, index);
    const Pattern pattern = pattern_of(bsr.view());
    for (std::int64_t i = 0; i < rows / r; ++i) {
      for (std::int64_t j = 0; j < cols / c; ++j) {
        ASSERT_EQ(pattern.contains(i, j), block_weight(dense, i, j, r, c) != 0.0);
      }
    }
    const Dense back(random, GetParam(), rows, cols, r, c);
    bsr_to_dense(bsr.view(), back.view());
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) ASSERT_EQ(back.at(i, j), dense.at(i, j));
    }
    // The padding between the rows is unchanged.
    std::int64_t poisoned = 0;
    for (std::int64_t e = 0; e < back.storage.numel(); ++e) {
      poisoned += load_as_float(back.storage.view().data, back.dtype, e) == kPoison;
    }
    EXPECT_EQ(poisoned, back.storage.numel() - rows * cols);
  }
}

TEST_P(BsrOfDType, HasTheBlocksOfAPattern) {
  generate::Random random(12);
  const Dense dense(random, GetParam(), 6, 8, 1, 1);
  const Pattern pattern{3, 2, {0, 1, 1, 3}, {1, 0, 1}};
  const HostBsr bsr = bsr_from_dense(dense.view(), pattern, 2, 4);
  EXPECT_EQ(pattern_of(bsr.view()), pattern);
  const Dense back(random, GetParam(), 6, 8, 1, 1);
  bsr_to_dense(bsr.view(), back.view());
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t j = 0; j < 8; ++j) {
      EXPECT_EQ(back.at(i, j), pattern.contains(i / 2, j / 4) ? dense.at(i, j) : 0.0f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, BsrOfDType,
                         ::testing::Values(DType::f32, DType::f16, DType::bf16, DType::e4m3,
                                           DType::e5m2),
                         [](const auto& dtype) { return to_string(dtype.param); });

TEST(Bsr, ThresholdCutsByTheLargestElement) {
  const float data[] = {0.5f, 0.0f, 1.0f, 0.0f,  //
                        0.0f, 0.0f, 0.0f, -3.0f};
  const Tensor dense = tensor(data, DType::f32, {2, 4});
  const auto kept = [&](double threshold) {
    return pattern_of(bsr_from_dense(dense, 2, 2, threshold).view()).indices;
  };
  EXPECT_EQ(kept(0.0), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(kept(0.5), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(kept(3.0), (std::vector<std::int64_t>{}));
  EXPECT_EQ(kept(-1.0), (std::vector<std::int64_t>{0, 1}));
  EXPECT_PRED2(contains, error_text([&] { kept(std::nan("")); }), "threshold");
}

TEST(Bsr, BlocksWithNanAreKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float data[] = {0.0f, 5.0f, nan, 0.0f};
  const Tensor dense = tensor(data, DType::f32, {1, 4});
  EXPECT_EQ(pattern_of(bsr_from_dense(dense, 1, 1, 9.0).view()).indices,
            (std::vector<std::int64_t>{2}));
}

// Blocks with NaN cannot be ordered by weight; blocks with infinity can.
TEST(Bsr, KeepingTheDensestRefusesNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = HUGE_VALF;
  float data[] = {0.0f, 5.0f, 1.0f, nan, 0.0f, -infinity, 1.0f, 1.0f};
  const Tensor dense = tensor(data, DType::f32, {2, 4});
  for (const double density : {0.0, 0.25, 1.0})
    EXPECT_EQ(error_text([&] { bsr_keep_densest(dense, 1, 2, density); }),
              "dense: expected no NaN, got one in block (0, 1)");
  data[3] = 1.0f;
  EXPECT_EQ(pattern_of(bsr_keep_densest(dense, 1, 2, 0.25).view()).offsets,
            (std::vector<std::int64_t>{0, 0, 1}));
}

TEST(Bsr, KeepsTheHeaviestBlocks) {
  generate::Random random(13);
  for (int round = 0; round < 100; ++round) {
    const std::int64_t r = random.between(1, 3), c = random.between(1, 3);
    const std::int64_t height = random.between(0, 5), width = random.between(0, 5);
    const Dense dense(random, DType::f32, height * r, width * c, r, c);
    const double density = random.uniform();
    const Pattern pattern = pattern_of(bsr_keep_densest(dense.view(), r, c, density).view());
    ASSERT_EQ(pattern.stored(), std::llround(density * static_cast<double>(height * width)));
    // A kept block is heavier than a dropped one, or as heavy and earlier.
    for (std::int64_t a = 0; a < height * width; ++a) {
      if (!pattern.contains(a / width, a % width)) continue;
      for (std::int64_t b = 0; b < height * width; ++b) {
        if (pattern.contains(b / width, b % width)) continue;
        const double kept = block_weight(dense, a / width, a % width, r, c);
        const double dropped = block_weight(dense, b / width, b % width, r, c);
        ASSERT_TRUE(kept > dropped || (kept == dropped && a < b));
      }
    }
  }
  const float one = 1.0f;
  const Tensor dense = tensor(&one, DType::f32, {1, 1});
  EXPECT_PRED2(contains, error_text([&] { bsr_keep_densest(dense, 1, 1, 1.5); }), "density");
  EXPECT_PRED2(contains, error_text([&] { bsr_keep_densest(dense, 1, 1, std::nan("")); }),
               "density");
}

TEST(Bsr, ArgumentsOfConversionsAreChecked) {
  HostTensor dense(DType::f32, {6, 8});
  EXPECT_PRED2(contains, error_text([&] { bsr_from_dense(dense, 4, 4); }),
               "block_rows: expected a divisor of the 6 rows, got 4");
  EXPECT_PRED2(contains, error_text([&] { bsr_from_dense(dense, 3, 3); }), "block_cols");
  EXPECT_PRED2(contains, error_text([&] { bsr_from_dense(dense, 0, 1); }), "block_rows");
  EXPECT_PRED2(contains, error_text([&] { bsr_from_dense(Tensor{}, 1, 1); }), "dense");
  EXPECT_PRED2(contains, error_text([&] { bsr_from_dense(HostTensor(DType::f32, {6}), 1, 1); }),
               "2 dimensions");
  const Pattern pattern{3, 3, {0, 0, 0, 0}, {}};
  EXPECT_PRED2(contains, error_text([&] { bsr_from_dense(dense, pattern, 2, 4); }), "pattern");
  EXPECT_PRED2(contains, error_text([&] { make_bsr(pattern, 2, 4, DType::f32, DType::u8); }),
               "index");
  EXPECT_PRED2(contains, error_text([&] { make_bsr(pattern, 0, 4, DType::f32); }), "block_rows");

  const HostBsr bsr = make_bsr(pattern, 2, 4, DType::f32);
  HostTensor small(DType::f32, {6, 8}), half(DType::f16, {6, 12});
  EXPECT_PRED2(contains, error_text([&] { bsr_to_dense(bsr.view(), small); }), "f32[6, 12]");
  EXPECT_PRED2(contains, error_text([&] { bsr_to_dense(bsr.view(), half); }), "f32[6, 12]");
  HostTensor wide(DType::f32, {6, 12});
  const Tensor alias = tensor(wide.data<float>(), DType::f32, {6, 12}, {11, 1});
  EXPECT_PRED2(contains, error_text([&] { bsr_to_dense(bsr.view(), alias); }), "strides");
  Tensor elsewhere = wide.view();
  elsewhere.device = {DeviceKind::cuda, 0};
  EXPECT_PRED2(contains, error_text([&] { bsr_to_dense(bsr.view(), elsewhere); }),
               "dense: expected all tensors on cpu");
}

TEST(Bsr, NarrowIndicesRefuseWhatTheyCannotHold) {
  constexpr auto kLarge = std::int64_t{1} << 31;
  const Pattern pattern{1, kLarge + 1, {0, 1}, {kLarge}};
  EXPECT_PRED2(contains, error_text([&] { make_bsr(pattern, 1, 1, DType::f32); }), "use i64");
  const HostBsr wide = make_bsr(pattern, 1, 1, DType::f32, DType::i64);
  EXPECT_EQ(pattern_of(wide.view()), pattern);
  EXPECT_PRED2(contains, error_text([&] { make_bsr(pattern, 1, kLarge * kLarge, DType::f32); }),
               "block_cols");
}

// A small matrix whose lists a test may make invalid.
struct Lists {
  HostBsr bsr = make_bsr({2, 3, {0, 2, 3}, {0, 2, 1}}, 2, 2, DType::f32);
  void offset(int i, std::int32_t value) { bsr.row_offsets.data<std::int32_t>()[i] = value; }
  void column(int i, std::int32_t value) { bsr.col_indices.data<std::int32_t>()[i] = value; }
  std::string text() {
    return error_text([&] { validate(bsr.view()); });
  }
};

TEST(BsrValidation, NamesTheError) {
  EXPECT_NO_THROW(validate(Lists().bsr.view()));
  const auto spoilt_offset = [](int i, std::int32_t value) {
    Lists lists;
    lists.offset(i, value);
    return lists.text();
  };
  const auto spoilt_column = [](int i, std::int32_t value) {
    Lists lists;
    lists.column(i, value);
    return lists.text();
  };
  EXPECT_PRED2(contains, spoilt_offset(0, 1), "row_offsets");
  EXPECT_PRED2(contains, spoilt_offset(2, 2), "row_offsets: expected offsets that end at 3, got 2");
  EXPECT_PRED2(contains, spoilt_offset(2, 4),
               "row_offsets: expected offsets 0 to 3, got 4 at entry 2");
  EXPECT_PRED2(contains, spoilt_offset(1, 9), "expected offsets 0 to 3, got 9 at entry 1");
  EXPECT_PRED2(contains, spoilt_offset(1, -9), "never decrease, got -9 after 0 at entry 1");
  EXPECT_PRED2(contains, spoilt_column(2, 3),
               "bsr: col_indices: expected block columns in [0, 3), got 3 in block row 1");
  EXPECT_PRED2(contains, spoilt_column(2, -1),
               "col_indices: expected block columns in [0, 3), got -1");
  EXPECT_PRED2(contains, spoilt_column(1, 0),
               "sorted and unique in a row, got 0 after 0 in block row 0");
  EXPECT_PRED2(contains, spoilt_column(0, 2),
               "sorted and unique in a row, got 2 after 2 in block row 0");
}

TEST(BsrValidation, ShapesAndDTypes) {
  const Lists lists;
  const auto text = [&](auto&& spoil) {
    BsrMatrix matrix = lists.bsr.view();
    spoil(matrix);
    return error_text([&] { validate(matrix); });
  };
  const HostTensor wide(DType::i64, {3}), flags(DType::u8, {3}), two(DType::i32, {2});
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m = {}; }), "values");
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m.rows = 5; }),
               "bsr: rows: expected a multiple of the block size 2");
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m.rows = 6; }), "row_offsets");
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m.cols = 7; }),
               "bsr: cols: expected a multiple of the block size 2");
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m.rows = -4; }), "bsr: rows:");
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m.values.rank = 2; }), "values");
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m.values.shape[1] = 0; }),
               "blocks of at least 1 x 1");
  EXPECT_PRED2(contains, text([&](BsrMatrix& m) { m.col_indices = wide; }), "i32");
  EXPECT_PRED2(contains, text([&](BsrMatrix& m) { m.row_offsets = flags; }), "u8");
  EXPECT_PRED2(contains, text([&](BsrMatrix& m) { m.col_indices = two; }), "stored blocks = 3");
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m.col_indices = {}; }), "col_indices");
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m.col_indices.data = nullptr; }), "null");
  EXPECT_PRED2(contains, text([](BsrMatrix& m) { m.row_offsets.device.kind = DeviceKind::cuda; }),
               "row_offsets: expected all tensors on cpu");
}

TEST(BsrValidation, BatchesShareOrOwnTheirLists) {
  HostTensor own_values(DType::f32, {2, 3, 2, 2}), shared_values(DType::f32, {3, 2, 2});
  HostTensor own_columns(DType::i32, {2, 3}), own_offsets(DType::i32, {2, 3});
  const std::int32_t columns[] = {0, 2, 1, 0, 1, 2}, offsets[] = {0, 2, 3, 0, 0, 3};
  std::copy(columns, columns + 6, own_columns.data<std::int32_t>());
  std::copy(offsets, offsets + 6, own_offsets.data<std::int32_t>());
  const Lists lists;
  const Tensor shared_columns = lists.bsr.col_indices, shared_offsets = lists.bsr.row_offsets;

  EXPECT_NO_THROW(validate(BsrMatrix{own_values, own_offsets, own_columns, 4, 6}));
  EXPECT_NO_THROW(validate(BsrMatrix{own_values, shared_offsets, own_columns, 4, 6}));
  EXPECT_NO_THROW(validate(BsrMatrix{own_values, shared_offsets, shared_columns, 4, 6}));
  EXPECT_PRED2(contains, error_text([&] {
                 validate(BsrMatrix{HostTensor(DType::f32, {5, 3, 2, 2}), own_offsets,
                                    shared_columns, 4, 6});
               }),
               "batch = 5");

  // Matrices that each use a part of one pool: offsets need not begin at 0 or end at its end.
  own_offsets.data<std::int32_t>()[3] = 2;
  own_offsets.data<std::int32_t>()[4] = 2;
  const BsrMatrix pool{shared_values, own_offsets, shared_columns, 4, 6};
  EXPECT_NO_THROW(validate(pool));
  own_offsets.data<std::int32_t>()[2] = 2;
  EXPECT_NO_THROW(validate(pool));
  EXPECT_PRED2(contains, error_text([&] {
                 validate(BsrMatrix{own_values, own_offsets, shared_columns, 4, 6});
               }),
               "got 2 of matrix 0");
  own_offsets.data<std::int32_t>()[5] = 4;
  EXPECT_PRED2(contains, error_text([&] { validate(pool); }), "got 4 at entry 2 of matrix 1");
  EXPECT_PRED2(contains, error_text([&] { pattern_of(pool); }), "of matrix 1");
  own_offsets.data<std::int32_t>()[5] = 3;
  EXPECT_PRED2(contains, error_text([&] { pattern_of(pool); }), "unbatched");
}

TEST(Bsr, ReadsListsAndValuesOfAnyStrides) {
  // Values stored with columns before rows, lists with gaps.
  HostTensor values(DType::f32, {2, 3, 2});
  for (std::int64_t e = 0; e < 12; ++e) values.data<float>()[e] = static_cast<float>(e + 1);
  const std::int64_t offsets[] = {0, -1, 1, -1, 2, -1}, columns[] = {1, -1, -1, 0, -1, -1};
  const BsrMatrix matrix{swap_dims(values, 1, 2), tensor(offsets, DType::i64, {3}, {2}),
                         tensor(columns, DType::i64, {2}, {3}), 4, 6};
  HostTensor dense(DType::f32, {4, 6});
  bsr_to_dense(matrix, dense);
  const float expected[] = {0, 0, 0,  1, 3, 5, 0, 0,  0,  2, 4, 6,  //
                            7, 9, 11, 0, 0, 0, 8, 10, 12, 0, 0, 0};
  for (int e = 0; e < 24; ++e) EXPECT_EQ(dense.data<float>()[e], expected[e]) << e;
}

}  // namespace
