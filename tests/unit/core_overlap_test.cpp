#include "src/core/overlap.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include <tessera/error.hpp>

namespace tessera::core {
namespace {

std::vector<std::byte> memory(1 << 16);

/// A view of `memory`, some elements in.
Tensor at(std::int64_t byte, DType dtype, std::initializer_list<std::int64_t> shape,
          std::initializer_list<std::int64_t> strides) {
  return tensor(memory.data() + byte, dtype, shape, strides);
}

/// Every byte of every element, one after the other.
bool share_a_byte(const Tensor& a, const Tensor& b) {
  const auto mark = [](const Tensor& t, const auto& visit) {
    const std::int64_t size = size_of(t.dtype);
    for (std::int64_t n = 0; n < t.numel(); ++n) {
      std::int64_t rest = n, element = 0;
      for (int i = t.rank - 1; i >= 0; --i) {
        element += rest % t.size(i) * t.stride(i);
        rest /= t.size(i);
      }
      const auto* first = static_cast<const std::byte*>(t.data) + element * size;
      for (std::int64_t byte = 0; byte < size; ++byte)
        visit(static_cast<std::size_t>(first + byte - memory.data()));
    }
  };
  std::vector<char> used(memory.size());
  bool shared = false;
  mark(a, [&](std::size_t i) { used[i] = 1; });
  mark(b, [&](std::size_t i) { shared = shared || used[i]; });
  return shared;
}

TEST(Overlap, AgreesWithBruteForceOnRandomViews) {
  std::mt19937 random(7);
  const auto below = [&](int n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  constexpr DType kTypes[] = {DType::u8, DType::f16, DType::f32, DType::i64};
  int apart = 0, together = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto draw = [&] {
      Tensor t;
      t.dtype = kTypes[below(4)];
      t.rank = static_cast<int>(below(4));
      for (int i = 0; i < t.rank; ++i) {
        t.shape[static_cast<std::size_t>(i)] = below(5);
        t.strides[static_cast<std::size_t>(i)] =
            below(4) == 0 ? below(40) - 20 : below(3) * (1 + below(12));
      }
      t.data = memory.data() + 4096 + below(300);
      return t;
    };
    const Tensor a = draw(), b = draw();
    const bool shared = share_a_byte(a, b);
    ASSERT_EQ(may_overlap(a, b), shared) << to_string(a) << " and " << to_string(b);
    ASSERT_EQ(may_overlap(b, a), shared) << to_string(b) << " and " << to_string(a);
    (shared ? together : apart) += 1;
  }
  EXPECT_GT(apart, 1000);
  EXPECT_GT(together, 1000);
}

TEST(Overlap, SlicesOfAPackedTensorAreApart) {
  // qkv [batch 2, length 8, 3, heads 4, dim 8]
  const auto slice = [](std::int64_t i) {
    return at(2 * i * 32, DType::bf16, {2, 8, 4, 8}, {768, 96, 8, 1});
  };
  EXPECT_FALSE(may_overlap(slice(0), slice(1)));
  EXPECT_FALSE(may_overlap(slice(2), slice(0)));
  EXPECT_TRUE(may_overlap(slice(1), slice(1)));
  // Columns taken in turns, and the halves of each row.
  EXPECT_FALSE(may_overlap(at(0, DType::f32, {8, 8}, {16, 2}), at(4, DType::f32, {8, 8}, {16, 2})));
  EXPECT_FALSE(
      may_overlap(at(0, DType::f32, {8, 8}, {16, 1}), at(32, DType::f32, {8, 8}, {16, 1})));
  EXPECT_TRUE(may_overlap(at(0, DType::f32, {8, 9}, {16, 1}), at(32, DType::f32, {8, 8}, {16, 1})));
}

TEST(Overlap, AnInputMayBeTheOutputOnlyElementForElement) {
  const Where op("matmul");
  const Tensor out = at(0, DType::f32, {8, 8}, {8, 1});
  Outputs outputs;
  outputs.add(op / "out", out);
  EXPECT_NO_THROW(outputs.check_input(op / "c", out, out));
  EXPECT_THROW(outputs.check_input(op / "c", swap_dims(out, 0, 1), out), Error);
  EXPECT_THROW(outputs.check_input(op / "c", at(0, DType::f16, {8, 8}, {8, 1}), out), Error);
  try {
    outputs.check_input(op / "a", out);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "matmul: out: expected memory of its own, got f32[8, 8] on cpu that shares memory "
                 "with a");
  }
  EXPECT_THROW(outputs.add(op / "lse", at(252, DType::f32, {1}, {1})), Error);
  EXPECT_NO_THROW(outputs.add(op / "lse", at(256, DType::f32, {1}, {1})));
  EXPECT_NO_THROW(outputs.check_input(op / "b", Tensor{}));
}

TEST(Overlap, WhereTheAnswerWouldTakeLongItIsYes) {
  // Strides with a common factor, so that no two elements meet; finding that takes many steps.
  const Tensor a = at(0, DType::u8, {60, 60, 60}, {210, 330, 462});
  const Tensor b = at(1, DType::u8, {60, 60, 60}, {210, 330, 462});
  EXPECT_FALSE(share_a_byte(a, b));
  EXPECT_TRUE(may_overlap(a, b));
}

}  // namespace
}  // namespace tessera::core
