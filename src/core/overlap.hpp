#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <tessera/bsr.hpp>

#include "src/core/check_lists.hpp"

// Outputs may share no memory with anything else that a call touches. Addresses alone decide: no
// data is read, and the checks are the same for host and GPU memory.
namespace tessera::core {

/// Whether a byte belongs to elements of both tensors. Exact, except for irregular strides that
/// would need a long search: these count as shared.
bool share_memory(const Tensor& a, const Tensor& b);

/// The same elements at the same addresses in the same order.
bool same_view(const Tensor& a, const Tensor& b);

/// The addresses from the first to the last byte of a tensor.
struct Extent {
  std::uintptr_t begin = 0, bytes = 0;
};

/// The tensors that a call writes. Refuses other tensors of the call that share memory with one of
/// them. Absent and empty tensors share nothing.
class Outputs {
 public:
  /// Refused where it shares memory with an output that was added before.
  void add(const Where& where, const Tensor& tensor);
  void check_input(const Where& where, const Tensor& tensor) const;
  /// Fields of `where` that are read.
  void check_inputs(const Where& where, std::initializer_list<Field> fields) const;
  void check_lists(const Where& where, const BsrMatrix& matrix) const;
  void check_inputs(const Where& where, const BsrMatrix& matrix) const;
  void check_inputs(const Where& where, const BlockList& list) const;
  void check_inputs(const Where& where, const BlockMask& mask) const;

 private:
  struct Output {
    Where where{""};
    Tensor tensor{};
    Extent extent{};
  };
  /// The output that shares memory with the tensor; null: none.
  const Output* find(const Tensor& tensor, const Extent& extent) const;

  static constexpr std::size_t kMax = 8;  // the backward pass: four, a workspace and a schedule
  std::array<Output, kMax> outputs_{};
  std::size_t count_ = 0;
};

}  // namespace tessera::core
