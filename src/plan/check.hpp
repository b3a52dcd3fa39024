#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>

#include "src/plan/shape.hpp"

// What the shape and data checks share: one way to name an argument and one form of message,
// "<op>: <argument>: expected <what is accepted>, got <what came>".
namespace tessera::planning {

/// No tensor may span more bytes than this, and no size or position may be larger: sums and
/// differences of a few such numbers stay inside 64 bits everywhere below.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 60;

/// Finding duplicates in the lists of a block mask takes a word for each block of keys.
inline constexpr std::int64_t kMaxKeyBlocks = std::int64_t{1} << 28;

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
  bool or_one = false;  // a size of one stands for all
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

// ---- Parts of problems -------------------------------------------------------------------------

/// A BSR matrix as it is stored; `values` says which dtypes its values may have.
OperandShape check_bsr(const Where& where, const BsrMatrix& matrix, const Device& device,
                       unsigned values);
/// The mask of an attention whose lengths, batch and heads `shape` holds; fills the mask's fields.
void check_mask(const Where& where, const BlockMask& mask, AttentionShape& shape);

// ---- Contents ----------------------------------------------------------------------------------

inline bool on_host(const Tensor& tensor) {
  return tensor && tensor.device.kind == DeviceKind::cpu;
}

/// Refuses a null pointer to a tensor that has elements; absent tensors pass.
void check_pointer(const Where& where, const Tensor& tensor);
void check_pointers(const Where& where, const BsrMatrix& matrix);

/// What the segments of an offsets list must keep to.
struct OffsetsRule {
  std::int64_t total = 0;           // no offset is larger
  bool from_zero = true;            // the first is zero, rather than zero or more
  bool to_total = false;            // the last is `total`, rather than `total` or less
  std::int64_t longest = kMaxSize;  // no segment is longer
};
/// Entry `index` of a list's last dimension, the others of which lead to `base`.
inline std::int64_t read_entry(const Tensor& list, std::int64_t base, std::int64_t index) {
  return read_index(list, base + index * list.stride(list.rank - 1));
}

/// Offsets 0 to `segments` of a list in host memory, from `base` on.
void check_offsets(const Where& where, const Tensor& list, std::int64_t base, std::int64_t segments,
                   const OffsetsRule& rule);

/// The lists of a BSR matrix in host memory: offsets as its layout asks, columns in range, sorted
/// and unique within a row. `written`: matrices of a batch that share one pool of values must not
/// share blocks of it.
void check_bsr_lists(const Where& where, const BsrMatrix& matrix, bool written = false);

/// The lists of a mask in host memory, in the rows that the queries use: counts within the lists,
/// blocks in range and in a row once, bit tiles that exist. `q_offsets` is absent where not packed.
void check_mask_lists(const Where& where, const BlockMask& mask, const AttentionShape& shape,
                      const Tensor& q_offsets);

}  // namespace tessera::planning
