// Lists of block masks on a GPU against those in host memory, byte by byte.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/walk/views.hpp"
#include "tests/fixtures/mask_lists.hpp"
#include "tests/gpu/graph.hpp"
#include "tests/gpu/twin.hpp"

namespace tessera {
namespace {

using generate::Random;
using gpu_test::check;
using gpu_test::Graph;
using gpu_test::Twin;
using mask_lists::Case;
using mask_lists::get;
using mask_lists::put;

BlockList on_device(const Twin& twin, const BlockList& list) {
  return {twin.on_device(list.counts), twin.on_device(list.offsets), twin.on_device(list.indices)};
}

Case on_device(const Twin& twin, Case c) {
  for (Tensor* t : {&c.full, &c.partial, &c.scores, &c.columns.entries}) *t = twin.on_device(*t);
  for (BlockList* list :
       {&c.stored, &c.set, &c.full_set, &c.partial_set, &c.best, &c.columns.lists})
    *list = on_device(twin, *list);
  return c;
}

constexpr std::size_t kTwinBytes = std::size_t{16} << 20;

/// Checks that the GPU writes the same bytes as the CPU, and no others.
void expect_equal(const Case& c, Twin& twin) {
  SCOPED_TRACE(c.text);
  twin.upload();
  mask_lists::convert(on_device(twin, c));
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  mask_lists::convert(c);
  ASSERT_TRUE(twin.download() == twin.host()) << "the GPU's memory differs from the CPU's";
}

TEST(MaskLists, GpuWritesWhatTheCpuWrites) {
  Random random(101);
  for (int round = 0; round < 120; ++round) {
    Twin twin(kTwinBytes);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    expect_equal(mask_lists::Maker(random, carve).make(), twin);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

/// Rows longer than a warp can keep in registers, several tiles of columns, several bands of rows.
TEST(MaskLists, LargeMasks) {
  Random random(102);
  for (int round = 0; round < 6; ++round) {
    Twin twin(std::size_t{256} << 20);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    expect_equal(mask_lists::Maker(random, carve).make(2, 3, 150, 1000 + 300 * round), twin);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(MaskLists, CapturedConversionsFollowTheContents) {
  Twin twin(kTwinBytes);
  Random random(103);
  const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
  const Case c = mask_lists::Maker(random, carve).make(2, 2, 33, 130);
  const Case device = on_device(twin, c);
  const Graph graph([&](void* stream) { mask_lists::convert(device, {.stream = stream}); });
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    // Inverts flags, replaces scores by their neighbours, and mirrors the columns.
    for (const Tensor* t : {&c.full, &c.partial, &c.scores}) {
      for (std::int64_t i = 0; i < 33; ++i) {
        for (std::int64_t j = 0; j < 130; ++j) {
          const std::int64_t at = mask_lists::at(*t, 1, 1, i, j);
          if (t->dtype == DType::u8)
            static_cast<std::uint8_t*>(t->data)[at] ^= 1;
          else
            store_from_float(
                t->data, t->dtype, at,
                load_as_float(t->data, t->dtype, mask_lists::at(*t, 0, 0, i, (j + 1) % 130)));
        }
      }
    }
    const Tensor& sizes = c.stored.offsets ? c.stored.offsets : c.stored.counts;
    for (std::int64_t b = 0; b < sizes.size(0); ++b) {
      for (std::int64_t h = 0; h < sizes.size(1); ++h) {
        for (std::int64_t i = 0; i < 33; ++i) {
          const planning::ListRow row = planning::view_of(c.stored).row(b, h, i);
          for (std::int64_t e = 0; e < row.size; ++e)
            put(c.stored.indices, row.base + e * row.stride, 129 - row[e]);
        }
      }
    }
    twin.upload();
    graph.replay();
    mask_lists::convert(c);
    ASSERT_TRUE(twin.download() == twin.host()) << c.text;
  }
}

TEST(MaskLists, HostileListsStayInside) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int32_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const std::int64_t hostile[] = {0, 1, -1, -7, 3, 99, kMin, kMax};
  Random random(104);
  for (int round = 0; round < 60; ++round) {
    Twin twin(kTwinBytes);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    const Case c = mask_lists::Maker(random, carve).make();
    SCOPED_TRACE(c.text);
    const Tensor& sizes = c.stored.offsets ? c.stored.offsets : c.stored.counts;
    for (std::int64_t i = 0; i < sizes.numel(); ++i)
      if (random.chance(0.5)) put(sizes, i, hostile[random.between(0, 7)]);
    const planning::ListView view = planning::view_of(c.stored);
    for (std::int64_t i = 0; i < view.rows; ++i) {
      const planning::ListRow row = view.row(0, 0, i);
      for (std::int64_t e = 0; e < row.size; ++e)
        if (random.chance(0.5))
          put(c.stored.indices, row.base + e * row.stride, hostile[random.between(0, 7)]);
    }
    twin.upload();
    mask_lists::convert(on_device(twin, c));
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<std::byte> copy = twin.download();
    const auto expect_inside = [&](const Tensor& list, std::int64_t low, std::int64_t high) {
      if (!list) return;
      const Tensor there = twin.inside(list, copy);
      for (std::int64_t i = 0; i < list.numel(); ++i) {
        ASSERT_GE(get(there, i), low);
        ASSERT_LE(get(there, i), high);
      }
    };
    const BlockList& lists = c.columns.lists;
    expect_inside(lists.counts, 0, lists.indices.size(3));
    expect_inside(lists.indices, -1, view.rows - 1);  // -1: never written
    expect_inside(c.columns.entries, -1, view.extent - 1);
    for (const BlockList* list : {&c.set, &c.full_set, &c.partial_set, &c.best}) {
      expect_inside(list->counts, 0, list->indices.size(3));
      expect_inside(list->indices, -1, c.full.size(3) - 1);
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tessera
