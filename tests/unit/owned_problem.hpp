#pragma once

#include <utility>
#include <vector>

#include <tessera/host_tensor.hpp>

namespace tessera::testing {

/// A problem and the memory that its tensors view.
template <class Problem>
struct OwnedProblem {
  Problem problem{};
  std::vector<HostTensor> owned{};

  /// A zero-filled tensor.
  Tensor zeros(DType dtype, const std::vector<std::int64_t>& shape) {
    return owned.emplace_back(dtype, shape).view();
  }
  /// A list of integers.
  Tensor list(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& values,
              DType dtype = DType::i32) {
    HostTensor tensor(dtype, shape);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::i32) {
        tensor.data<std::int32_t>()[i] = static_cast<std::int32_t>(values[i]);
      } else {
        tensor.data<std::int64_t>()[i] = values[i];
      }
    }
    owned.push_back(std::move(tensor));
    return owned.back().view();
  }
};

}  // namespace tessera::testing
