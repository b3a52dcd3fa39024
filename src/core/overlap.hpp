#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <tessera/bsr.hpp>

#include "src/core/check_lists.hpp"

// The outputs of a call may not overlap its other tensors. The checks use addresses only: they read
// no data and are the same for host and GPU memory.
namespace tessera::core {

/// Whether any byte belongs to elements of both tensors. Exact, except for irregular strides that
/// would need a long search: then the answer is true.
bool share_memory(const Tensor& a, const Tensor& b);

/// Whether both tensors have the same elements at the same addresses in the same order.
bool same_view(const Tensor& a, const Tensor& b);

/// The address range from the first to the last byte of a tensor.
struct Extent {
  std::uintptr_t begin = 0, bytes = 0;
};

/// Collects the tensors that a call writes and refuses other tensors that overlap one of them.
/// Absent and empty tensors overlap nothing.
class Outputs {
 public:
  /// Adds an output. Throws if it overlaps an output that was added before.
  void add(const Where& where, const Tensor& tensor);
  /// Throws if an input overlaps an output.
  void check_input(const Where& where, const Tensor& tensor) const;
  /// The same for inputs that are fields of `where`.
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
  /// The output that overlaps the tensor; null if there is none.
  const Output* find(const Tensor& tensor, const Extent& extent) const;

  static constexpr std::size_t kMax = 8;  // backward has 4 gradients, a workspace and a schedule
  std::array<Output, kMax> outputs_{};
  std::size_t count_ = 0;
};

}  // namespace tessera::core
