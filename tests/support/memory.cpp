#include "tests/support/memory.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace tessera::generate {
namespace {

constexpr std::int64_t kGuardBytes = 64;
constexpr std::byte kPoison{0xff};

/// Marks the bytes of the tensor's elements.
std::vector<char> element_bytes(const Tensor& view, const std::vector<std::byte>& bytes) {
  std::vector<char> marks(bytes.size(), 0);
  const std::int64_t size = size_of(view.dtype);
  const std::int64_t base = static_cast<const std::byte*>(view.data) - bytes.data();
  for (std::int64_t n = 0; n < view.numel(); ++n) {
    std::int64_t at = base;
    std::int64_t rest = n;
    for (int d = view.rank - 1; d >= 0; --d) {
      at += rest % view.size(d) * view.stride(d) * size;
      rest /= view.size(d);
    }
    std::fill_n(marks.begin() + at, size, 1);
  }
  return marks;
}

}  // namespace

bool repeats(const Tensor& tensor) {
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) == 0) return true;
  }
  return false;
}

Tensor Memory::add(DType dtype, const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& strides, std::int64_t first, std::int64_t span,
                   bool output) {
  auto block = std::make_unique<Block>();
  const std::int64_t size = size_of(dtype);
  block->bytes.assign(static_cast<std::size_t>(2 * kGuardBytes + span * size), kPoison);
  block->output = output;
  Tensor& view = block->view;
  view.data = block->bytes.data() + kGuardBytes + first * size;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  blocks_.push_back(std::move(block));
  return blocks_.back()->view;
}

Tensor Memory::add(DType dtype, const std::vector<std::int64_t>& shape, Layout layout,
                   bool output) {
  const bool wild = layout == Layout::wild;
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (wild && random_->chance(0.5)) random_->shuffle(order);
  const bool aligned = layout == Layout::aligned;
  if (aligned && random_->chance(0.5)) {
    const std::size_t last = order.back();
    order.pop_back();
    random_->shuffle(order);
    order.push_back(last);
  }
  const std::int64_t step = aligned ? std::max(16 / size_of(dtype), 1) : 1;
  std::vector<std::int64_t> strides(shape.size(), 1);
  std::int64_t span = 1;
  std::int64_t first = 0;
  for (std::size_t d = order.size(); d-- > 0;) {
    const std::size_t dim = order[d];
    const std::int64_t extent = std::max<std::int64_t>(shape[dim], 1);
    const bool innermost = d + 1 == order.size();
    if (wild && random_->chance(innermost ? 0.1 : 0.4)) span += random_->between(1, 5);
    // A stride of zero is valid for inputs only: outputs would alias.
    if (wild && !output && random_->chance(0.03)) {
      strides[dim] = 0;
      continue;
    }
    strides[dim] = span;
    if (wild && random_->chance(0.08)) {
      first += (extent - 1) * span;
      strides[dim] = -span;
    }
    span *= extent;
    if (aligned && innermost) span = (span + step - 1) / step * step;
    if (aligned && random_->chance(0.4)) span += random_->between(1, 3) * step;
  }
  // Rows may start anywhere.
  const std::int64_t shift = wild ? random_->between(0, 3) : 0;
  return add(dtype, shape, strides, first + shift, span + shift, output);
}

Tensor Memory::input(DType dtype, const std::vector<std::int64_t>& shape, Layout layout) {
  return add(dtype, shape, layout, false);
}

Tensor Memory::output(DType dtype, const std::vector<std::int64_t>& shape, Layout layout) {
  return add(dtype, shape, layout, true);
}

Tensor Memory::list(DType dtype, const std::vector<std::int64_t>& shape,
                    const std::vector<std::int64_t>& values) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  std::int64_t span = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = span;
    span *= std::max<std::int64_t>(shape[d], 1);
    if (random_->chance(0.2)) span += random_->between(1, 3);
  }
  const Tensor view = add(dtype, shape, strides, 0, span, false);
  oracle::DenseArray array(shape);
  std::copy(values.begin(), values.end(), array.values.begin());
  oracle::write(view, array);
  return view;
}

void Memory::fill_normal(const Tensor& tensor) {
  oracle::DenseArray array = oracle::read(tensor);
  for (double& x : array.values) x = random_->normal();
  oracle::write(tensor, array);
}

void Memory::arm() {
  for (auto& block : blocks_) block->armed = block->bytes;
}

void Memory::reset() {
  for (auto& block : blocks_) {
    std::copy(block->armed.begin(), block->armed.end(), block->bytes.begin());
  }
}

std::string Memory::damage() const {
  for (std::size_t n = 0; n < blocks_.size(); ++n) {
    const Block& block = *blocks_[n];
    if (block.bytes == block.armed) continue;
    const std::vector<char> elements = block.output ? element_bytes(block.view, block.bytes)
                                                    : std::vector<char>(block.bytes.size(), 0);
    for (std::size_t at = 0; at < block.bytes.size(); ++at) {
      if (block.bytes[at] == block.armed[at] || elements[at]) continue;
      return "wrote " +
             std::string(block.output ? "outside the elements of output " : "to input ") +
             to_string(block.view) + " (tensor " + std::to_string(n) + ", byte " +
             std::to_string(static_cast<std::int64_t>(at) -
                            (static_cast<const std::byte*>(block.view.data) - block.bytes.data())) +
             " from its first element)";
    }
  }
  return {};
}

std::vector<std::span<std::byte>> Memory::stretches() {
  std::vector<std::span<std::byte>> all;
  for (auto& block : blocks_) all.emplace_back(block->bytes);
  return all;
}

bool Memory::untouched() const {
  return std::all_of(blocks_.begin(), blocks_.end(),
                     [](const auto& block) { return block->bytes == block->armed; });
}

bool Memory::holds(const Tensor& view) const {
  if (view.rank < 0 || view.rank > kMaxRank || size_of(view.dtype) == 0) return false;
  // Sizes and strides may have any value here, so double is used, which does not wrap around.
  double low = 0, high = size_of(view.dtype);
  for (int d = 0; d < view.rank; ++d) {
    if (view.size(d) < 0) return false;
    if (view.size(d) == 0) return true;
    const double reach = (static_cast<double>(view.size(d)) - 1) *
                         static_cast<double>(view.stride(d)) * size_of(view.dtype);
    (reach < 0 ? low : high) += reach;
  }
  return std::any_of(blocks_.begin(), blocks_.end(), [&](const auto& block) {
    const auto first =
        static_cast<double>(static_cast<const std::byte*>(view.data) - block->bytes.data());
    return first + low >= 0 && first + high <= static_cast<double>(block->bytes.size());
  });
}

std::vector<std::byte> Memory::outputs() const {
  std::vector<std::byte> all;
  for (const auto& block : blocks_) {
    if (block->output) all.insert(all.end(), block->bytes.begin(), block->bytes.end());
  }
  return all;
}

}  // namespace tessera::generate
