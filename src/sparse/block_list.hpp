#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tessera/block_mask.hpp>

namespace tessera::sparse {

/// The rows of one of a mask's lists, whichever its form, strides and broadcast dimensions. An
/// absent list has no entries anywhere.
class BlockLists {
 public:
  /// Checks dtypes, shapes and presence; `name` is "full" or "partial" in messages.
  BlockLists(const BlockList& list, const std::string& name);

  bool present() const { return static_cast<bool>(list_); }
  std::int64_t rows() const { return rows_; }  ///< rows that the list has
  std::int64_t batch() const { return batch_; }
  std::int64_t heads() const { return heads_; }
  const BlockList& list() const { return list_; }
  const std::string& name() const { return name_; }

  /// Entries of one row. Throws where the count or the offsets lead outside the list.
  std::int64_t count(std::int64_t b, std::int64_t h, std::int64_t row) const;
  /// Entry `at` of a row, of `list().indices` or of a tensor of the same shape, such as a mask's
  /// bit_tile.
  std::int64_t entry(const Tensor& tensor, std::int64_t b, std::int64_t h, std::int64_t row,
                     std::int64_t at) const;
  /// The key blocks of a row, in stored order. Throws for one outside [0, kv_blocks).
  std::vector<std::int64_t> row(std::int64_t b, std::int64_t h, std::int64_t row,
                                std::int64_t kv_blocks) const;
  /// "full.counts[0, 1, 5]"
  std::string place(const char* part, std::int64_t b, std::int64_t h, std::int64_t row) const;

 private:
  std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t position) const;

  BlockList list_;
  std::string name_;
  std::int64_t batch_ = 1, heads_ = 1, rows_ = 0;
};

/// Both lists of a mask, with its bit tiles: shapes checked, contents not yet.
struct MaskLists {
  BlockLists full, partial;
  std::int64_t batch = 1, heads = 1;

  explicit MaskLists(const BlockMask& mask);
};

/// How many blocks cover a length.
constexpr std::int64_t blocks_of(std::int64_t length, std::int64_t block) {
  return length / block + (length % block != 0);
}

}  // namespace tessera::sparse
