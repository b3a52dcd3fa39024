#include "src/sparse/power_law.hpp"

#include <algorithm>
#include <cmath>

#include "src/core/checked.hpp"
#include "src/sparse/support.hpp"

namespace tessera::sparse {
namespace {

constexpr int kFraction = 32;  // fraction bits of logarithms and weights

// log2(n) in fixed point with kFraction fraction bits. It only squares and halves: IEEE arithmetic
// gives the same bits everywhere, which std::log2 and std::pow do not guarantee.
std::int64_t log2_fixed(std::int64_t n) {
  int exponent = 0;
  double x = std::frexp(static_cast<double>(n), &exponent) * 2.0;  // in [1, 2)
  std::int64_t result = exponent - 1;
  for (int i = 0; i < kFraction; ++i) {
    x *= x;
    const bool carry = x >= 2.0;
    if (carry) x *= 0.5;
    result = result * 2 + (carry ? 1 : 0);
  }
  return result;
}

// 2^-y as a weight, where y and the weight have kFraction fraction bits; at least 1.
std::int64_t exp2_weight(std::int64_t y) {
  double x = 1.0, root = 0.5;
  for (int i = kFraction - 1; i >= 0; --i) {
    root = std::sqrt(root);  // 2^-(2^-k), correctly rounded by IEEE
    if ((y >> i) & 1) x *= root;
  }
  const std::int64_t whole = y >> kFraction;
  if (whole > kFraction) return 1;
  return std::max<std::int64_t>(1,
                                std::llround(std::ldexp(x, kFraction - static_cast<int>(whole))));
}

}  // namespace

std::vector<std::int64_t> zipf_shares(std::int64_t parts, double exponent, std::int64_t total,
                                      std::int64_t cap) {
  constexpr double kLargest = 1000.0;  // for larger exponents, all weights but the first are 1
  const double slope = std::min(exponent, kLargest);
  std::vector<std::int64_t> weights = filled<std::int64_t>(parts, 0, "rows");
  std::int64_t weight_left = 0;
  for (std::int64_t r = 0; r < parts; ++r) {
    const double scaled = slope * static_cast<double>(log2_fixed(r + 1));
    std::int64_t& weight = weights[static_cast<std::size_t>(r)];
    weight = exp2_weight(std::llround(scaled));
    weight_left = core::checked_add(weight_left, weight, "rows");
  }
  std::vector<std::int64_t> shares;
  shares.reserve(weights.size());
  std::int64_t left = total;
  for (std::int64_t r = 0; r < parts; ++r) {
    const std::int64_t weight = weights[static_cast<std::size_t>(r)];
    // Only products and quotients, which compilers cannot fuse into other operations.
    const double share = static_cast<double>(left) *
                         (static_cast<double>(weight) / static_cast<double>(weight_left));
    // Weights descend, so the mean of the later shares is at most this one, and the rest fits below
    // the cap.
    shares.push_back(std::min({std::int64_t{std::llround(share)}, cap, left}));
    left -= shares.back();
    weight_left -= weight;
  }
  return shares;
}

void require_power_law(double density, double exponent, const std::string& generator) {
  require_density(density, generator + ": density");
  if (!(exponent >= 0.0)) {
    refuse(generator + ": exponent: expected 0 or more, got " + std::to_string(exponent));
  }
}

std::int64_t stored_at(double density, std::int64_t rows, std::int64_t cols,
                       const std::string& generator) {
  const std::int64_t all = core::checked_multiply(rows, cols, generator + ": rows");
  return std::min(all, std::int64_t{std::llround(density * static_cast<double>(all))});
}

}  // namespace tessera::sparse
