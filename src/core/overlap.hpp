#pragma once

#include <array>
#include <cstdint>

#include <tessera/block_mask.hpp>
#include <tessera/bsr.hpp>

#include "src/core/check.hpp"

// Outputs that share memory with inputs would be overwritten while they are read, so every call
// refuses them before it writes. Addresses alone decide; no data is read.
namespace tessera::core {

/// Whether two tensors on one device may have a byte in common. Exact where strides nest, as those
/// of slices of one tensor do; where the exact answer would take too long, true.
bool may_overlap(const Tensor& a, const Tensor& b);

/// The same elements in the same order: an operation in place.
bool same_elements(const Tensor& a, const Tensor& b);

/// The outputs of one call. Absent and empty tensors pass everywhere.
class Outputs {
 public:
  /// Adds an output. Refuses one that may share memory with an output added before.
  void add(const Where& where, const Tensor& output);

  /// Refuses an output that may share memory with this input. `in_place` is an output that the
  /// input may be, element for element.
  void check_input(const Where& where, const Tensor& input, const Tensor& in_place = {}) const;
  void check_input(const Where& where, const BsrMatrix& matrix) const;
  void check_input(const Where& where, const BlockList& list) const;
  void check_input(const Where& where, const BlockMask& mask) const;

 private:
  struct Entry {
    Where where{""};
    const Tensor* tensor = nullptr;
    std::intptr_t begin = 0, end = 0;
  };
  /// The first output that may share memory with a tensor and is not both it and `in_place`.
  const Entry* sharing(const Tensor& tensor, const Tensor& in_place) const;

  static constexpr std::size_t kMaxOutputs = 8;
  std::array<Entry, kMaxOutputs> entries_{};
  std::size_t count_ = 0;
};

}  // namespace tessera::core
