#pragma once

#include "src/kernels/family.hpp"

namespace tessera::api {

/// A call of a plan with dense copies (Planned::dense), as the product that its kernel computes.
class ExpandedCall {
 public:
  explicit ExpandedCall(const planning::Call& given);
  /// The call of the dense product.
  planning::Call dense() const;

  /// Writes the copies.
  void write_copies() const;
  /// In host memory: marks the copies as written from the given values.
  void mark() const;
  /// Throws if the dense product is not the planned one, because strides or the epilogue are
  /// others, or if the copies in host memory are not those of the given values.
  void check() const;

 private:
  const planning::Call& given_;
  planning::ExpandedSchedule schedule_;
  AnyProblem problem_;
  planning::AnyShape shape_;
};

}  // namespace tessera::api
