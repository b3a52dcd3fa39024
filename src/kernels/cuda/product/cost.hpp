#pragma once

#include "src/problem/shape.hpp"

// What product families of the GPU add to their estimated time.
namespace tessera::planning::product {

/// Seconds that a result takes whose rows do not begin at multiples of 16 bytes, as it is then
/// stored element by element: 9168 x 580 and 4608 x 1661 took 31 and 47 us longer on an H100.
/// Strides of the result are no part of a shape: its rows are taken to lie without padding.
inline double narrow_store_seconds(const MatmulShape& s, double units) {
  if (s.n * size_of(s.out) % 16 == 0) return 0;
  constexpr double kElement = 0.78e-9;                             // on one SM
  const bool rows = s.grouped && s.group_axis == GroupAxis::rows;  // m counts those of all groups
  const double results = rows ? 1 : static_cast<double>(s.batch);
  return kElement * results * static_cast<double>(s.m) * static_cast<double>(s.n) / units;
}

}  // namespace tessera::planning::product
