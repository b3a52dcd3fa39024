#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/host_tensor.hpp>
#include <tessera/pattern.hpp>
#include <tessera/tensor.hpp>

#include "src/core/check.hpp"

// Helpers of the sparse functions: checks of arguments, and allocation and copies of lists.
namespace tessera::sparse {

[[noreturn]] inline void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

/// Reserves memory for `count` entries. Throws Error(out_of_memory) that names `argument` if the
/// allocation fails, as the caller's sizes may be arbitrarily large.
template <class T>
void reserve(std::vector<T>& vector, std::int64_t count, const std::string& argument) {
  constexpr std::int64_t kAddressable = std::int64_t{1} << 47;  // bytes
  try {
    if (count > kAddressable / static_cast<std::int64_t>(sizeof(T))) throw std::bad_alloc();
    vector.reserve(static_cast<std::size_t>(count));
  } catch (const std::exception&) {  // bad_alloc or length_error
    throw Error(ErrorCode::out_of_memory,
                argument + ": could not allocate " + std::to_string(count) + " entries");
  }
}

template <class T>
std::vector<T> filled(std::int64_t count, T value, const std::string& argument) {
  std::vector<T> vector;
  reserve(vector, count, argument);
  vector.assign(static_cast<std::size_t>(count), value);
  return vector;
}

/// Checks that a tensor is in host memory, has valid sizes, and is not null unless it is empty.
void require_host(const core::Where& where, const Tensor& tensor);
/// The same, and that it has the given rank.
void require_host(const core::Where& where, const Tensor& tensor, int rank);
void require_at_least(std::int64_t value, std::int64_t least, const std::string& argument);
void require_density(double density, const std::string& argument);
/// Throws unless `block` divides `size`; `what` names the elements of `size` in messages.
void require_divides(std::int64_t size, std::int64_t block, const std::string& argument,
                     const char* what);

/// Copies a list to a contiguous i32 or i64 tensor. Throws if a value does not fit i32.
HostTensor index_tensor(const std::vector<std::int64_t>& list, DType index,
                        const std::string& argument);

/// Starts a pattern with room for the offsets of `rows` rows. Append the columns of each row, then
/// call `close_row`.
Pattern open_pattern(std::int64_t rows, std::int64_t cols, const std::string& argument);
inline void close_row(Pattern& pattern) { pattern.offsets.push_back(pattern.stored()); }

/// Copies `count` elements of `bytes` each, or writes zeros if `from` is null. Strides count
/// elements.
void copy_elements(std::byte* to, std::int64_t to_stride, const std::byte* from,
                   std::int64_t from_stride, std::int64_t count, std::int64_t bytes);

}  // namespace tessera::sparse
