#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <tessera/pattern.hpp>

#include "src/sparse/random.hpp"
#include "src/sparse/support.hpp"

// Helpers with which generators append the rows of a pattern, between `open_pattern` and
// `close_row`.
namespace tessera::sparse {

/// Reserves room for `more` blocks, growing by doubling. Throws `Error` if memory runs out.
inline void make_room(Pattern& pattern, std::int64_t more) {
  const std::int64_t needed = pattern.stored() + more;
  const auto room = static_cast<std::int64_t>(pattern.indices.capacity());
  if (needed > room) reserve(pattern.indices, std::max(needed, 2 * room), "pattern");
}

inline void append(Pattern& pattern, const std::vector<std::int64_t>& cols) {
  make_room(pattern, static_cast<std::int64_t>(cols.size()));
  pattern.indices.insert(pattern.indices.end(), cols.begin(), cols.end());
}

/// Appends the columns [begin, end).
inline void append_range(Pattern& pattern, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  make_room(pattern, end - begin);
  const auto old = pattern.indices.size();
  pattern.indices.resize(old + static_cast<std::size_t>(end - begin));
  std::iota(pattern.indices.begin() + static_cast<std::ptrdiff_t>(old), pattern.indices.end(),
            begin);
}

/// Sorts the columns, removes duplicates and appends the result.
inline void append_set(Pattern& pattern, std::vector<std::int64_t>& cols) {
  std::sort(cols.begin(), cols.end());
  cols.erase(std::unique(cols.begin(), cols.end()), cols.end());
  append(pattern, cols);
}

/// Draws `count` distinct numbers of [0, n), sorted; all subsets are equally likely (Floyd's
/// algorithm).
class Sampler {
 public:
  explicit Sampler(std::int64_t n) : n_(n), taken_(filled<char>(n, 0, "cols")) {}

  const std::vector<std::int64_t>& draw(Random& random, std::int64_t n, std::int64_t count) {
    drawn_.clear();
    for (std::int64_t j = n - count; j < n; ++j) {
      std::int64_t pick = random.below(j + 1);
      if (taken_[static_cast<std::size_t>(pick)]) pick = j;
      taken_[static_cast<std::size_t>(pick)] = 1;
      drawn_.push_back(pick);
    }
    for (const std::int64_t pick : drawn_) taken_[static_cast<std::size_t>(pick)] = 0;
    std::sort(drawn_.begin(), drawn_.end());
    return drawn_;
  }
  const std::vector<std::int64_t>& draw(Random& random, std::int64_t count) {
    return draw(random, n_, count);
  }

 private:
  std::int64_t n_;
  std::vector<char> taken_;
  std::vector<std::int64_t> drawn_;
};

}  // namespace tessera::sparse
