// Block masks: elements to lists and back, both forms of lists, validation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/pattern.hpp>

#include "tests/support/random.hpp"
#include "tests/unit/error_text.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names
using tessera::testing::contains;
using tessera::testing::error_text;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Elements with whole blocks set, whole blocks clear and mixed ones.
HostTensor random_elements(generate::Random& random, std::int64_t batch, std::int64_t heads,
                           std::int64_t q, std::int64_t kv, std::int64_t block_q,
                           std::int64_t block_kv) {
  HostTensor elements(DType::u8, {batch, heads, q, kv});
  auto* data = elements.data<std::uint8_t>();
  const std::int64_t cols = ceil_div(kv, block_kv);
  for (std::int64_t plane = 0; plane < batch * heads; ++plane) {
    std::vector<int> kinds(static_cast<std::size_t>(ceil_div(q, block_q) * cols));
    for (int& kind : kinds) kind = static_cast<int>(random.between(0, 3));
    for (std::int64_t i = 0; i < q; ++i) {
      for (std::int64_t j = 0; j < kv; ++j) {
        const int kind = kinds[static_cast<std::size_t>(i / block_q * cols + j / block_kv)];
        // Kind 2 is one tile that many blocks share.
        const bool set = kind == 1 || (kind == 2 && (i % block_q + j % block_kv) % 2 == 0) ||
                         (kind == 3 && random.chance(0.5));
        *data++ = set ? static_cast<std::uint8_t>(random.between(1, 255)) : 0;
      }
    }
  }
  return elements;
}

bool same_elements(const HostTensor& a, const HostTensor& b) {
  for (std::int64_t e = 0; e < a.numel(); ++e) {
    if ((a.data<std::uint8_t>()[e] != 0) != (b.data<std::uint8_t>()[e] != 0)) return false;
  }
  return a.numel() == b.numel();
}

// The same mask with offsets, in i64, with gaps between all entries and rows in reverse order.
struct OffsetForm {
  HostTensor offsets, indices, tiles;
  BlockList list;
  Tensor tile_view;

  OffsetForm(const HostTensor& counts, const HostTensor& padded, const HostTensor& bit_tile) {
    const std::int64_t planes = counts.view().size(0) * counts.view().size(1);
    const std::int64_t rows = counts.view().size(2), capacity = padded.view().size(3);
    std::int64_t total = 0;
    for (std::int64_t r = 0; r < planes * rows; ++r) total += counts.data<std::int32_t>()[r];
    offsets = HostTensor(DType::i64, {planes * (rows + 1)});
    indices = HostTensor(DType::i64, {2 * total});
    tiles = HostTensor(DType::i64, {3 * total});
    std::int64_t at = 0;
    for (std::int64_t plane = 0; plane < planes; ++plane) {
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t r = plane * rows + row;
        offsets.data<std::int64_t>()[plane * (rows + 1) + row] = at;
        for (std::int64_t t = counts.data<std::int32_t>()[r]; t-- > 0; ++at) {
          indices.data<std::int64_t>()[2 * at] = padded.data<std::int32_t>()[r * capacity + t];
          if (!bit_tile.view()) continue;
          tiles.data<std::int64_t>()[3 * at] = bit_tile.data<std::int32_t>()[r * capacity + t];
        }
      }
      offsets.data<std::int64_t>()[plane * (rows + 1) + rows] = at;
    }
    list.offsets = tensor(offsets.data<std::int64_t>(), DType::i64,
                          {counts.view().size(0), counts.view().size(1), rows + 1});
    list.indices = tensor(indices.data<std::int64_t>(), DType::i64, {total}, {2});
    tile_view = tensor(tiles.data<std::int64_t>(), DType::i64, {total}, {3});
  }
};

// Blocks by the definition of full, partial and empty.
void expect_lists(const HostBlockMask& mask, const HostTensor& elements) {
  const auto& shape = elements.view().shape;
  const std::int64_t rows = ceil_div(shape[2], mask.block_q);
  const std::int64_t cols = ceil_div(shape[3], mask.block_kv);
  std::set<std::string> tiles;
  for (std::int64_t plane = 0; plane < shape[0] * shape[1]; ++plane) {
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<std::int32_t> full, partial;
      for (std::int64_t col = 0; col < cols; ++col) {
        std::string tile(static_cast<std::size_t>(mask.block_q * mask.block_kv), '0');
        std::int64_t set = 0, all = 0;
        for (std::int64_t i = row * mask.block_q; i < std::min(shape[2], (row + 1) * mask.block_q);
             ++i) {
          for (std::int64_t j = col * mask.block_kv;
               j < std::min(shape[3], (col + 1) * mask.block_kv); ++j, ++all) {
            if (elements.data<std::uint8_t>()[(plane * shape[2] + i) * shape[3] + j] == 0) continue;
            tile[static_cast<std::size_t>(i % mask.block_q * mask.block_kv + j % mask.block_kv)] =
                '1';
            ++set;
          }
        }
        if (set == all) full.push_back(static_cast<std::int32_t>(col));
        if (set == 0 || set == all) continue;
        partial.push_back(static_cast<std::int32_t>(col));
        tiles.insert(tile);
      }
      const auto expect_row = [&](const HostTensor& counts, const HostTensor& indices,
                                  const std::vector<std::int32_t>& expected) {
        const std::int64_t r = plane * rows + row;
        ASSERT_EQ(counts.data<std::int32_t>()[r], static_cast<std::int32_t>(expected.size()));
        const auto* list = indices.data<std::int32_t>() + r * indices.view().size(3);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), list));
      };
      expect_row(mask.full_counts, mask.full_indices, full);
      if (mask.partial_counts.view()) {
        expect_row(mask.partial_counts, mask.partial_indices, partial);
      } else {
        ASSERT_TRUE(partial.empty());
      }
    }
  }
  ASSERT_EQ(mask.bits.view() ? mask.bits.view().size(0) : 0,
            static_cast<std::int64_t>(tiles.size()));
}

TEST(BlockMask, RoundTripsThroughElements) {
  generate::Random random(31);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t block_q = random.between(1, 6), block_kv = random.between(1, 20);
    const std::int64_t q = random.between(0, 15), kv = random.between(0, 45);
    const HostTensor elements = random_elements(random, random.between(1, 2), random.between(1, 3),
                                                q, kv, block_q, block_kv);
    const HostBlockMask mask = block_mask_from_elements(elements, block_q, block_kv);
    expect_lists(mask, elements);
    validate(mask.view(), q, kv);
    const auto& shape = elements.view().shape;
    HostTensor back(DType::u8, {shape[0], shape[1], q, kv});
    std::fill_n(back.data<std::uint8_t>(), back.numel(), std::uint8_t{99});
    block_mask_to_elements(mask.view(), back);
    ASSERT_TRUE(same_elements(elements, back));
    for (std::int64_t e = 0; e < back.numel(); ++e) ASSERT_LE(back.data<std::uint8_t>()[e], 1);
  }
}

TEST(BlockMask, BothFormsOfListsAreTheSameMask) {
  generate::Random random(32);
  for (int round = 0; round < 100; ++round) {
    const std::int64_t block_q = random.between(1, 4), block_kv = random.between(1, 10);
    const std::int64_t q = random.between(1, 12), kv = random.between(1, 30);
    const HostTensor elements = random_elements(random, 2, 2, q, kv, block_q, block_kv);
    const HostBlockMask counted = block_mask_from_elements(elements, block_q, block_kv);
    const OffsetForm full(counted.full_counts, counted.full_indices, {});
    BlockMask mask = counted.view();
    mask.full = full.list;
    HostTensor back(DType::u8, {2, 2, q, kv});
    if (!mask.partial) continue;
    const OffsetForm partial(counted.partial_counts, counted.partial_indices, counted.bit_tile);
    mask.partial = partial.list;
    mask.bit_tile = partial.tile_view;
    validate(mask, q, kv);
    block_mask_to_elements(mask, back);
    ASSERT_TRUE(same_elements(elements, back));
    for (std::int64_t plane = 0; plane < 4; ++plane) {
      const std::int64_t cols = ceil_div(kv, block_kv);
      const Pattern pattern = pattern_of(mask, cols, plane / 2, plane % 2);
      validate(pattern);
      ASSERT_EQ(pattern, pattern_of(counted.view(), cols, plane / 2, plane % 2));
    }
  }
}

TEST(BlockMask, ReadsElementsOfAnyStrides) {
  const std::uint8_t data[] = {1, 0, 1, 1, 1, 1};  // [kv = 3, q = 2]
  const Tensor turned = tensor(data, DType::u8, {2, 3}, {1, 2});
  const HostBlockMask mask = block_mask_from_elements(turned, 1, 2);
  HostTensor back(DType::u8, {2, 3});
  block_mask_to_elements(mask.view(), back);
  const std::uint8_t expected[] = {1, 1, 1, 0, 1, 1};
  EXPECT_TRUE(std::equal(expected, expected + 6, back.data<std::uint8_t>()));
  // One matrix, broadcast to all heads.
  const Tensor expanded = tensor(data, DType::u8, {1, 3, 2, 3}, {0, 0, 1, 2});
  const HostBlockMask wide = block_mask_from_elements(expanded, 1, 2);
  EXPECT_EQ(pattern_of(wide.view(), 2, 0, 2), pattern_of(mask.view(), 2));
}

TEST(BlockMask, RaggedBlocksAreFullIfAllTheirElementsAreSet) {
  HostTensor elements(DType::u8, {5, 7});
  std::fill_n(elements.data<std::uint8_t>(), 35, std::uint8_t{1});
  const HostBlockMask mask = block_mask_from_elements(elements, 4, 4);
  EXPECT_FALSE(static_cast<bool>(mask.view().partial));
  EXPECT_EQ(pattern_of(mask.view(), 2), patterns::random(2, 2, 1.0, 0));
}

TEST(BlockMask, FromPatterns) {
  const Pattern a{2, 3, {0, 1, 3}, {2, 0, 1}}, b{2, 3, {0, 0, 3}, {0, 1, 2}};
  const HostBlockMask one = make_block_mask(a, 16, 32);
  EXPECT_EQ(to_string(one.full_indices), "i32[1, 1, 2, 2] on cpu");
  EXPECT_EQ(pattern_of(one.view(), 3), a);
  EXPECT_EQ(pattern_of(one.view(), 3, 4, 5), a);  // the same for all

  const HostBlockMask heads = make_block_mask({a, b}, 3, 2, 16, 32);
  EXPECT_EQ(to_string(heads.full_indices), "i32[1, 2, 2, 3] on cpu");
  EXPECT_EQ(pattern_of(heads.view(), 3, 2, 0), a);
  EXPECT_EQ(pattern_of(heads.view(), 3, 2, 1), b);

  const HostBlockMask all = make_block_mask({a, b, b, a}, 2, 2, 16, 32);
  EXPECT_EQ(pattern_of(all.view(), 3, 0, 1), b);
  EXPECT_EQ(pattern_of(all.view(), 3, 1, 1), a);
  validate(all.view(), 32, 96);

  EXPECT_PRED2(contains, error_text([&] { make_block_mask({a, b}, 2, 3, 16, 32); }), "got 2");
  EXPECT_PRED2(contains, error_text([&] { make_block_mask({}, 1, 1, 16, 32); }), "patterns");
  EXPECT_PRED2(contains, error_text([&] { make_block_mask(a, 0, 32); }), "block_q");
  EXPECT_PRED2(contains, error_text([&] {
                 make_block_mask({a, transpose(a)}, 1, 2, 16, 32);
               }),
               "2 x 3");
  EXPECT_PRED2(contains, error_text([&] { pattern_of(heads.view(), 3, 0, 2); }), "head");
  EXPECT_PRED2(contains, error_text([&] { pattern_of(heads.view(), 3, -1, 0); }), "batch");
  EXPECT_PRED2(contains, error_text([&] { pattern_of(heads.view(), 2); }), "in [0, 2), got 2");
}

TEST(BlockMask, AnEmptyMaskHidesEverything) {
  BlockMask mask;
  mask.block_q = mask.block_kv = 4;
  HostTensor elements(DType::u8, {6, 6});
  std::fill_n(elements.data<std::uint8_t>(), 36, std::uint8_t{1});
  block_mask_to_elements(mask, elements);
  EXPECT_EQ(std::count(elements.data<std::uint8_t>(), elements.data<std::uint8_t>() + 36, 0), 36);
}

// A valid mask of 2 x 3 blocks of 4 x 4 with partial blocks, which tests make invalid.
struct Sample {
  HostBlockMask host;
  BlockMask mask;
  Sample() {
    HostTensor elements(DType::u8, {8, 12});
    auto* data = elements.data<std::uint8_t>();
    for (int e = 0; e < 96; ++e) data[e] = e % 12 < 4 || (e % 12 >= 8 && e % 3 == 0);
    host = block_mask_from_elements(elements, 4, 4);
    mask = host.view();
  }
  std::int32_t* full_counts() { return host.full_counts.data<std::int32_t>(); }
  std::int32_t* full_indices() { return host.full_indices.data<std::int32_t>(); }
  std::int32_t* partial_indices() { return host.partial_indices.data<std::int32_t>(); }
};

std::string spoilt(const std::function<void(Sample&)>& spoil, std::int64_t q = 8,
                   std::int64_t kv = 12) {
  Sample sample;
  spoil(sample);
  return error_text([&] { validate(sample.mask, q, kv); });
}

TEST(BlockMaskValidation, ContentsOfLists) {
  EXPECT_NO_THROW(validate(Sample().mask, 8, 12));
  EXPECT_NO_THROW(validate(Sample().mask, 5, 9));
  EXPECT_NO_THROW(validate(Sample().mask, 0, 0));
  EXPECT_PRED2(
      contains, spoilt([](Sample& s) { s.full_counts()[1] = 2; }),
      "mask: full.counts: expected counts 0 to 1, the capacity of indices, got 2 in row 1");
  EXPECT_PRED2(contains, spoilt([](Sample& s) { s.full_counts()[0] = -1; }), "got -1");
  EXPECT_PRED2(contains, spoilt([](Sample& s) { s.full_indices()[1] = 3; }),
               "mask: full.indices: expected key blocks in [0, 3), got 3 in row 1");
  EXPECT_PRED2(contains, spoilt([](Sample& s) { s.partial_indices()[0] = -2; }), "got -2");
  EXPECT_PRED2(contains, spoilt([](Sample& s) { s.partial_indices()[0] = 0; }),
               "mask: partial.indices: expected key blocks that are unique in a row of full and "
               "partial lists, got 0 twice in row 0");
  EXPECT_PRED2(contains, spoilt([](Sample& s) { s.host.bit_tile.data<std::int32_t>()[1] = 9; }),
               "bit_tile: expected tiles in [0, 1), got 9 in row 1");
  EXPECT_PRED2(contains, spoilt([](Sample& s) { s.host.bit_tile.data<std::int32_t>()[0] = -1; }),
               "bit_tile: expected tiles in [0, 1), got -1 in row 0");
  EXPECT_PRED2(contains, spoilt([](Sample&) {}, 9, 12), "at least 3 rows, for 9 queries");
  EXPECT_PRED2(contains, spoilt([](Sample&) {}, 8, 8), "in [0, 2), got 2");
  EXPECT_PRED2(contains, spoilt([](Sample&) {}, -1, 8), "q_length");
  // Rows beyond the length are not checked.
  Sample sample;
  sample.full_counts()[1] = 77;
  EXPECT_NO_THROW(validate(sample.mask, 4, 12));
}

TEST(BlockMaskValidation, EntriesAreUniqueInAnyOrder) {
  HostBlockMask mask = make_block_mask(Pattern{1, 4, {0, 3}, {0, 1, 2}}, 4, 4);
  auto* list = mask.full_indices.data<std::int32_t>();
  list[0] = 3;
  EXPECT_NO_THROW(validate(mask.view(), 4, 16));
  EXPECT_EQ(pattern_of(mask.view(), 4).indices, (std::vector<std::int64_t>{1, 2, 3}));
  list[0] = 2;
  EXPECT_PRED2(contains, error_text([&] { validate(mask.view(), 4, 16); }), "got 2 twice");
  EXPECT_PRED2(contains, error_text([&] { pattern_of(mask.view(), 4); }), "got 2 twice");
}

TEST(BlockMaskValidation, Offsets) {
  std::int32_t offsets[] = {0, 2, 3}, indices[] = {1, 0, 2};
  BlockMask mask;
  mask.block_q = mask.block_kv = 4;
  mask.full = {{}, tensor(offsets, DType::i32, {1, 1, 3}), tensor(indices, DType::i32, {3})};
  const auto text = [&] { return error_text([&] { validate(mask, 8, 12); }); };
  EXPECT_NO_THROW(validate(mask, 8, 12));
  offsets[1] = 4;
  EXPECT_PRED2(contains, text(), "full.offsets: expected offsets 0 to 3, got 4 in row 0");
  offsets[1] = -1;
  EXPECT_PRED2(contains, text(),
               "full.offsets: expected offsets that never decrease, got -1 after 0 in row 0");
  offsets[1] = 2;
  offsets[2] = 1;
  EXPECT_PRED2(contains, text(), "got 1 after 2 in row 1");
  offsets[0] = -1;
  EXPECT_PRED2(contains, text(), "got -1 in row 0");
  mask.full.offsets.shape[2] = 0;
  EXPECT_PRED2(contains, text(), "full.offsets: expected at least 2 rows");
}

TEST(BlockMaskValidation, ShapesAndPresence) {
  const HostTensor other(DType::i64, {1, 1, 2, 1}), three(DType::i32, {1, 3, 2}),
      two(DType::i32, {1, 2, 2, 1}), bytes(DType::u8, {1, 4, 2});
  const auto text = [](const std::function<void(BlockMask&)>& spoil) {
    return spoilt([&](Sample& sample) { spoil(sample.mask); });
  };
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.block_q = 0; }), "block_q");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.block_kv = -4; }), "block_kv");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.full.indices = {}; }), "full.indices");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.full.counts = {}; }), "neither");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.full.offsets = m.full.counts; }), "both");
  EXPECT_PRED2(contains, text([&](BlockMask& m) { m.full.indices = other; }),
               "full.indices: expected dtype i32");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.full.counts.rank = 2; }),
               "full.counts: expected shape [batch = 1, heads = 1, rows]");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.full.indices.shape[2] = 1; }), "rows = 2");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.full.indices.data = nullptr; }), "null");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.full.counts.device.kind = DeviceKind::cuda; }),
               "full.counts: expected all tensors on cpu");
  EXPECT_PRED2(contains, text([&](BlockMask& m) {
                 m.full.counts = three;
                 m.full.indices = two;
               }),
               "full.indices: expected shape [batch = 1, heads = 3 or 1");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.bits = {}; }),
               "mask: bits: expected a tensor, got none");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.partial = {}; }), "partial");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.bit_tile.shape[3] = 2; }), "bit_tile");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.bit_tile.dtype = DType::f32; }), "bit_tile");
  EXPECT_PRED2(contains, text([&](BlockMask& m) { m.bits = bytes; }),
               "mask: bits: expected shape [tiles, block_q = 4, ceil(block_kv / 8) = 1]");
  EXPECT_PRED2(contains, text([](BlockMask& m) { m.bits.dtype = DType::e4m3; }), "bits");
}

TEST(BlockMaskValidation, AbsentListsHaveNoShape) {
  Sample sample;
  sample.mask.full.offsets.rank = 3;
  sample.mask.full.offsets.shape = {4, 2, 3};
  EXPECT_NO_THROW(validate(sample.mask, 8, 12));
  const Pattern pattern = pattern_of(sample.mask, 3, 7, 9);  // the same for all batches and heads
  EXPECT_EQ(pattern, pattern_of(Sample().mask, 3));
}

TEST(BlockMask, ElementsAreChecked) {
  const Sample sample;
  HostTensor words(DType::i32, {8, 12}), cube(DType::u8, {1, 8, 12}), small(DType::u8, {8, 8});
  EXPECT_PRED2(contains, error_text([&] { block_mask_from_elements(words, 4, 4); }), "u8");
  EXPECT_PRED2(contains, error_text([&] { block_mask_from_elements(cube, 4, 4); }), "u8");
  EXPECT_PRED2(contains, error_text([&] { block_mask_from_elements(small, 0, 4); }), "block_q");
  EXPECT_PRED2(contains, error_text([&] { block_mask_from_elements(small, 4, 1 << 20); }),
               "block_kv");
  EXPECT_PRED2(contains, error_text([&] { block_mask_to_elements(sample.mask, small); }),
               "in [0, 2), got 2");
  const Pattern pattern{1, 1, {0, 1}, {0}};
  const HostBlockMask heads = make_block_mask({pattern, pattern}, 1, 2, 8, 8);
  EXPECT_PRED2(contains, error_text([&] { block_mask_to_elements(heads.view(), small); }), "head");
  const Tensor alias = tensor(small.data<std::uint8_t>(), DType::u8, {1, 2, 8, 8}, {0, 0, 8, 1});
  EXPECT_PRED2(contains, error_text([&] { block_mask_to_elements(heads.view(), alias); }),
               "strides");
}

}  // namespace
