#pragma once

#include <cstdint>
#include <vector>

namespace tessera::sparse {

/// Splits `total` into `parts` shares that follow Zipf's law: share r is proportional to (r + 1) ^
/// -exponent, largest first, each at most `cap` (what is cut off goes to the next ones). The shares
/// add up to `total` exactly, and are the same on every machine. total <= parts * cap.
std::vector<std::int64_t> zipf_shares(std::int64_t parts, double exponent, std::int64_t total,
                                      std::int64_t cap);

}  // namespace tessera::sparse
