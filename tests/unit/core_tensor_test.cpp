// Names, tensor views, owning tensors and errors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <tessera/error.hpp>
#include <tessera/host_tensor.hpp>
#include <tessera/plan.hpp>
#include <tessera/tensor.hpp>

#include "src/core/checked.hpp"
#include "tests/unit/error_text.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names
using tessera::testing::contains;
using tessera::testing::error_text;

constexpr DType kDTypes[] = {DType::f32,  DType::f16, DType::bf16, DType::e4m3,
                             DType::e5m2, DType::i32, DType::i64,  DType::u8};

TEST(Names, RoundTrip) {
  for (const DType dtype : kDTypes) EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  for (const Backend backend : {Backend::cpu, Backend::sm80, Backend::sm90}) {
    EXPECT_EQ(parse_backend(to_string(backend)), backend);
  }
  EXPECT_STREQ(to_string(DType::none), "none");
  EXPECT_STREQ(to_string(Activation::gelu_tanh), "gelu_tanh");
  EXPECT_STREQ(to_string(Op::attention_backward), "attention_backward");
  EXPECT_STREQ(to_string(Op::merge_states), "merge_states");
  EXPECT_STREQ(to_string(ErrorCode::out_of_memory), "out_of_memory");
}

TEST(Names, ParsingErrorsListTheAcceptedNames) {
  const std::string text = error_text([] { parse_dtype("float32"); });
  EXPECT_PRED2(contains, text, "float32");
  EXPECT_PRED2(contains, text, "bf16");
  EXPECT_THROW(parse_dtype("none"), Error);
  EXPECT_THROW(parse_dtype(""), Error);
  EXPECT_PRED2(contains, error_text([] { parse_backend("gpu"); }), "cpu, sm80, sm90");
}

TEST(Names, SizesOfElements) {
  const int expected[] = {4, 2, 2, 1, 1, 4, 8, 1};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(size_of(kDTypes[i]), expected[i]);
  EXPECT_EQ(size_of(DType::none), 0);
}

TEST(View, InWords) {
  const float data[6] = {};
  EXPECT_EQ(to_string(tensor(data, DType::f32, {2, 3})), "f32[2, 3] on cpu");
  EXPECT_EQ(to_string(tensor(data, DType::f32, {2, 3}, {3, 1})), "f32[2, 3] on cpu");
  EXPECT_EQ(to_string(tensor(data, DType::f32, {1, 3}, {99, 1})), "f32[1, 3] on cpu");
  EXPECT_EQ(to_string(tensor(data, DType::f32, {0, 3}, {9, 7})), "f32[0, 3] on cpu");
  EXPECT_EQ(to_string(swap_dims(tensor(data, DType::f32, {2, 3}), 0, 1)),
            "f32[3, 2] strides [1, 3] on cpu");
  EXPECT_EQ(to_string(tensor(nullptr, DType::bf16, {0, 8}, Device{DeviceKind::cuda, 1})),
            "bf16[0, 8] on cuda:1");
  EXPECT_EQ(to_string(tensor(data, DType::f32, {})), "f32[] on cpu");
  EXPECT_EQ(to_string(Tensor{}), "none");
}

TEST(View, ContiguousStrides) {
  const Tensor view = tensor(nullptr, DType::u8, {2, 3, 4});
  EXPECT_EQ(view.stride(0), 12);
  EXPECT_EQ(view.stride(1), 4);
  EXPECT_EQ(view.stride(2), 1);
  EXPECT_EQ(view.numel(), 24);
  EXPECT_EQ(tensor(nullptr, DType::u8, {2, 0, 4}).numel(), 0);
}

TEST(View, RefusesInvalidArguments) {
  constexpr auto kHuge = std::int64_t{1} << 40;
  EXPECT_PRED2(contains, error_text([] { tensor(nullptr, DType::f32, {2, -1}); }), "[2, -1]");
  EXPECT_PRED2(contains, error_text([] { tensor(nullptr, DType::f32, {1, 1, 1, 1, 1, 1}); }), "6");
  EXPECT_PRED2(contains, error_text([] { tensor(nullptr, DType::f32, {kHuge, kHuge}); }), "shape");
  EXPECT_PRED2(contains, error_text([] { tensor(nullptr, DType::f32, {2, 2}, {1}); }), "strides");
  EXPECT_PRED2(contains, error_text([] { swap_dims(tensor(nullptr, DType::f32, {2}), 0, 1); }),
               "swap_dims");
}

TEST(Owned, IsAlignedZeroedAndMovable) {
  HostTensor tensor(DType::f16, {3, 5, 7});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.view().data) % 64, 0u);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    ASSERT_EQ(tensor.data<std::uint16_t>()[i], 0);
  }
  tensor.data<std::uint16_t>()[104] = 7;
  HostTensor moved = std::move(tensor);
  EXPECT_EQ(moved.data<std::uint16_t>()[104], 7);
  EXPECT_EQ(to_string(moved), "f16[3, 5, 7] on cpu");
  // A moved-from tensor is absent, and can be assigned again.
  EXPECT_FALSE(
      static_cast<bool>(tensor.view()));  // NOLINT: the state after a move is what is tested
  EXPECT_EQ(tensor.view().data, nullptr);
  tensor = std::move(moved);
  EXPECT_EQ(tensor.data<std::uint16_t>()[104], 7);
  EXPECT_EQ(to_string(tensor), "f16[3, 5, 7] on cpu");
  EXPECT_EQ(to_string(moved), "none");
  EXPECT_EQ(moved.view().data, nullptr);
}

TEST(Owned, EmptyTensorsHaveAnAddress) {
  const HostTensor tensor(DType::i64, {4, 0});
  EXPECT_NE(tensor.view().data, nullptr);
  EXPECT_EQ(tensor.numel(), 0);
  EXPECT_TRUE(static_cast<bool>(tensor.view()));
  EXPECT_FALSE(static_cast<bool>(HostTensor().view()));
}

TEST(Owned, RefusesSizesThatDoNotFit) {
  constexpr auto kHuge = std::int64_t{1} << 62;
  EXPECT_PRED2(contains, error_text([] { HostTensor(DType::f32, {2, -3}); }), "-3");
  EXPECT_PRED2(contains, error_text([] { HostTensor(DType::none, {2}); }), "dtype");
  EXPECT_PRED2(contains, error_text([] { HostTensor(DType::f32, {kHuge}); }), "too large");
  EXPECT_PRED2(contains, error_text([] { HostTensor(DType::u8, {kHuge, 4}); }), "too large");
  EXPECT_PRED2(contains, error_text([] { HostTensor(DType::u8, {1, 1, 1, 1, 1, 1}); }), "6");
}

TEST(Elements, LoadAndStoreEveryDType) {
  for (const DType dtype : kDTypes) {
    HostTensor tensor(dtype, {4});
    for (int i = 0; i < 4; ++i) {
      store_from_float(tensor.data<std::byte>(), dtype, i, static_cast<float>(2 * i));
    }
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(load_as_float(tensor.view().data, dtype, i), static_cast<float>(2 * i))
          << to_string(dtype);
    }
  }
  float value = 0;
  EXPECT_THROW(load_as_float(&value, DType::none, 0), Error);
  EXPECT_THROW(store_from_float(&value, DType::none, 0, 1.0f), Error);
}

TEST(Elements, IntegersRoundToEvenAndSaturate) {
  std::int32_t word = 0;
  std::int64_t wide = 0;
  std::uint8_t byte = 0;
  const float infinity = std::numeric_limits<float>::infinity();
  store_from_float(&word, DType::i32, 0, 2.5f);
  EXPECT_EQ(word, 2);
  store_from_float(&word, DType::i32, 0, -3.5f);
  EXPECT_EQ(word, -4);
  store_from_float(&word, DType::i32, 0, 3e9f);
  EXPECT_EQ(word, std::numeric_limits<std::int32_t>::max());
  store_from_float(&wide, DType::i64, 0, infinity);
  EXPECT_EQ(wide, std::numeric_limits<std::int64_t>::max());
  store_from_float(&wide, DType::i64, 0, -infinity);
  EXPECT_EQ(wide, std::numeric_limits<std::int64_t>::min());
  store_from_float(&byte, DType::u8, 0, -1.0f);
  EXPECT_EQ(byte, 0);
  store_from_float(&byte, DType::u8, 0, 256.0f);
  EXPECT_EQ(byte, 255);
  store_from_float(&byte, DType::u8, 0, std::nanf(""));
  EXPECT_EQ(byte, 0);
}

TEST(Checked, ThrowsInsteadOfOverflowing) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(core::checked_multiply(3, 4, "x"), 12);
  EXPECT_EQ(core::checked_add(kMax, 0, "x"), kMax);
  EXPECT_PRED2(contains, error_text([] { core::checked_multiply(kMax, 2, "rows"); }), "rows");
  EXPECT_PRED2(contains, error_text([] { core::checked_add(kMax, 1, "cols"); }), "cols");
}

TEST(HostTensor, DataOfAnotherElementTypeIsRefused) {
  HostTensor half(DType::bf16, {4}), single(DType::f32, {4}), index(DType::i64, {4});
  const auto refused = [](const auto& call, const std::string& message) {
    EXPECT_EQ(error_text(call), "HostTensor: data<T>: expected " + message);
  };
  const std::string bits = "std::uint16_t or another type of 16 bits for elements of bf16";
  refused([&] { half.data<float>(); }, bits + ", got another type, of 4 bytes");
  refused([&] { std::as_const(half).data<float>(); }, bits + ", got another type, of 4 bytes");
  refused([&] { single.data<double>(); },
          "float for elements of f32, got another type, of 8 bytes");
  refused([&] { single.data<std::int32_t>(); },
          "float for elements of f32, got another type, of 4 bytes");
  refused([&] { index.data<std::int32_t>(); },
          "std::int64_t for elements of i64, got another type, of 4 bytes");
  EXPECT_EQ(half.data<std::uint16_t>(), half.data<void>());
  EXPECT_EQ(static_cast<void*>(single.data<std::byte>()), single.data<void>());
  EXPECT_EQ(HostTensor().data<float>(), nullptr);
}

}  // namespace
