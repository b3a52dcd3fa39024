#include "src/walk/schedule.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

namespace tessera::planning {

std::vector<std::int64_t> longest_first(std::span<const std::int64_t> lengths) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto length = [&](std::int64_t row) { return lengths[static_cast<std::size_t>(row)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return length(a) > length(b); });
  return order;
}

Split split_rows(std::span<const std::int64_t> lengths, std::int64_t units, std::int64_t smallest) {
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t shares = std::max<std::int64_t>(units, 1);
  Split split;
  split.chunk = std::max({(total + shares - 1) / shares, smallest, std::int64_t{1}});
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    const std::int64_t length = lengths[row];
    const std::int64_t parts = std::max<std::int64_t>((length + split.chunk - 1) / split.chunk, 1);
    // The first `longer` pieces have one entry more than the others.
    const std::int64_t each = length / parts, longer = length % parts;
    std::int64_t begin = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t end = begin + each + (part < longer ? 1 : 0);
      const std::int64_t slot = parts > 1 ? split.slots++ : -1;
      split.pieces.push_back({static_cast<std::int64_t>(row), begin, end, slot});
      begin = end;
    }
  }
  return split;
}

double imbalance(std::span<const std::int64_t> lengths, std::int64_t units) {
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  if (total == 0 || units <= 1) return 1;
  // When each unit gets free; the earliest on top. More units than rows would stay empty.
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> free_at;
  const std::int64_t busy = std::min(units, static_cast<std::int64_t>(lengths.size()));
  for (std::int64_t i = 0; i < busy; ++i) free_at.push(0);
  std::int64_t last = 0;
  for (std::int64_t length : lengths) {
    const std::int64_t end = free_at.top() + length;
    free_at.pop();
    free_at.push(end);
    last = std::max(last, end);
  }
  return static_cast<double>(last) * static_cast<double>(units) / static_cast<double>(total);
}

}  // namespace tessera::planning
