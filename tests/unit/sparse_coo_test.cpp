// COO triples and CSR lists to BSR, against sums in a map.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/pattern.hpp>

#include "tests/support/random.hpp"
#include "tests/unit/error_text.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names
using tessera::testing::contains;
using tessera::testing::error_text;

Coo random_coo(generate::Random& random, std::int64_t rows, std::int64_t cols) {
  Coo coo{rows, cols, {}, {}, {}};
  const std::int64_t entries = rows * cols == 0 ? 0 : random.between(0, 30);
  for (std::int64_t e = 0; e < entries; ++e) {
    coo.row.push_back(random.between(0, rows - 1));
    coo.col.push_back(random.between(0, cols - 1));
    coo.value.push_back(static_cast<double>(random.between(-4, 4)));  // zeros are entries too
  }
  return coo;
}

void expect_sums(const HostBsr& bsr, const Coo& coo, std::int64_t r, std::int64_t c) {
  std::map<std::pair<std::int64_t, std::int64_t>, double> sums;
  Pattern blocks = pattern_of(bsr.view());
  EXPECT_EQ(blocks, pattern_of(coo, r, c));
  std::map<std::pair<std::int64_t, std::int64_t>, int> touched;
  for (std::size_t e = 0; e < coo.row.size(); ++e) {
    sums[{coo.row[e], coo.col[e]}] += coo.value[e];
    touched[{coo.row[e] / r, coo.col[e] / c}] = 1;
  }
  EXPECT_EQ(blocks.stored(), static_cast<std::int64_t>(touched.size()));
  for (const auto& [block, one] : touched) EXPECT_TRUE(blocks.contains(block.first, block.second));
  HostTensor dense(DType::f32, {coo.rows, coo.cols});
  bsr_to_dense(bsr.view(), dense);
  for (std::int64_t i = 0; i < coo.rows; ++i) {
    for (std::int64_t j = 0; j < coo.cols; ++j) {
      const auto found = sums.find({i, j});
      const double sum = found == sums.end() ? 0.0 : found->second;
      ASSERT_EQ(static_cast<double>(dense.data<float>()[i * coo.cols + j]), sum);
    }
  }
}

TEST(Coo, SumsEqualCoordinates) {
  generate::Random random(21);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t r = random.between(1, 4), c = random.between(1, 4);
    const Coo coo = random_coo(random, random.between(0, 4) * r, random.between(0, 4) * c);
    const DType index = random.pick({DType::i32, DType::i64});
    expect_sums(bsr_from_coo(coo, r, c, DType::f32, index), coo, r, c);
  }
}

TEST(Coo, CsrListsAreTheSameTriples) {
  generate::Random random(22);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t r = random.between(1, 4), c = random.between(1, 4);
    Coo coo{random.between(0, 4) * r, random.between(0, 4) * c, {}, {}, {}};
    std::vector<std::int64_t> offsets{0};
    for (std::int64_t i = 0; i < coo.rows; ++i) {
      const std::int64_t length = coo.cols == 0 ? 0 : random.between(0, 5);
      for (std::int64_t t = 0; t < length; ++t) {
        coo.row.push_back(i);
        coo.col.push_back(random.between(0, coo.cols - 1));
        coo.value.push_back(static_cast<double>(random.between(-4, 4)));
      }
      offsets.push_back(offsets.back() + length);
    }
    expect_sums(bsr_from_csr(coo.rows, coo.cols, offsets, coo.col, coo.value, r, c), coo, r, c);
  }
}

TEST(Coo, RoundsOnceAfterTheSum) {
  // Just above the middle of two f16 values, and of two bf16 values; f32 would round to the middle.
  const double above_f16 = 1.0 + 0x1p-11 + 0x1p-40, above_bf16 = 1.0 + 0x1p-8 + 0x1p-40;
  const auto stored = [](std::vector<double> values, DType dtype) {
    const std::vector<std::int64_t> zeros(values.size());
    const HostBsr bsr = bsr_from_coo({1, 1, zeros, zeros, std::move(values)}, 1, 1, dtype);
    return static_cast<double>(load_as_float(bsr.values.view().data, dtype, 0));
  };
  EXPECT_EQ(stored({above_f16}, DType::f16), 1.0 + 0x1p-10);
  EXPECT_EQ(stored({-above_f16}, DType::f16), -1.0 - 0x1p-10);
  EXPECT_EQ(stored({above_f16 - 0x1p-39}, DType::f16), 1.0);
  EXPECT_EQ(stored({1.0 + 0x1p-11}, DType::f16), 1.0);
  EXPECT_EQ(stored({1.0 + 0x1p-11 + 0x1p-23 - 0x1p-40}, DType::f16), 1.0 + 0x1p-10);
  EXPECT_EQ(stored({above_bf16}, DType::bf16), 1.0 + 0x1p-7);
  EXPECT_EQ(stored({1.0, 0x1p-11, 0x1p-40}, DType::f16), 1.0 + 0x1p-10);
  EXPECT_EQ(stored({0x1p-25 + 0x1p-70}, DType::f16), 0x1p-24);
  EXPECT_EQ(stored({0x1p-134 + 0x1p-160}, DType::bf16), 0x1p-133);
  EXPECT_EQ(stored({1e-300}, DType::f32), 0.0);
  EXPECT_EQ(stored({1e300}, DType::bf16), std::numeric_limits<double>::infinity());
  EXPECT_EQ(stored({1e300}, DType::e4m3), 448.0);
}

TEST(Coo, ArgumentsAreChecked) {
  const Coo good{4, 6, {0, 3}, {5, 1}, {1.0, 2.0}};
  const auto text = [](const Coo& coo, std::int64_t r = 1, std::int64_t c = 1) {
    return error_text([&] { bsr_from_coo(coo, r, c); });
  };
  EXPECT_NO_THROW(bsr_from_coo(good, 4, 3));
  EXPECT_PRED2(contains, text(good, 3, 1), "block_rows: expected a divisor of the 4 rows, got 3");
  EXPECT_PRED2(contains, text(good, 1, 4), "block_cols");
  EXPECT_PRED2(contains, text(good, 1, -6), "block_cols");
  EXPECT_PRED2(contains, text({4, 6, {4}, {0}, {1.0}}), "(4, 0)");
  EXPECT_PRED2(contains, text({4, 6, {0}, {-1}, {1.0}}), "(0, -1)");
  EXPECT_PRED2(contains, text({4, 6, {0, 1}, {0}, {1.0}}), "2 rows, 1 columns");
  EXPECT_PRED2(contains, text({-4, 6, {}, {}, {}}), "rows");
  EXPECT_THROW(pattern_of(good, 0, 1), Error);
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_PRED2(contains, text({kMax, kMax, {}, {}, {}}), "rows");
  EXPECT_PRED2(contains,
               error_text(
                   [&] {
                     bsr_from_coo({kMax / 4, 1, {}, {}, {}}, 1, 1);
                   },
                   ErrorCode::out_of_memory),
               "rows");
}

TEST(Coo, CsrOffsetsAreChecked) {
  const auto text = [](std::int64_t rows, const std::vector<std::int64_t>& offsets) {
    return error_text([&] { bsr_from_csr(rows, 4, offsets, {0, 1}, {1.0, 2.0}, 1, 1); });
  };
  EXPECT_NO_THROW(bsr_from_csr(2, 4, {0, 1, 2}, {0, 1}, {1.0, 2.0}, 1, 1));
  EXPECT_PRED2(contains, text(2, {0, 2}), "one more than the 2 rows");
  EXPECT_PRED2(contains, text(-1, {}), "rows");
  EXPECT_PRED2(contains, text(2, {1, 1, 2}), "got 1 to 2");
  EXPECT_PRED2(contains, text(2, {0, 1, 3}), "got 0 to 3");
  EXPECT_PRED2(contains, text(2, {0, 9, 2}), "expected 0 to 2 at entry 1, got 9");
  EXPECT_PRED2(contains, text(3, {0, 2, 1, 2}), "expected 2 to 2 at entry 2, got 1");
  EXPECT_PRED2(contains, error_text([] {
                 bsr_from_csr(1, 4, {0, 1}, {4}, {1.0}, 1, 1);
               }),
               "(0, 4)");
  EXPECT_PRED2(contains, error_text([] { bsr_from_csr(1, 4, {0, 1}, {3}, {}, 1, 1); }), "0 values");
}

}  // namespace
