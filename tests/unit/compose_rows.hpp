#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/walk/compose_mask.hpp"

namespace tessera::testing {

/// Composes on the host what the kernel composes on a GPU, `width` columns at a time.
inline void compose_rows(const planning::MaskComposer& s, std::int64_t width) {
  std::vector<std::uint64_t> words;
  for (std::int64_t index = 0; index < s.to.list_rows(); ++index) {
    const planning::MaskComposer::ComposedRow row = s.composed_row(index);
    const std::int64_t begin = index * s.to.capacity;
    std::int32_t full = 0, partial = 0;
    for (std::int64_t first = 0; first < s.to.columns; first += width) {
      words.assign(static_cast<std::size_t>(width * s.to.words), 0);
      const auto word_at = [&](std::int64_t column, std::int64_t word) -> std::uint64_t& {
        return words[static_cast<std::size_t>((column - first) * s.to.words + word)];
      };
      const std::int64_t end = std::min(first + width, s.to.columns);
      for (std::int64_t number = 0; number < s.sources(row); ++number) {
        const planning::MaskComposer::Source source = s.source(row, number);
        for (std::int64_t entry = 0; entry < source.blocks.size; ++entry)
          for (std::int64_t w = source.first_word; w < source.first_word + source.words; ++w) {
            ASSERT_LT(w, s.to.words);
            s.add(row, source, entry, w, first, end, [&](std::int64_t column, std::uint64_t bits) {
              ASSERT_TRUE(column >= first && column < end);
              word_at(column, w) |= bits;
            });
          }
      }
      for (std::int64_t column = first; column < end; ++column) {
        const auto word = [&](std::int64_t w) { return word_at(column, w); };
        const auto [kind, any] = s.classify(row, column, word);
        if (kind == planning::MaskComposer::Kind::full) {
          ASSERT_LT(full, s.to.capacity);
          s.lists.full[begin + full++] = static_cast<std::int32_t>(column);
        } else if (kind == planning::MaskComposer::Kind::partial) {
          ASSERT_LT(partial, s.to.capacity);
          const std::int64_t block = begin + partial++;
          s.lists.partial[block] = static_cast<std::int32_t>(column);
          s.lists.bit_tile[block] = static_cast<std::int32_t>(block);
          std::uint64_t* bits = s.lists.bits + block * s.to.block_words();
          for (std::int64_t w = 0; w < s.to.words; ++w) bits[w] = word(w);
          bits[s.to.words] = any;
        }
      }
    }
    s.lists.full_counts[index] = full;
    s.lists.partial_counts[index] = partial;
  }
}

}  // namespace tessera::testing
