#include "src/sparse/support.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "src/core/check_lists.hpp"
#include "src/core/checked.hpp"

namespace tessera::sparse {

void require_host(const core::Where& where, const Tensor& tensor) {
  core::check_tensor(where, tensor, Device{});
  core::check_pointer(where, tensor);
}

void require_host(const core::Where& where, const Tensor& tensor, int rank) {
  require_host(where, tensor);
  if (tensor.rank != rank) {
    core::refuse(where, core::words(rank, " dimensions"), to_string(tensor));
  }
}

void require_at_least(std::int64_t value, std::int64_t least, const std::string& argument) {
  if (value < least) {
    refuse(argument + ": expected " + std::to_string(least) + " or more, got " +
           std::to_string(value));
  }
}

void require_density(double density, const std::string& argument) {
  if (!(density >= 0.0 && density <= 1.0)) {
    refuse(argument + ": expected 0 to 1, got " + std::to_string(density));
  }
}

void require_divides(std::int64_t size, std::int64_t block, const std::string& argument,
                     const char* what) {
  require_at_least(block, 1, argument);
  if (size % block != 0) {
    refuse(argument + ": expected a divisor of the " + std::to_string(size) + " " + what +
           ", got " + std::to_string(block));
  }
}

HostTensor index_tensor(const std::vector<std::int64_t>& list, DType index,
                        const std::string& argument) {
  if (index != DType::i32 && index != DType::i64) {
    refuse("index: expected i32 or i64, got " + std::string(to_string(index)));
  }
  HostTensor tensor(index, {static_cast<std::int64_t>(list.size())});
  if (index == DType::i64) {
    std::copy(list.begin(), list.end(), tensor.data<std::int64_t>());
    return tensor;
  }
  auto* out = tensor.data<std::int32_t>();
  for (const std::int64_t value : list) {
    if (value > std::numeric_limits<std::int32_t>::max()) {
      refuse("index: i32 cannot hold " + std::to_string(value) + " of " + argument + "; use i64");
    }
    *out++ = static_cast<std::int32_t>(value);
  }
  return tensor;
}

Pattern open_pattern(std::int64_t rows, std::int64_t cols, const std::string& argument) {
  require_at_least(rows, 0, argument + ": rows");
  require_at_least(cols, 0, argument + ": cols");
  Pattern pattern;
  pattern.rows = rows;
  pattern.cols = cols;
  reserve(pattern.offsets, core::checked_add(rows, 1, argument + ": rows"), argument + ": rows");
  pattern.offsets.push_back(0);
  return pattern;
}

void copy_elements(std::byte* to, std::int64_t to_stride, const std::byte* from,
                   std::int64_t from_stride, std::int64_t count, std::int64_t bytes) {
  if (to_stride == 1 && (from == nullptr || from_stride == 1)) {
    bytes *= count;
    count = 1;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::byte* target = to + i * to_stride * bytes;
    if (from == nullptr) {
      std::memset(target, 0, static_cast<std::size_t>(bytes));
    } else {
      std::memcpy(target, from + i * from_stride * bytes, static_cast<std::size_t>(bytes));
    }
  }
}

}  // namespace tessera::sparse
