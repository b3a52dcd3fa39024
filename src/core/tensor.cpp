#include <tessera/tensor.hpp>

#include <algorithm>
#include <utility>

#include <tessera/error.hpp>

#include "src/core/checked.hpp"

namespace tessera {
namespace {

std::string list(const std::array<std::int64_t, kMaxRank>& values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) {
    text += (i ? ", " : "") + std::to_string(values[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

// Ignores the strides of dimensions of size 1 and of empty tensors.
bool is_contiguous(const Tensor& tensor, int rank) {
  const auto end = tensor.shape.begin() + rank;
  if (std::find(tensor.shape.begin(), end, 0) != end) return true;
  std::int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (tensor.size(i) != 1 && tensor.stride(i) != expected) return false;
    if (__builtin_mul_overflow(expected, tensor.size(i), &expected)) return false;
  }
  return true;
}

// A view with that shape, whose strides are still zero.
Tensor shaped(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
              Device device) {
  if (shape.size() > static_cast<std::size_t>(kMaxRank)) {
    throw Error(ErrorCode::invalid_argument, "tensor: shape: expected at most " +
                                                 std::to_string(kMaxRank) + " dimensions, got " +
                                                 std::to_string(shape.size()));
  }
  Tensor view;
  view.data = const_cast<void*>(data);  // inputs are never written through
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  for (int i = 0; i < view.rank; ++i) {
    if (view.size(i) < 0) {
      throw Error(ErrorCode::invalid_argument,
                  "tensor: shape: expected sizes of 0 or more, got " + list(view.shape, view.rank));
    }
  }
  return view;
}

}  // namespace

std::string to_string(const Device& device) {
  if (device.kind == DeviceKind::cpu) return "cpu";
  return "cuda:" + std::to_string(device.index);
}

std::string to_string(const Tensor& tensor) {
  if (!tensor) return "none";
  const int rank = std::clamp(tensor.rank, 0, kMaxRank);
  std::string text = to_string(tensor.dtype) + list(tensor.shape, rank);
  if (!is_contiguous(tensor, rank)) text += " strides " + list(tensor.strides, rank);
  return text + " on " + to_string(tensor.device);
}

Tensor tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
              Device device) {
  Tensor view = shaped(data, dtype, shape, device);
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.strides[static_cast<std::size_t>(i)] = stride;
    stride =
        core::checked_multiply(stride, std::max<std::int64_t>(view.size(i), 1), "tensor: shape");
  }
  return view;
}

Tensor tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
              std::initializer_list<std::int64_t> strides, Device device) {
  Tensor view = shaped(data, dtype, shape, device);
  if (strides.size() != shape.size()) {
    throw Error(ErrorCode::invalid_argument,
                "tensor: strides: expected " + std::to_string(shape.size()) +
                    ", one per dimension, got " + std::to_string(strides.size()));
  }
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

Tensor swap_dims(Tensor view, int i, int j) {
  if (i < 0 || j < 0 || i >= view.rank || j >= view.rank) {
    throw Error(ErrorCode::invalid_argument, "swap_dims: expected dimensions below " +
                                                 std::to_string(view.rank) + ", got " +
                                                 std::to_string(i) + " and " + std::to_string(j));
  }
  std::swap(view.shape[static_cast<std::size_t>(i)], view.shape[static_cast<std::size_t>(j)]);
  std::swap(view.strides[static_cast<std::size_t>(i)], view.strides[static_cast<std::size_t>(j)]);
  return view;
}

}  // namespace tessera
