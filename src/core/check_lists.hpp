#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include <tessera/block_mask.hpp>
#include <tessera/bsr.hpp>

#include "src/core/check.hpp"

// What lists must keep to, said once: for the checks before every run and for `validate`. Layouts
// are shapes, dtypes and presence; no data is read. Contents are read where they are in host
// memory.
namespace tessera::core {

/// An element of a list of either index dtype.
inline std::int64_t read_index(const Tensor& list, std::int64_t element) {
  return list.dtype == DType::i64 ? static_cast<const std::int64_t*>(list.data)[element]
                                  : static_cast<const std::int32_t*>(list.data)[element];
}
/// Entry `index` of a list's last dimension, the others of which lead to `base`.
inline std::int64_t read_entry(const Tensor& list, std::int64_t base, std::int64_t index) {
  return read_index(list, base + index * list.stride(list.rank - 1));
}

inline bool on_host(const Tensor& tensor) {
  return tensor && tensor.device.kind == DeviceKind::cpu;
}

/// Refuses a null pointer to a tensor that has elements; absent tensors pass.
void check_pointer(const Where& where, const Tensor& tensor);
/// The same of fields of `where`, which are named only where one is refused: every call asks.
struct Field {
  const char* name;
  const Tensor& tensor;
};
void check_pointers(const Where& where, std::initializer_list<Field> fields);
void check_pointers(const Where& where, const BsrMatrix& matrix);
void check_pointers(const Where& where, const BlockMask& mask);

/// What the segments of an offsets list must keep to.
struct OffsetsRule {
  std::int64_t total = 0;           // no offset is larger
  bool from_zero = true;            // the first is zero, rather than zero or more
  bool to_total = false;            // the last is `total`, rather than `total` or less
  std::int64_t longest = kMaxSize;  // no segment is longer
  std::int64_t matrix = -1;         // of a batch: whose offsets they are, in messages
};
/// Offsets 0 to `segments` of a list in host memory, from `base` on.
void check_offsets(const Where& where, const Tensor& list, std::int64_t base, std::int64_t segments,
                   const OffsetsRule& rule);

// ---- BSR matrices ------------------------------------------------------------------------------

/// A BSR matrix as it is stored; returns its batch. Which dtypes the values may have is the
/// caller's to check.
std::int64_t check_bsr_layout(const Where& where, const BsrMatrix& matrix, const Device& device);

/// The lists of a BSR matrix in host memory: offsets as its layout asks, columns in range, sorted
/// and unique within a row. `written`: matrices of a batch that share one pool of values must not
/// share blocks of it.
void check_bsr_lists(const Where& where, const BsrMatrix& matrix, bool written = false);

// ---- Block masks -------------------------------------------------------------------------------

/// Finding duplicates in the lists of a block mask takes a word for each block of keys.
inline constexpr std::int64_t kMaxKeyBlocks = std::int64_t{1} << 28;

/// How many blocks cover a length.
constexpr std::int64_t blocks_of(std::int64_t length, std::int64_t block) {
  return length / block + (length % block != 0);
}

bool has_lists(const BlockMask& mask);

/// What a mask is used with.
struct MaskUse {
  std::int64_t batch = 1, heads = 1;
  std::int64_t kv_heads = 1;                 // lists may be theirs too
  std::int64_t q_length = 0, kv_length = 0;  // of the longest sequence
  Device device{};
  const char* q_note = "";  // follows the number of queries in messages
};
struct MaskLayout {
  std::int64_t rows = 0, capacity = 0;  // rows of lists, the longest possible list
  std::int64_t batch = 1, heads = 1;    // sets of lists; 1: shared by all
};
/// A mask that has lists.
MaskLayout check_mask_layout(const Where& where, const BlockMask& mask, const MaskUse& use);

/// One list by itself: layout and pointers, and in host memory the contents, of blocks of one
/// element. Returns its rows.
std::int64_t check_block_list(const Where& where, const BlockList& list, const MaskUse& use);

/// How many batches and heads a mask's lists name themselves; 1: shared by all.
struct MaskSets {
  std::int64_t batch = 1, heads = 1;
};
MaskSets sets_of(const BlockMask& mask);

/// The entries of one row of a list: `count` of them, `stride` apart.
struct EntryRow {
  std::int64_t begin = 0, stride = 1, count = 0;
};
/// Where row (batch, head, row) lies in `entries`: the list's indices, or a tensor of their shape.
/// Reads the list's counts or offsets.
EntryRow entries_of(const BlockList& list, const Tensor& entries, std::int64_t batch,
                    std::int64_t head, std::int64_t row);

/// The lists of a mask in host memory, in the rows that queries use: counts within the lists,
/// blocks in range and in a row once, bit tiles that exist. `q_lengths` has the length of each
/// sequence, or one for all.
void check_mask_lists(const Where& where, const BlockMask& mask,
                      std::span<const std::int64_t> q_lengths, std::int64_t kv_length);

}  // namespace tessera::core
