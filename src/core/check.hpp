#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <sstream>
#include <string>

#include <tessera/tensor.hpp>

// Checks of arguments. All of them name an argument in the same way and use one form of message:
// "<op>: <argument>: expected <accepted>, got <actual>".
namespace tessera::core {

/// Upper bound of the bytes that a tensor spans, and of every size and position. Sums and
/// differences of a few such numbers do not overflow 64 bits.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 60;

/// The path of an argument, such as "attention: mask.full.indices". The text is built only when it
/// is printed, so that checks at every call are cheap.
class Where {
 public:
  constexpr explicit Where(const char* op) : names_{op} {}
  constexpr Where operator/(const char* field) const {
    Where inner = *this;
    inner.names_[static_cast<std::size_t>(inner.depth_++)] = field;
    return inner;
  }
  /// An element of a vector: outs[2].
  constexpr Where operator[](std::int64_t element) const {
    Where inner = *this;
    inner.element_ = element;
    return inner;
  }
  /// "attention: mask.full.indices:", the beginning of a message.
  std::string text() const;
  /// The path without the operation: "mask.full.indices".
  std::string path() const;

 private:
  static constexpr std::size_t kMaxDepth = 6;
  std::array<const char*, kMaxDepth> names_{};
  int depth_ = 1;
  std::int64_t element_ = -1;
};

/// Concatenates the parts as a stream would print them.
template <class... Parts>
std::string words(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

/// Throws Error(invalid_argument): "<where>: expected <accepted>, got <came>".
[[noreturn]] void refuse(const Where& where, const std::string& accepted, const std::string& came);

// ---- Tensors -----------------------------------------------------------------------------------

/// A set of dtypes as a bitmask.
constexpr unsigned dtypes(std::initializer_list<DType> list) {
  unsigned set = 0;
  for (DType dtype : list) set |= 1u << static_cast<unsigned>(dtype);
  return set;
}
inline constexpr unsigned kFloats = dtypes({DType::f32, DType::f16, DType::bf16});
inline constexpr unsigned kFp8 = dtypes({DType::e4m3, DType::e5m2});
inline constexpr unsigned kValues = kFloats | kFp8;                 // operands of products
inline constexpr unsigned kKeys = kFloats | dtypes({DType::e4m3});  // of attention; caches
constexpr bool is_fp8(DType dtype) { return (kFp8 >> static_cast<unsigned>(dtype) & 1u) != 0; }
inline constexpr unsigned kIndices = dtypes({DType::i32, DType::i64});

/// As the size of a `Dim`: every size is accepted.
inline constexpr std::int64_t kAny = -1;

/// An expected dimension.
struct Dim {
  const char* name;
  std::int64_t size = kAny;
  bool or_one = false;            // a size of 1, shared by all, is accepted too
  const char* or_name = nullptr;  // name of another size that is accepted
  std::int64_t or_size = kAny;
};
using Dims = std::span<const Dim>;

/// Checks that a tensor is present and on `device`, that its rank and sizes are valid, and that it
/// spans at most kMaxSize bytes. After this check, arithmetic on its sizes and strides is safe.
void check_tensor(const Where& where, const Tensor& tensor, const Device& device);
void check_dtype(const Where& where, const Tensor& tensor, unsigned accepted);
/// Checks for the dtype of another argument, whose name is `other`.
void check_same_dtype(const Where& where, const Tensor& tensor, DType dtype, const char* other);
/// Checks rank and sizes. `note` is a hint that the message appends to the expected shape.
void check_shape(const Where& where, const Tensor& tensor, Dims dims, const char* note = "");
/// Checks that no two elements share an address.
void check_no_alias(const Where& where, const Tensor& tensor);

/// Checks a float input: tensor, dtype and shape.
void check_floats(const Where& where, const Tensor& tensor, const Device& device, Dims dims);
/// Checks a float output: as an input, and that its elements have distinct addresses.
void check_output(const Where& where, const Tensor& tensor, const Device& device, Dims dims);
/// Checks a list of integers, i32 or i64 by default.
void check_list(const Where& where, const Tensor& tensor, const Device& device, Dims dims,
                unsigned accepted = kIndices);

void check_finite(const Where& where, float value);

}  // namespace tessera::core
