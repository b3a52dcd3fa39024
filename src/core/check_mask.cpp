#include <algorithm>
#include <vector>

#include "src/core/check_lists.hpp"

namespace tessera::core {
namespace {

// The tensor with an entry per row: counts or offsets, depending on the form.
const Tensor& rows_of(const BlockList& list) { return list.offsets ? list.offsets : list.counts; }

bool any_part(const BlockList& list) { return list || rows_of(list); }

// The element offset of row (batch, head, row) of a list tensor. A batch or head dimension of size
// 1 is shared by all.
std::int64_t place(const Tensor& list, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return (list.size(0) == 1 ? 0 : batch * list.stride(0)) +
         (list.size(1) == 1 ? 0 : head * list.stride(1)) + row * list.stride(2);
}

// The expected size of the head dimension: heads, kv_heads or 1. `sets` is the size that the first
// tensor of the mask with more than one set has; the others must agree with it.
Dim heads_of(const MaskUse& use, std::int64_t sets) {
  const bool grouped = use.kv_heads > 1 && use.kv_heads < use.heads;
  if (sets == use.heads || !grouped) return {"heads", use.heads, true};
  if (sets == use.kv_heads) return {"kv_heads", use.kv_heads, true};
  return {"heads", use.heads, true, "kv_heads", use.kv_heads};
}

// Checks a list in either form, which must have at least `rows` rows.
MaskLayout check_layout_of(const Where& where, const BlockList& list, std::int64_t rows,
                           std::int64_t block_q, const MaskUse& use, const Dim& heads) {
  const bool by_offsets = static_cast<bool>(list.offsets);
  if (by_offsets && list.counts) refuse(where, "either counts or offsets", "both");
  if (!by_offsets && !list.counts) refuse(where, "counts or offsets with indices", "neither");
  const Where head = where / (by_offsets ? "offsets" : "counts");
  const Tensor& row_sizes = rows_of(list);
  const Dim dims[] = {{"batch", use.batch, true}, heads, {by_offsets ? "rows + 1" : "rows"}};
  check_list(head, row_sizes, use.device, dims);
  MaskLayout layout;
  layout.rows = row_sizes.size(2) - (by_offsets ? 1 : 0);
  if (layout.rows < rows) {
    refuse(head,
           words("at least ", rows, " rows, for ", use.q_length, " queries in blocks of ", block_q,
                 use.q_note),
           to_string(row_sizes));
  }

  const Where indices = where / "indices";
  const Dim flat[] = {{"total"}};
  const Dim table[] = {{"batch", use.batch, true}, heads, {"rows", layout.rows}, {"capacity"}};
  check_list(indices, list.indices, use.device, by_offsets ? Dims(flat) : Dims(table));
  check_same_dtype(indices, list.indices, row_sizes.dtype, by_offsets ? "offsets" : "counts");
  layout.capacity = list.indices.size(list.indices.rank - 1);
  return layout;
}

// Checks the layout of the element masks of partial blocks.
void check_bits(const Where& where, const BlockMask& mask, const Device& device) {
  if (!mask.bit_tile && !mask.bits) return;
  if (!mask.partial) refuse(where / "partial", "lists, as bit_tile or bits is given", "none");
  if (!mask.bit_tile) refuse(where / "bit_tile", "a bit tile for each partial block", "none");

  const Tensor& indices = mask.partial.indices;
  const Dim entries[] = {{"batch", indices.size(0)},
                         {"heads", indices.size(1)},
                         {"rows", indices.size(2)},
                         {"capacity", indices.size(3)}};
  const Dim total[] = {{"total", indices.size(0)}};
  check_list(where / "bit_tile", mask.bit_tile, device,
             indices.rank == 1 ? Dims(total) : Dims(entries));
  check_same_dtype(where / "bit_tile", mask.bit_tile, indices.dtype, "partial.indices");
  const Dim bits[] = {
      {"tiles"}, {"block_q", mask.block_q}, {"ceil(block_kv / 8)", blocks_of(mask.block_kv, 8)}};
  check_list(where / "bits", mask.bits, device, bits, dtypes({DType::u8}));
}

void check_pointers_of(const Where& where, const BlockList& list) {
  check_pointers(where,
                 {{"counts", list.counts}, {"offsets", list.offsets}, {"indices", list.indices}});
}

class MaskChecker {
 public:
  MaskChecker(const Where& where, const BlockMask& mask, const MaskSets& sets,
              std::int64_t kv_length)
      : where_(where),
        mask_(mask),
        one_set_(sets.batch == 1 && sets.heads == 1),
        seen_(static_cast<std::size_t>(blocks_of(kv_length, mask.block_kv))) {}

  // Checks one row of both lists together: a block must not be in both, or kernels would count it
  // twice.
  void check_row(std::int64_t batch, std::int64_t head, std::int64_t row) {
    begin_row(batch, head, row);
    if (mask_.full) check_entries(where_ / "full", mask_.full);
    if (mask_.partial) {
      check_entries(where_ / "partial", mask_.partial);
      if (mask_.bit_tile) check_tiles();
    }
  }
  // Checks one row of the full list; messages use the path of the mask.
  void check_list_row(std::int64_t batch, std::int64_t head, std::int64_t row) {
    begin_row(batch, head, row);
    check_entries(where_, mask_.full);
  }

 private:
  void begin_row(std::int64_t batch, std::int64_t head, std::int64_t row) {
    ++round_;
    batch_ = batch;
    head_ = head;
    row_ = row;
  }

  std::string in_row() const {
    return words(" in row ", row_) +
           (one_set_ ? std::string() : words(" of batch ", batch_, ", head ", head_));
  }

  void check_size(const Where& where, const BlockList& list) const {
    const Tensor& sizes = rows_of(list);
    const std::int64_t at = place(sizes, batch_, head_, row_);
    const std::int64_t most = list.indices.size(list.indices.rank - 1);
    if (list.offsets) {
      const std::int64_t begin = read_entry(sizes, at, 0), end = read_entry(sizes, at, 1);
      if (begin < 0 || end > most) {
        refuse(where / "offsets", words("offsets 0 to ", most),
               words(begin < 0 ? begin : end, in_row()));
      }
      if (end < begin) {
        refuse(where / "offsets", "offsets that never decrease",
               words(end, " after ", begin, in_row()));
      }
    } else if (const std::int64_t count = read_index(sizes, at); count < 0 || count > most) {
      refuse(where / "counts", words("counts 0 to ", most, ", the capacity of indices"),
             words(count, in_row()));
    }
  }

  void check_entries(const Where& where, const BlockList& list) {
    check_size(where, list);
    const EntryRow row = entries_of(list, list.indices, batch_, head_, row_);
    const auto columns = static_cast<std::int64_t>(seen_.size());
    for (std::int64_t i = 0; i < row.count; ++i) {
      const std::int64_t column = read_index(list.indices, row.begin + i * row.stride);
      if (column < 0 || column >= columns) {
        refuse(where / "indices", words("key blocks in [0, ", columns, ")"),
               words(column, in_row()));
      }
      std::int64_t& seen = seen_[static_cast<std::size_t>(column)];
      if (seen == round_) {
        refuse(where / "indices", "key blocks that are unique in a row of full and partial lists",
               words(column, " twice", in_row()));
      }
      seen = round_;
    }
  }

  void check_tiles() const {
    const EntryRow row = entries_of(mask_.partial, mask_.bit_tile, batch_, head_, row_);
    for (std::int64_t i = 0; i < row.count; ++i) {
      const std::int64_t tile = read_index(mask_.bit_tile, row.begin + i * row.stride);
      if (tile < 0 || tile >= mask_.bits.size(0)) {
        refuse(where_ / "bit_tile", words("tiles in [0, ", mask_.bits.size(0), ")"),
               words(tile, in_row()));
      }
    }
  }

  Where where_;
  const BlockMask& mask_;
  bool one_set_;
  std::vector<std::int64_t> seen_;  // the last round in which each key block was found
  std::int64_t round_ = 0;
  std::int64_t batch_ = 0, head_ = 0, row_ = 0;
};

}  // namespace

bool has_lists(const BlockMask& mask) { return any_part(mask.full) || any_part(mask.partial); }

void check_pointers(const Where& where, const BlockMask& mask) {
  check_pointers_of(where / "full", mask.full);
  check_pointers_of(where / "partial", mask.partial);
  check_pointers(where, {{"bit_tile", mask.bit_tile}, {"bits", mask.bits}});
}

MaskLayout check_mask_layout(const Where& where, const BlockMask& mask, const MaskUse& use) {
  const auto check_block = [&](const char* name, std::int64_t block) {
    if (block < 1 || block > kMaxSize) refuse(where / name, "a block of 1 to 2^60", words(block));
  };
  check_block("block_q", mask.block_q);
  check_block("block_kv", mask.block_kv);
  const bool full = any_part(mask.full), partial = any_part(mask.partial);
  if (!full && !partial) refuse(where, "full or partial lists of blocks", "neither");
  const std::int64_t rows = blocks_of(use.q_length, mask.block_q);
  const std::int64_t columns = blocks_of(use.kv_length, mask.block_kv);
  if (columns > kMaxKeyBlocks) {
    refuse(where / "block_kv",
           words("a size that divides the ", use.kv_length, " keys into at most 2^28 blocks"),
           words(mask.block_kv));
  }

  const MaskSets sets = sets_of(mask);
  const Dim heads = heads_of(use, sets.heads);
  MaskLayout lists[2];
  if (full) lists[0] = check_layout_of(where / "full", mask.full, rows, mask.block_q, use, heads);
  if (partial) {
    lists[1] = check_layout_of(where / "partial", mask.partial, rows, mask.block_q, use, heads);
  }
  if (full && partial && lists[0].rows != lists[1].rows) {
    refuse(where / "partial", words(lists[0].rows, " rows, like full"), words(lists[1].rows));
  }
  check_bits(where, mask, use.device);
  return {std::max(lists[0].rows, lists[1].rows),
          std::min(lists[0].capacity + lists[1].capacity, columns), sets.batch, sets.heads};
}

MaskSets sets_of(const BlockMask& mask) {
  MaskSets sets;
  for (const BlockList* list : {&mask.full, &mask.partial}) {
    for (const Tensor* tensor : {&list->counts, &list->offsets, &list->indices}) {
      if (!*tensor || tensor->rank < 3) continue;  // absent, or indices [total]
      if (sets.batch == 1) sets.batch = tensor->size(0);
      if (sets.heads == 1) sets.heads = tensor->size(1);
    }
  }
  return sets;
}

EntryRow entries_of(const BlockList& list, const Tensor& entries, std::int64_t batch,
                    std::int64_t head, std::int64_t row) {
  const std::int64_t at = place(rows_of(list), batch, head, row);
  const std::int64_t stride = entries.stride(entries.rank - 1);
  if (!list.offsets) return {place(entries, batch, head, row), stride, read_index(list.counts, at)};
  const std::int64_t begin = read_entry(list.offsets, at, 0);
  return {begin * stride, stride, read_entry(list.offsets, at, 1) - begin};
}

void check_mask_lists(const Where& where, const BlockMask& mask,
                      std::span<const std::int64_t> q_lengths, std::int64_t kv_length) {
  if (!on_host(mask.full ? mask.full.indices : mask.partial.indices)) return;
  const MaskSets sets = sets_of(mask);
  // Rows after a sequence's last query are never read, so their contents do not matter.
  std::int64_t longest = 0;
  for (const std::int64_t length : q_lengths) longest = std::max(longest, length);
  const bool each_its_own = sets.batch == static_cast<std::int64_t>(q_lengths.size());
  MaskChecker checker(where, mask, sets, kv_length);
  for (std::int64_t b = 0; b < sets.batch; ++b) {
    const std::int64_t length = each_its_own ? q_lengths[static_cast<std::size_t>(b)] : longest;
    const std::int64_t rows = blocks_of(length, mask.block_q);
    for (std::int64_t h = 0; h < sets.heads; ++h) {
      for (std::int64_t row = 0; row < rows; ++row) checker.check_row(b, h, row);
    }
  }
}

std::int64_t check_block_list(const Where& where, const BlockList& list, const MaskUse& use) {
  const std::int64_t rows =
      check_layout_of(where, list, 0, 1, use, {"heads", use.heads, true}).rows;
  check_pointers_of(where, list);
  if (!on_host(list.indices)) return rows;
  const BlockMask mask{1, 1, list};
  const MaskSets sets = sets_of(mask);
  MaskChecker checker(where, mask, sets, use.kv_length);
  for (std::int64_t b = 0; b < sets.batch; ++b)
    for (std::int64_t h = 0; h < sets.heads; ++h)
      for (std::int64_t row = 0; row < rows; ++row) checker.check_list_row(b, h, row);
  return rows;
}

}  // namespace tessera::core
