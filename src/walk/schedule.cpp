#include "src/walk/schedule.hpp"

#include <algorithm>
#include <numeric>

namespace tessera::planning {

std::vector<std::int64_t> longest_first(std::span<const std::int64_t> lengths) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto length = [&](std::int64_t row) { return lengths[static_cast<std::size_t>(row)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return length(a) > length(b); });
  return order;
}

}  // namespace tessera::planning
