// Whether two views of memory share a byte, against a list of all their bytes.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/core/overlap.hpp"
#include "tests/support/random.hpp"

namespace tessera {
namespace {

// An address that is never read.
std::byte* const kMemory = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);

std::set<std::intptr_t> bytes_of(const Tensor& view) {
  std::set<std::int64_t> elements = {0};
  for (int i = 0; i < view.rank; ++i) {
    std::set<std::int64_t> next;
    for (const std::int64_t element : elements)
      for (std::int64_t n = 0; n < view.size(i); ++n) next.insert(element + n * view.stride(i));
    elements = next;
  }
  std::set<std::intptr_t> bytes;
  for (const std::int64_t element : elements) {
    for (int b = 0; b < size_of(view.dtype); ++b)
      bytes.insert(reinterpret_cast<std::intptr_t>(view.data) + element * size_of(view.dtype) + b);
  }
  return bytes;
}

bool have_common_byte(const Tensor& a, const Tensor& b) {
  const std::set<std::intptr_t> of_a = bytes_of(a);
  for (const std::intptr_t byte : bytes_of(b))
    if (of_a.count(byte)) return true;
  return false;
}

Tensor random_view(generate::Random& random) {
  constexpr DType kDTypes[] = {DType::u8, DType::f16, DType::f32, DType::i64};
  Tensor view;
  view.dtype = kDTypes[random.between(0, 3)];
  view.data = kMemory + random.between(0, 39) * size_of(view.dtype);
  view.rank = static_cast<int>(random.between(1, 4));
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    view.shape[i] = random.between(0, 11) == 0 ? 0 : random.between(1, 4);
    view.strides[i] = random.between(-14, 26);
  }
  return view;
}

TEST(Overlap, MatchesAListOfAllBytes) {
  generate::Random random(11);
  int shared = 0, inside = 0;
  for (int n = 0; n < 4000; ++n) {
    const Tensor a = random_view(random), b = random_view(random);
    const bool expected = have_common_byte(a, b);
    EXPECT_EQ(core::share_memory(a, b), expected) << to_string(a) << " and " << to_string(b);
    EXPECT_EQ(core::share_memory(b, a), expected) << to_string(b) << " and " << to_string(a);
    shared += expected;
    inside += !expected && !bytes_of(a).empty() && !bytes_of(b).empty() &&
              *bytes_of(a).begin() <= *bytes_of(b).rbegin() &&
              *bytes_of(b).begin() <= *bytes_of(a).rbegin();
  }
  EXPECT_GT(shared, 500);
  EXPECT_GT(inside, 200) << "too few interleaved views that share no byte";
}

Tensor at(std::int64_t element, std::initializer_list<std::int64_t> shape,
          std::initializer_list<std::int64_t> strides, DType dtype = DType::f16) {
  return tensor(kMemory + element * size_of(dtype), dtype, shape, strides);
}

TEST(Overlap, SlicesOfPackedTensorsAreApart) {
  // [batch, length, 3, heads, dim]
  constexpr std::int64_t kBatch = 4, kLength = 1 << 20, kHeads = 32, kDim = 128;
  constexpr std::int64_t kRow = 3 * kHeads * kDim;
  const auto slice = [](std::int64_t element, std::int64_t heads) {
    return at(element, {kBatch, kLength, heads, kDim}, {kLength * kRow, kRow, kDim, 1});
  };
  const Tensor q = slice(0, kHeads), k = slice(kHeads * kDim, kHeads),
               v = slice(2 * kHeads * kDim, kHeads);
  EXPECT_FALSE(core::share_memory(q, k));
  EXPECT_FALSE(core::share_memory(q, v));
  EXPECT_FALSE(core::share_memory(k, v));
  EXPECT_TRUE(core::share_memory(q, q));
  EXPECT_TRUE(core::share_memory(slice(0, kHeads + 1), k)) << "one head more";
  EXPECT_TRUE(core::share_memory(slice(1, kHeads), k)) << "shifted by one element";
}

TEST(Overlap, StridesThatNeverMeetAreApart) {
  constexpr std::int64_t kLong = std::int64_t{1} << 30;
  EXPECT_FALSE(core::share_memory(at(0, {kLong}, {2}), at(1, {kLong}, {2})));
  EXPECT_TRUE(core::share_memory(at(0, {kLong}, {2}), at(2, {kLong}, {2})));
  // Even and odd elements, with different strides.
  EXPECT_FALSE(core::share_memory(at(0, {kLong}, {6}), at(1, {kLong}, {4})));
  EXPECT_TRUE(core::share_memory(at(0, {kLong}, {6}), at(1, {kLong}, {5})));
  // Backwards, and the transposed view.
  EXPECT_FALSE(core::share_memory(at(2 * kLong, {kLong}, {-2}), at(1, {kLong}, {2})));
  const Tensor square = at(0, {64, 64}, {64, 1});
  EXPECT_TRUE(core::share_memory(square, swap_dims(square, 0, 1)));
  // Columns of one matrix; a broadcast one.
  EXPECT_FALSE(core::share_memory(at(0, {64, 32}, {64, 1}), at(32, {64, 32}, {64, 1})));
  EXPECT_TRUE(core::share_memory(at(0, {64, 33}, {64, 1}), at(32, {64, 32}, {64, 1})));
  EXPECT_FALSE(core::share_memory(at(0, {64, 32}, {0, 1}), at(32, {64, 32}, {64, 1})));
}

TEST(Overlap, LimitsOfAddresses) {
  const Tensor last = tensor(reinterpret_cast<void*>(~std::uintptr_t{7}), DType::i64, {1});
  const Tensor first = tensor(reinterpret_cast<void*>(std::uintptr_t{0}), DType::i64, {1});
  EXPECT_FALSE(core::share_memory(last, first));
  EXPECT_TRUE(core::share_memory(last, last));
  EXPECT_FALSE(core::share_memory(first, Tensor{}));
  constexpr std::int64_t kHuge = std::int64_t{1} << 58;
  EXPECT_FALSE(core::share_memory(at(0, {3}, {kHuge}), at(1, {3}, {kHuge})));
  EXPECT_TRUE(core::share_memory(at(0, {3}, {kHuge}), at(kHuge, {1}, {1})));
}

TEST(Overlap, AnIrregularSearchEndsAsShared) {
  // Sums of coprime strides leave few gaps. The search must end, even if the views share no byte.
  const Tensor a = at(0, {4000, 4000, 4000}, {7919 * 8, 7907 * 8, 7901 * 8}, DType::u8);
  const Tensor b = at(3, {4000, 4000, 4000}, {7883 * 8, 7879 * 8, 7877 * 8}, DType::u8);
  EXPECT_FALSE(core::share_memory(a, b)) << "multiples of eight, three bytes apart";
  const Tensor c = at(3, {4000, 4000, 4000}, {7883 * 8, 7879 * 8, 7877 * 8 + 1}, DType::u8);
  EXPECT_TRUE(core::share_memory(a, c));
}

TEST(Overlap, SameViewsAreExactlyTheSame) {
  const Tensor view = at(0, {1, 4, 8}, {99, 8, 1});
  EXPECT_TRUE(core::same_view(view, at(0, {1, 4, 8}, {32, 8, 1})));
  EXPECT_FALSE(core::same_view(view, at(1, {1, 4, 8}, {99, 8, 1})));
  EXPECT_FALSE(core::same_view(view, at(0, {1, 4, 8}, {99, 9, 1})));
  EXPECT_FALSE(core::same_view(view, at(0, {1, 4, 8}, {99, 8, 1}, DType::bf16)));
  EXPECT_FALSE(core::same_view(view, at(0, {4, 8}, {8, 1})));
}

}  // namespace
}  // namespace tessera
