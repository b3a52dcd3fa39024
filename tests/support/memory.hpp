#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/support/oracle.hpp"
#include "tests/support/random.hpp"

namespace tessera::generate {

/// How a tensor lies in memory.
enum class Layout : std::uint8_t {
  contiguous,
  wild,     ///< dimensions in any order, padded, some of negative stride, at an odd address
  aligned,  ///< the last dimension contiguous, the others in any order, at multiples of 16 bytes
};

/// Whether several elements share an address (a stride of zero).
bool repeats(const Tensor& tensor);

/// Owns the tensors of one problem. Every byte that is not an element (guards at both ends, padding
/// between strided rows) and every element not yet filled holds 0xff: NaN as a float, -1 as an
/// index, so that wrong reads show in the results, and wrong writes in `damage`.
class Memory {
 public:
  explicit Memory(Random& random) : random_(&random) {}

  Tensor input(DType dtype, const std::vector<std::int64_t>& shape, Layout layout);
  Tensor output(DType dtype, const std::vector<std::int64_t>& shape, Layout layout);
  /// A list of integers: contiguous along its last dimension.
  Tensor list(DType dtype, const std::vector<std::int64_t>& shape,
              const std::vector<std::int64_t>& values);

  /// Standard normal values, rounded to the dtype.
  void fill_normal(const Tensor& tensor);

  /// Saves the contents of the outputs for `reset`. Call it once before the run.
  void arm();
  void reset();
  /// Describes writes outside the elements of outputs; empty if there were none.
  std::string damage() const;
  /// Whether all memory, outputs included, is as it was when armed, as after a refused call.
  bool untouched() const;
  /// Whether every element of a view, whatever its sizes and strides, lies in this memory.
  bool holds(const Tensor& view) const;
  /// All memory of the tensors, guards included.
  std::vector<std::span<std::byte>> stretches();
  /// The bytes of all outputs, for comparing runs bit by bit.
  std::vector<std::byte> outputs() const;

 private:
  struct Block {
    std::vector<std::byte> bytes, armed;
    Tensor view;
    bool output = false;
  };
  Tensor add(DType dtype, const std::vector<std::int64_t>& shape,
             const std::vector<std::int64_t>& strides, std::int64_t first, std::int64_t span,
             bool output);
  Tensor add(DType dtype, const std::vector<std::int64_t>& shape, Layout layout, bool output);

  Random* random_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace tessera::generate
