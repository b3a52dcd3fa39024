#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::sparse {

/// Splits `total` into `parts` shares that follow Zipf's law: share r is proportional to (r + 1) ^
/// -exponent. Shares descend and are at most `cap`; the excess goes to later shares. They add up to
/// `total` exactly and are the same on every machine. Requires total <= parts * cap.
std::vector<std::int64_t> zipf_shares(std::int64_t parts, double exponent, std::int64_t total,
                                      std::int64_t cap);

/// Throws if the density is not in [0, 1] or the exponent is negative or NaN.
void require_power_law(double density, double exponent, const std::string& generator);
/// The number of blocks that a pattern of that density stores.
std::int64_t stored_at(double density, std::int64_t rows, std::int64_t cols,
                       const std::string& generator);

}  // namespace tessera::sparse
