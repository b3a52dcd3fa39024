#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <sstream>
#include <string>

#include <tessera/tensor.hpp>

// What all checks of arguments share: one way to name an argument and one form of message,
// "<op>: <argument>: expected <what is accepted>, got <what came>".
namespace tessera::core {

/// No tensor may span more bytes than this, and no size or position may be larger: sums and
/// differences of a few such numbers stay inside 64 bits everywhere below.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 60;

/// An argument by its path, such as "attention: mask.full.indices". Costs nothing until it is
/// printed, so that the checks can run at every call.
class Where {
 public:
  constexpr explicit Where(const char* op) : names_{op} {}
  constexpr Where operator/(const char* field) const {
    Where inner = *this;
    inner.names_[static_cast<std::size_t>(inner.depth_++)] = field;
    return inner;
  }
  /// The element of a vector: outs[2].
  constexpr Where operator[](std::int64_t element) const {
    Where inner = *this;
    inner.element_ = element;
    return inner;
  }
  std::string text() const;
  /// Without the operation: "mask.full.indices".
  std::string path() const;

 private:
  static constexpr std::size_t kMaxDepth = 6;
  std::array<const char*, kMaxDepth> names_{};
  int depth_ = 1;
  std::int64_t element_ = -1;
};

template <class... Parts>
std::string words(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

/// Throws Error(invalid_argument): "<where>: expected <accepted>, got <came>".
[[noreturn]] void refuse(const Where& where, const std::string& accepted, const std::string& came);

// ---- Tensors -----------------------------------------------------------------------------------

constexpr unsigned dtypes(std::initializer_list<DType> list) {
  unsigned set = 0;
  for (DType dtype : list) set |= 1u << static_cast<unsigned>(dtype);
  return set;
}
inline constexpr unsigned kFloats = dtypes({DType::f32, DType::f16, DType::bf16});
inline constexpr unsigned kValues = kFloats | dtypes({DType::e4m3});  // what products multiply
inline constexpr unsigned kIndices = dtypes({DType::i32, DType::i64});

inline constexpr std::int64_t kAny = -1;

/// One expected dimension.
struct Dim {
  const char* name;
  std::int64_t size = kAny;
  bool or_one = false;            // a size of one stands for all
  const char* or_name = nullptr;  // another size that is accepted, and its name
  std::int64_t or_size = kAny;
};
using Dims = std::span<const Dim>;

/// Present, on `device`, a rank and sizes that make sense, no more than kMaxSize bytes from the
/// first to the last element. Everything else may then compute with its sizes and strides.
void check_tensor(const Where& where, const Tensor& tensor, const Device& device);
void check_dtype(const Where& where, const Tensor& tensor, unsigned accepted);
/// The dtype of another argument.
void check_same_dtype(const Where& where, const Tensor& tensor, DType dtype, const char* other);
/// `note` follows what is accepted, where a hint helps.
void check_shape(const Where& where, const Tensor& tensor, Dims dims, const char* note = "");
/// No two elements may share an address.
void check_no_alias(const Where& where, const Tensor& tensor);

/// A float tensor that is read.
void check_floats(const Where& where, const Tensor& tensor, const Device& device, Dims dims);
/// A float tensor that is written.
void check_output(const Where& where, const Tensor& tensor, const Device& device, Dims dims);
/// A list of integers.
void check_list(const Where& where, const Tensor& tensor, const Device& device, Dims dims,
                unsigned accepted = kIndices);

void check_finite(const Where& where, float value);

}  // namespace tessera::core
