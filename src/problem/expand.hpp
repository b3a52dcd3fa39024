#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <tessera/matmul.hpp>

#include "src/core/carver.hpp"
#include "src/problem/blas_rules.hpp"
#include "src/problem/shape.hpp"

// Expansion: a product computed with dense copies of its block-sparse operands, which `prepare`
// writes into the schedule.
namespace tessera::planning {

/// Largest block that conversions on a GPU copy: elements are counted in 32 bits.
inline constexpr std::int64_t kMaxBlockElements = std::int64_t{1} << 23;

/// Which operands are expanded, and the order of each copy. An operand without an order is used as
/// given.
struct Expansion {
  std::optional<Order> a{}, b{};
};

/// Every expansion of a product: first those with fewer copies, and with copies by rows. None if
/// conversions do not support a block.
std::vector<Expansion> expansions_of(const MatmulShape& shape);

/// Bytes of all copies, each with lines at multiples of 16 bytes, in pieces of 128 bytes; saturates
/// at the largest number.
std::int64_t copy_bytes(const MatmulShape& shape, const Expansion& expansion);

/// The schedule of an expanded plan.
struct ExpandedSchedule {
  std::byte* mark = nullptr;  // in host memory; elsewhere empty
  std::byte *a = nullptr, *b = nullptr;
  std::byte* dense = nullptr;  // the schedule of the dense product's own plan, of `dense_bytes`
};
/// `copy_bytes` must not be saturated.
ExpandedSchedule carve_expanded(core::Carver& carver, const MatmulShape& shape,
                                const Expansion& expansion, std::int64_t dense_bytes);

/// The product with copies as its operands. Without a schedule, these have no data.
MatmulProblem expanded_problem(const MatmulProblem& problem, const MatmulShape& shape,
                               const Expansion& expansion, const ExpandedSchedule& schedule = {});

/// The shape of that product. `shape` is the shape of the given one.
MatmulShape expanded_shape(const MatmulProblem& expanded, MatmulShape shape,
                           const Expansion& expansion);

}  // namespace tessera::planning
