// List, page and pair walks against brute force, on valid and on hostile lists.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include <tessera/host_tensor.hpp>

#include "src/walk/transposed_lists.hpp"
#include "src/walk/views.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

constexpr std::int64_t kHostile[] = {2,
                                     -1,
                                     -7,
                                     3,
                                     99,
                                     std::numeric_limits<std::int32_t>::min(),
                                     std::numeric_limits<std::int32_t>::max()};

void put(HostTensor& tensor, std::int64_t element, std::int64_t value) {
  if (tensor.view().dtype == DType::i64) {
    tensor.data<std::int64_t>()[element] = value;
  } else {
    tensor.data<std::int32_t>()[element] = static_cast<std::int32_t>(value);
  }
}

/// Lists as plain vectors, and the same in memory in one of the two forms.
struct Lists {
  std::int64_t batch = 1, heads = 1, rows = 0;
  std::vector<std::vector<std::int64_t>> entries;  // [batch * heads * rows]
  HostTensor sizes, indices, tags;                 // tags: a value per entry, like bit tiles
  BlockList list;

  const std::vector<std::int64_t>& row(std::int64_t b, std::int64_t h, std::int64_t r) const {
    const std::int64_t at = ((batch > 1 ? b : 0) * heads + (heads > 1 ? h : 0)) * rows + r;
    return entries[static_cast<std::size_t>(at)];
  }
};

/// The bit tile of entry e of list l; tiles below 8 exist.
std::int64_t tag_of(std::int64_t l, std::int64_t e) { return (l * 3 + e) % 9; }

Lists make_lists(std::mt19937& random, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                 std::int64_t columns, DType dtype, bool by_offsets) {
  Lists lists;
  lists.heads = heads, lists.batch = batch, lists.rows = rows;
  const std::int64_t count = batch * heads * rows;
  std::int64_t total = 0;
  for (std::int64_t l = 0; l < count; ++l) {
    std::vector<std::int64_t> all;
    for (std::int64_t c = 0; c < columns; ++c) all.push_back(c);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(random() % static_cast<std::size_t>(columns + 1));
    total += static_cast<std::int64_t>(all.size());
    lists.entries.push_back(all);
  }
  const std::int64_t pool = std::max<std::int64_t>(total, 1);
  lists.sizes = HostTensor(dtype, {batch, heads, by_offsets ? rows + 1 : rows});
  lists.indices =
      by_offsets ? HostTensor(dtype, {pool}) : HostTensor(dtype, {batch, heads, rows, columns});
  lists.tags = by_offsets ? HostTensor(DType::i32, {pool})
                          : HostTensor(DType::i32, {batch, heads, rows, columns});
  std::int64_t at = 0;
  for (std::int64_t l = 0; l < count; ++l) {
    const auto& entries = lists.entries[static_cast<std::size_t>(l)];
    const auto size = static_cast<std::int64_t>(entries.size());
    const std::int64_t base = by_offsets ? at : l * columns;
    if (by_offsets) {
      put(lists.sizes, l + l / rows, at);
      put(lists.sizes, l + l / rows + 1, at + size);
    } else {
      put(lists.sizes, l, size);
      for (std::int64_t e = size; e < columns; ++e) put(lists.indices, base + e, 99);  // unused
    }
    for (std::int64_t e = 0; e < size; ++e) {
      put(lists.indices, base + e, entries[static_cast<std::size_t>(e)]);
      put(lists.tags, base + e, tag_of(l, e));
    }
    at += size;
  }
  lists.list.indices = lists.indices;
  (by_offsets ? lists.list.offsets : lists.list.counts) = lists.sizes;
  return lists;
}

std::vector<std::int64_t> read(const ListRow& row) {
  std::vector<std::int64_t> entries;
  for (std::int64_t e = 0; e < row.size; ++e) entries.push_back(row[e]);
  return entries;
}

TEST(ListWalk, RowsOfBothFormsAndWidthsReadBack) {
  std::mt19937 random(1);
  for (DType dtype : {DType::i32, DType::i64}) {
    for (bool by_offsets : {false, true}) {
      for (std::int64_t batch : {1, 2}) {
        for (std::int64_t heads : {1, 3}) {
          const Lists lists = make_lists(random, batch, heads, 4, 5, dtype, by_offsets);
          const ListView view = view_of(lists.list);
          for (std::int64_t b = 0; b < 2; ++b) {
            for (std::int64_t h = 0; h < 3; ++h) {
              for (std::int64_t r = 0; r < 4; ++r) {
                ASSERT_EQ(read(view.row(b, h, r)), lists.row(b, h, r));
              }
              ASSERT_EQ(view.row(b, h, -1).size, 0);
              ASSERT_EQ(view.row(b, h, 4).size, 0);
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(view_of(BlockList{}).row(0, 0, 0).size, 0);
}

TEST(ListWalk, StridedTensorsReadBack) {
  HostTensor counts(DType::i32, {1, 1, 6}), indices(DType::i32, {1, 1, 3, 8});
  for (std::int64_t r = 0; r < 3; ++r) {
    put(counts, 2 * r, r + 1);
    for (std::int64_t e = 0; e < 8; ++e) put(indices, r * 8 + e, 100 * r + e);
  }
  BlockList list;
  list.counts = tensor(counts.data<std::int32_t>(), DType::i32, {1, 1, 3}, {6, 6, 2});
  list.indices = tensor(indices.data<std::int32_t>(), DType::i32, {1, 1, 3, 4}, {24, 24, 8, 2});
  EXPECT_EQ(read(view_of(list).row(0, 0, 2)), (std::vector<std::int64_t>{200, 202, 204}));
}

TEST(ListWalk, HostileCountsAndOffsetsStayInsideTheList) {
  for (std::int64_t count : kHostile) {
    HostTensor counts(DType::i32, {1, 1, 1}), indices(DType::i32, {1, 1, 1, 4});
    put(counts, 0, count);
    const ListRow row =
        view_of(BlockList{.counts = counts, .offsets = {}, .indices = indices}).row(0, 0, 0);
    EXPECT_EQ(row.size, std::clamp<std::int64_t>(count, 0, 4));
    for (std::int64_t other : kHostile) {
      HostTensor offsets(DType::i64, {1, 1, 2}), pool(DType::i64, {5});
      put(offsets, 0, count);
      put(offsets, 1, other);
      const ListRow cut =
          view_of(BlockList{.counts = {}, .offsets = offsets, .indices = pool}).row(0, 0, 0);
      ASSERT_GE(cut.base, 0);
      ASSERT_GE(cut.size, 0);
      ASSERT_LE(cut.base + cut.size, 5);
    }
  }
}

/// (query, key, bit tile) -> how often a walk of the whole mask visits it.
using Visits = std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, int>;

void add_visits(const Visibility& sight, std::int64_t row, const KeyStep& step, Visits& visits) {
  const KeyRange seen = sight.of_row(row);
  for (std::int64_t j = step.begin; j < step.begin + step.count; ++j) {
    if (!step.boundary || (seen.begin <= j && j < seen.end)) ++visits[{row, j, step.bit_tile}];
  }
}

TEST(ListWalk, MaskWalkVisitsExactlyThePairsOfBothLists) {
  constexpr std::int64_t kQ = 7, kKv = 10, kBlockQ = 3, kBlockKv = 4, kTiles = 8;
  std::mt19937 random(2);
  for (int round = 0; round < 400; ++round) {
    const DType dtype = round % 2 ? DType::i32 : DType::i64;
    const bool by_offsets = round % 3 == 0;
    const std::int64_t heads = round % 5 == 0 ? 1 : 2;
    const Lists full = make_lists(random, 1, heads, 3, 3, dtype, false);
    Lists partial = make_lists(random, 2, heads, 3, 3, dtype, by_offsets);
    HostTensor bits(DType::u8, {kTiles, kBlockQ, 1});
    const bool tagged = round % 4 != 0;
    BlockMask mask{
        .block_q = kBlockQ, .block_kv = kBlockKv, .full = full.list, .partial = partial.list};
    if (tagged) mask.bit_tile = partial.tags, mask.bits = bits;
    const Visibility sight{
        .q_position = static_cast<std::int64_t>(random() % 8) - 2,
        .kv_position = 0,
        .used = {static_cast<std::int64_t>(random() % 3), kKv - static_cast<int>(random() % 3)},
        .window_left = static_cast<std::int64_t>(random() % 6) - 1,
        .window_right = static_cast<std::int64_t>(random() % 4) - 1};
    const MaskView view = view_of(mask, kKv);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 2; ++h) {
        Visits walked, expected;
        for (std::int64_t first = 0; first < kQ; ++first) {
          // Tiles of rows that end with the block, cut at an arbitrary row.
          const std::int64_t last = std::min(kQ - 1, (first / kBlockQ + 1) * kBlockQ - 1);
          MaskWalk walk(view, sight, b, h, first, last);
          KeyStep step;
          while (walk.next(step)) {
            ASSERT_GT(step.count, 0);
            ASSERT_EQ(step.block_begin % kBlockKv, 0);
            ASSERT_EQ(step.block_begin, step.begin / kBlockKv * kBlockKv);
            add_visits(sight, first, step, walked);
          }
          const auto expect = [&](std::int64_t block, std::int64_t tile) {
            for (std::int64_t j = block * kBlockKv; j < (block + 1) * kBlockKv; ++j) {
              const KeyRange seen = sight.of_row(first);
              if (seen.begin <= j && j < seen.end) ++expected[{first, j, tile}];
            }
          };
          for (std::int64_t block : full.row(b, h, first / kBlockQ)) expect(block, -1);
          const auto& entries = partial.row(b, h, first / kBlockQ);
          const std::int64_t l = (b * heads + (heads > 1 ? h : 0)) * 3 + first / kBlockQ;
          for (std::size_t e = 0; e < entries.size(); ++e) {
            const std::int64_t tile = tagged ? tag_of(l, static_cast<std::int64_t>(e)) : -1;
            if (tile < kTiles) expect(entries[e], tile);  // tile 8 does not exist: never visited
          }
        }
        ASSERT_EQ(walked, expected) << "round " << round;
      }
    }
  }
}

TEST(ListWalk, HeadsOfAGroupWalkTheSameLists) {
  std::mt19937 random(3);
  const Lists full = make_lists(random, 1, 2, 3, 3, DType::i32, false);
  const Lists partial = make_lists(random, 2, 2, 3, 3, DType::i32, true);
  HostTensor bits(DType::u8, {8, 4, 1});
  const BlockMask mask{.block_q = 4,
                       .block_kv = 4,
                       .full = full.list,
                       .partial = partial.list,
                       .bit_tile = partial.tags,
                       .bits = bits};
  const auto walked = [&](const MaskView& view, std::int64_t batch, std::int64_t head) {
    Visits visits;
    for (std::int64_t row = 0; row < 12; ++row) {
      MaskWalk walk(view, {.used = {0, 12}}, batch, head, row, row);
      KeyStep step;
      while (walk.next(step)) add_visits({.used = {0, 12}}, row, step, visits);
    }
    return visits;
  };
  for (std::int64_t batch = 0; batch < 2; ++batch) {
    EXPECT_NE(walked(view_of(mask, 12), batch, 0), walked(view_of(mask, 12), batch, 1));
    for (std::int64_t head = 0; head < 6; ++head)
      EXPECT_EQ(walked(view_of(mask, 12, 3), batch, head),
                walked(view_of(mask, 12), batch, head / 3));
  }
}

TEST(ListWalk, MaskWalkSkipsBlocksThatDoNotExist) {
  for (std::int64_t hostile : kHostile) {
    HostTensor counts(DType::i32, {1, 1, 1}), indices(DType::i32, {1, 1, 1, 3});
    put(counts, 0, 99);
    put(indices, 0, hostile);
    put(indices, 1, 1);
    put(indices, 2, hostile);
    BlockMask mask{.block_q = 4, .block_kv = 4, .full = {}, .partial = {}};
    mask.full = {.counts = counts, .offsets = {}, .indices = indices};
    // A range beyond the mask's last block: the walk must not rely on it.
    MaskWalk walk(view_of(mask, 8), {.used = {0, 1000}}, 0, 0, 0, 3);
    KeyStep step;
    ASSERT_TRUE(walk.next(step));
    EXPECT_EQ(step.begin, 4);
    EXPECT_EQ(step.count, 4);
    EXPECT_FALSE(walk.next(step));
  }
}

TEST(ListWalk, PageRunsCoverTheKeysInOrder) {
  HostTensor table(DType::i32, {2, 3}), pool(DType::f32, {5, 4, 1, 1});
  const std::int64_t entries[] = {4, 0, 2, 1, -5, 77};
  for (std::int64_t i = 0; i < 6; ++i) put(table, i, entries[i]);
  const PageView view = page_view(table, pool);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t begin = 0; begin < 16; ++begin) {
      for (std::int64_t end = begin + 1; end <= 16; ++end) {
        for (std::int64_t key = begin; key < end;) {
          const PageView::Run run = view.run(b, key, end);
          ASSERT_GT(run.count, 0);
          ASSERT_LE(key + run.count, end);
          ASSERT_EQ(run.slot, key % 4);
          ASSERT_LE(run.slot + run.count, 4);
          const std::int64_t page = key / 4 < 3 ? entries[b * 3 + key / 4] : -1;
          ASSERT_EQ(run.page, page >= 0 && page < 5 ? page : -1);
          key += run.count;
        }
      }
    }
  }
}

/// A matrix of blocks 2 x 1 whose block row r holds `rows[r]`.
struct Matrix {
  HostTensor values, offsets, columns;
  BsrMatrix view;
};
Matrix make_matrix(const std::vector<std::vector<std::int64_t>>& rows, std::int64_t cols,
                   DType dtype) {
  std::int64_t stored = 0;
  for (const auto& row : rows) stored += static_cast<std::int64_t>(row.size());
  const auto count = static_cast<std::int64_t>(rows.size());
  Matrix m{HostTensor(DType::f32, {stored, 2, 1}),
           HostTensor(dtype, {count + 1}),
           HostTensor(dtype, {stored}),
           {}};
  std::int64_t at = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t c : rows[static_cast<std::size_t>(r)]) put(m.columns, at++, c);
    put(m.offsets, r + 1, at);
  }
  m.view = {m.values, m.offsets, m.columns, count * 2, cols};
  return m;
}

TEST(BsrWalk, PairsAreTheIntersectionOfSortedLists) {
  for (DType dtype : {DType::i32, DType::i64}) {
    for (unsigned left = 0; left < 32; ++left) {
      for (unsigned right = 0; right < 32; ++right) {
        std::vector<std::vector<std::int64_t>> rows(2);
        std::vector<std::int64_t> common;
        for (std::int64_t c = 0; c < 5; ++c) {
          if (left >> c & 1u) rows[0].push_back(c);
          if (right >> c & 1u) rows[1].push_back(c);
          if (left & right & (1u << c)) common.push_back(c);
        }
        const Matrix m = make_matrix(rows, 5, dtype);
        const BsrView view = view_of(m.view);
        ASSERT_EQ(view.row(0, 0).size(), static_cast<std::int64_t>(rows[0].size()));
        PairWalk walk(view.row(0, 0), view.row(0, 1));
        std::vector<std::int64_t> found;
        PairWalk::Pair pair;
        while (walk.next(pair)) {
          ASSERT_EQ(view.row(0, 0).column(pair.a), pair.index);
          ASSERT_EQ(view.row(0, 1).column(pair.b), pair.index);
          found.push_back(pair.index);
        }
        ASSERT_EQ(found, common);
      }
    }
  }
}

TEST(BsrWalk, HostileListsEndAndStayInside) {
  for (std::int64_t a : kHostile) {
    for (std::int64_t b : kHostile) {
      Matrix m = make_matrix({{a, 1, b}, {b, a, 1, 2}}, 3, DType::i32);
      PairWalk walk(view_of(m.view).row(0, 0), view_of(m.view).row(0, 1));
      PairWalk::Pair pair;
      int pairs = 0;
      while (walk.next(pair)) {
        ASSERT_GE(pair.index, 0);
        ASSERT_LT(pair.index, 3);
        ASSERT_LE(++pairs, 4);
      }
      put(m.offsets, 1, a);
      put(m.offsets, 2, b);
      for (std::int64_t r = -1; r < 4; ++r) {
        const BsrRow row = view_of(m.view).row(0, r);
        ASSERT_GE(row.begin, 0);
        ASSERT_GE(row.size(), 0);
        ASSERT_LE(row.end, 7);
      }
    }
  }
}

TEST(BsrWalk, BatchesOwnTheirListsOrShareThem) {
  HostTensor values(DType::f32, {3, 1, 1}), offsets(DType::i32, {2, 3}), own(DType::i32, {2, 3}),
      shared(DType::i32, {3});
  const std::int64_t starts[] = {0, 1, 3, 0, 2, 3};
  for (std::int64_t i = 0; i < 6; ++i) {
    put(offsets, i, starts[i]);
    put(own, i, i % 4);
  }
  for (std::int64_t i = 0; i < 3; ++i) put(shared, i, i);
  const BsrView each = view_of(BsrMatrix{values, offsets, own, 2, 4});
  EXPECT_EQ(each.row(1, 1).begin, 2);
  EXPECT_EQ(each.row(1, 1).column(2), 1);
  const BsrView pool = view_of(BsrMatrix{values, offsets, shared, 2, 4});
  EXPECT_EQ(pool.row(1, 0).size(), 2);
  EXPECT_EQ(pool.row(1, 0).column(1), 1);
}

TEST(BsrWalk, TransposedListsHaveThePositionsOfBlocks) {
  // Blocks (0, 1), (1, 0), (1, 1): column 0 has (1, position 1), column 1 (0, 0) and (1, 2).
  const std::int32_t offsets[] = {0, 1, 3}, rows[] = {1, 0, 1}, positions[] = {1, 0, 2};
  BsrView view;
  view.offsets.narrow = offsets;
  view.indices.narrow = rows;
  view.positions.narrow = positions;
  view.block_rows = view.block_cols = 2;
  view.stored = 3;
  const BsrRow column = view.row(0, 1);
  ASSERT_EQ(column.size(), 2);
  EXPECT_EQ(column.column(column.begin), 0);
  EXPECT_EQ(column.position(column.begin), 0);
  EXPECT_EQ(column.column(column.begin + 1), 1);
  EXPECT_EQ(column.position(column.begin + 1), 2);
  // Without positions, a block's position is that of its entry.
  view.positions = {};
  EXPECT_EQ(view.row(0, 1).position(2), 2);
}

TEST(BsrWalk, HostilePositionsAreSkipped) {
  for (const std::int64_t hostile : kHostile) {
    const std::int64_t offsets[] = {0, 2}, rows[] = {0, 0}, positions[] = {0, hostile};
    BsrView view;
    view.offsets.wide = offsets;
    view.indices.wide = rows;
    view.positions.wide = positions;
    view.block_rows = view.block_cols = 1;
    view.stored = 2;
    EXPECT_EQ(view.row(0, 0).position(1), hostile >= 0 && hostile < 2 ? hostile : -1);
  }
}

TEST(BsrWalk, ASchedulesListsAreWalkedLikeStoredOnes) {
  // 2 x 3 blocks of 16 x 32, two matrices with lists of their own.
  const Device gpu{DeviceKind::cuda, 0};
  MatmulProblem problem;
  problem.a = transpose(Operand(BsrMatrix{tensor(nullptr, DType::bf16, {2, 4, 16, 32}, gpu),
                                          tensor(nullptr, DType::i32, {2, 3}, gpu),
                                          tensor(nullptr, DType::i32, {2, 4}, gpu), 32, 96}));
  problem.b = tensor(nullptr, DType::bf16, {32, 8}, gpu);
  problem.out = tensor(nullptr, DType::bf16, {2, 96, 8}, gpu);
  const MatmulShape shape = shape_of(problem);
  std::vector<char> memory(static_cast<std::size_t>(gpu_matmul_schedule_bytes(shape)));
  core::Carver carver(memory.data());
  const GpuMatmulSchedule schedule = carve_gpu_matmul_schedule(carver, shape);
  EXPECT_EQ(carver.used(), gpu_matmul_schedule_bytes(shape));
  ASSERT_TRUE(schedule.a);
  EXPECT_FALSE(schedule.b);
  const BsrView view = walk_of(problem.a.sparse, schedule.a);
  EXPECT_EQ(view.block_rows, 3);
  EXPECT_EQ(view.block_cols, 2);
  EXPECT_EQ(order_stride(problem.a.sparse, schedule.a), 3);
  // Matrix 1, column 2: entry 3 is the block in row 1, stored at 2.
  schedule.a.offsets.set(4 + 2, 3);
  schedule.a.offsets.set(4 + 3, 4);
  schedule.a.rows.set(4 + 3, 1);
  schedule.a.positions.set(4 + 3, 2);
  const BsrRow column = view.row(1, 2);
  ASSERT_EQ(column.size(), 1);
  EXPECT_EQ(column.column(column.begin), 1);
  EXPECT_EQ(column.position(column.begin), 2);
  // A matrix that is not transposed needs no schedule.
  problem.a.transposed = false;
  problem.b.dense.shape[0] = 96;
  problem.out.shape[1] = 32;
  problem.out.strides[0] = 32 * 8;
  EXPECT_EQ(gpu_matmul_schedule_bytes(shape_of(problem)), 0);
}

TEST(ListWalk, IsConstantArithmetic) {
  static_assert(ListView{}.row(0, 0, 0).size == 0);
  static_assert(BsrView{}.row(0, 0).size() == 0);
  static_assert(clamp_to(-3, 0, 4) == 0 && clamp_to(9, 0, 4) == 4 && clamp_to(2, 0, 4) == 2);
  SUCCEED();
}

}  // namespace
