#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include <tessera/block_mask.hpp>
#include <tessera/bsr.hpp>

#include "src/core/check.hpp"

// Checks of lists (BSR matrices, block masks, offsets), for every run and for `validate`. Checks of
// layouts look at shapes, dtypes and presence and read no data. Checks of contents read lists in
// host memory only.
namespace tessera::core {

/// Reads an element of an i32 or i64 list.
inline std::int64_t read_index(const Tensor& list, std::int64_t element) {
  return list.dtype == DType::i64 ? static_cast<const std::int64_t*>(list.data)[element]
                                  : static_cast<const std::int32_t*>(list.data)[element];
}
/// Reads entry `index` of a list's last dimension; `base` is the element offset of entry 0.
inline std::int64_t read_entry(const Tensor& list, std::int64_t base, std::int64_t index) {
  return read_index(list, base + index * list.stride(list.rank - 1));
}

inline bool on_host(const Tensor& tensor) {
  return tensor && tensor.device.kind == DeviceKind::cpu;
}

/// Refuses a null pointer to a tensor that has elements; absent tensors pass.
void check_pointer(const Where& where, const Tensor& tensor);
/// A field of an argument. Its path is built only for a message.
struct Field {
  const char* name;
  const Tensor& tensor;
};
/// The same for several fields of `where`.
void check_pointers(const Where& where, std::initializer_list<Field> fields);
void check_pointers(const Where& where, const BsrMatrix& matrix);
void check_pointers(const Where& where, const BlockMask& mask);

/// The rules for a list of offsets, besides that they never decrease.
struct OffsetsRule {
  std::int64_t total = 0;           // maximum of an offset
  bool from_zero = true;            // the first offset is 0, rather than at least 0
  bool to_total = false;            // the last offset is `total`, rather than at most `total`
  std::int64_t longest = kMaxSize;  // maximum length of a segment
  std::int64_t matrix = -1;         // index in the batch for messages; -1: no batch
};
/// Checks `segments` + 1 offsets of a list in host memory, from element offset `base` on.
void check_offsets(const Where& where, const Tensor& list, std::int64_t base, std::int64_t segments,
                   const OffsetsRule& rule);

// ---- BSR matrices ------------------------------------------------------------------------------

/// Checks the layout of a BSR matrix and returns its batch size. The caller checks the dtype of the
/// values.
std::int64_t check_bsr_layout(const Where& where, const BsrMatrix& matrix, const Device& device);

/// Checks the lists of a BSR matrix if they are in host memory: offsets valid for the layout,
/// columns in range, sorted and unique within a row. `written`: values are an output, so matrices
/// of a batch that share one pool of values must not share blocks.
void check_bsr_lists(const Where& where, const BsrMatrix& matrix, bool written = false);

// ---- Block masks -------------------------------------------------------------------------------

/// Maximum number of key blocks of a mask: the search for duplicates allocates 8 bytes for each.
inline constexpr std::int64_t kMaxKeyBlocks = std::int64_t{1} << 28;

/// The number of blocks that cover a length.
constexpr std::int64_t blocks_of(std::int64_t length, std::int64_t block) {
  return length / block + (length % block != 0);
}

bool has_lists(const BlockMask& mask);

/// The problem that a mask is used with.
struct MaskUse {
  std::int64_t batch = 1, heads = 1;
  std::int64_t kv_heads = 1;                 // lists may be per KV head instead of per head
  std::int64_t q_length = 0, kv_length = 0;  // of the longest sequence
  Device device{};
  const char* q_note = "";  // appended to the number of queries in messages
};
struct MaskLayout {
  std::int64_t rows = 0, capacity = 0;  // rows of lists; upper bound of a list's length
  std::int64_t batch = 1, heads = 1;    // sets of lists; 1: shared by all
};
/// Checks the layout of a mask that has lists.
MaskLayout check_mask_layout(const Where& where, const BlockMask& mask, const MaskUse& use);

/// Checks a single list, whose entries are columns in [0, use.kv_length): layout, pointers and, in
/// host memory, contents. Returns its number of rows.
std::int64_t check_block_list(const Where& where, const BlockList& list, const MaskUse& use);

/// The number of batches and heads that have lists of their own in a mask; 1: shared by all.
struct MaskSets {
  std::int64_t batch = 1, heads = 1;
};
MaskSets sets_of(const BlockMask& mask);

/// The entries of one row of a list: elements begin + i * stride for i < count.
struct EntryRow {
  std::int64_t begin = 0, stride = 1, count = 0;
};
/// Locates row (batch, head, row) in `entries`, which is the list's indices or a tensor of their
/// shape. Reads the list's counts or offsets.
EntryRow entries_of(const BlockList& list, const Tensor& entries, std::int64_t batch,
                    std::int64_t head, std::int64_t row);

/// Checks the lists of a mask if they are in host memory, for the rows that have queries: counts or
/// offsets within the lists, blocks in range and unique within a row, and existing bit tiles.
/// `q_lengths` has the length of each sequence, or one length for all.
void check_mask_lists(const Where& where, const BlockMask& mask,
                      std::span<const std::int64_t> q_lengths, std::int64_t kv_length);

}  // namespace tessera::core
