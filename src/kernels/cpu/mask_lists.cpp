#include <algorithm>
#include <functional>

#include <tessera/host_tensor.hpp>

#include "src/kernels/cpu/convert.hpp"
#include "src/sparse/support.hpp"

namespace tessera::cpu {

using planning::MaskColumns;
using planning::MaskRows;
using planning::SelectCut;

namespace {

/// The keys of a line: listed blocks have larger keys than unlisted ones, which have 0.
void read_keys(const MaskRows& s, std::int64_t line, std::vector<std::uint32_t>& keys) {
  const std::int64_t begin = s.begin(s.strides, line);
  const std::int64_t except = s.begin(s.except_strides, line);
  const auto* flags = static_cast<const std::uint8_t*>(s.blocks);
  for (std::int64_t j = 0; j < s.cols; ++j) {
    const std::int64_t at = begin + j * s.strides.entry;
    std::uint32_t key = 0;
    if (s.dtype != DType::u8)
      key = planning::score_key(load_as_float(s.blocks, s.dtype, at));
    else if (flags[at] != 0)
      key = s.except == nullptr || s.except[except + j * s.except_strides.entry] == 0;
    keys[static_cast<std::size_t>(j)] = key;
  }
}

/// The key above which blocks are kept, and how many of those with this key are kept.
SelectCut cut_of(const MaskRows& s, const std::vector<std::uint32_t>& keys,
                 std::vector<std::uint32_t>& sorted) {
  if (s.dtype == DType::u8 || s.keep >= s.cols) return {};
  if (s.keep == 0) return {0xffffffffu, 0};
  sorted = keys;
  const auto last = sorted.begin() + (s.keep - 1);
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  const auto larger =
      std::count_if(sorted.begin(), last, [&](std::uint32_t key) { return key > *last; });
  return {*last, *last == 0 ? 0 : s.keep - larger};
}

}  // namespace

void list_rows(const MaskRows& s) {
  auto keys = sparse::filled<std::uint32_t>(s.cols, 0, "blocks"), sorted = keys;
  for (std::int64_t line = 0; line < s.lines(); ++line) {
    read_keys(s, line, keys);
    SelectCut cut = cut_of(s, keys, sorted);
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < s.cols && count < s.capacity; ++j) {
      const std::uint32_t key = keys[static_cast<std::size_t>(j)];
      if (key < cut.key || (key == cut.key && cut.ties-- <= 0)) continue;
      s.indices.set(line * s.capacity + count++, j);
    }
    s.counts.set(line, count);
  }
}

void list_columns(const MaskColumns& s) {
  auto counts = sparse::filled<std::int64_t>(s.cols, 0, "list");
  for (std::int64_t set = 0; set < s.sets(); ++set) {
    std::fill(counts.begin(), counts.end(), std::int64_t{0});
    for (std::int64_t i = 0; i < s.stored.rows; ++i) {
      const planning::ListRow row = s.stored.row(set / s.heads, set % s.heads, i);
      for (std::int64_t e = 0; e < row.size; ++e) {
        const std::int64_t line = set * s.cols + row[e];
        std::int64_t& count = counts[static_cast<std::size_t>(row[e])];
        if (count == s.capacity) continue;
        const std::int64_t at = line * s.capacity + count++;
        s.rows.set(at, i);
        if (s.entries) s.entries.set(at, e);
      }
    }
    for (std::int64_t j = 0; j < s.cols; ++j)
      s.counts.set(set * s.cols + j, counts[static_cast<std::size_t>(j)]);
  }
}

}  // namespace tessera::cpu
