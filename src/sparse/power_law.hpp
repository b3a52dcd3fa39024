#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::sparse {

/// Splits `total` into `parts` shares that follow Zipf's law: share r is proportional to (r + 1) ^
/// -exponent, largest first, each at most `cap` (what is cut off goes to the next ones). The shares
/// add up to `total` exactly, and are the same on every machine. total <= parts * cap.
std::vector<std::int64_t> zipf_shares(std::int64_t parts, double exponent, std::int64_t total,
                                      std::int64_t cap);

/// Refuses a density or an exponent that a pattern of such shares cannot have.
void require_power_law(double density, double exponent, const std::string& generator);
/// What that density stores of a pattern.
std::int64_t stored_at(double density, std::int64_t rows, std::int64_t cols,
                       const std::string& generator);

}  // namespace tessera::sparse
