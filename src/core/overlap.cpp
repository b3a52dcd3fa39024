#include "src/core/overlap.hpp"

#include <algorithm>
#include <numeric>

#include <tessera/error.hpp>

namespace tessera::core {
namespace {

Extent extent_of(const Tensor& tensor) {
  if (!tensor) return {};
  std::int64_t below = 0, above = 0;  // elements before and after the one that `data` points to
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.size(i) == 0) return {};
    if (tensor.size(i) == 1) continue;
    const std::int64_t reach = tensor.stride(i) * (tensor.size(i) - 1);
    (reach < 0 ? below : above) += reach;
  }
  const std::int64_t bytes = size_of(tensor.dtype);
  return {
      reinterpret_cast<std::uintptr_t>(tensor.data) + static_cast<std::uintptr_t>(below * bytes),
      static_cast<std::uintptr_t>((above - below + 1) * bytes)};
}

// Unsigned differences wrap around, so each comparison checks a lower and an upper bound.
bool meet(const Extent& a, const Extent& b) {
  return b.begin - a.begin < a.bytes || a.begin - b.begin < b.bytes;
}

/// The set of all sums of stride * index over a few dimensions, with positive strides and each
/// index in [0, last].
class Sums {
 public:
  void add(const Tensor& tensor) {
    for (int i = 0; i < tensor.rank; ++i) {
      const std::int64_t stride = tensor.stride(i) * size_of(tensor.dtype);
      if (tensor.size(i) > 1 && stride != 0)
        insert(stride < 0 ? -stride : stride, tensor.size(i) - 1);
    }
  }

  /// Whether any sum is in [low, high].
  bool reach(std::int64_t low, std::int64_t high) {
    for (std::size_t i = count_; i-- > 0;) {
      const Step& rest = steps_[i + 1];
      steps_[i].total = rest.total + steps_[i].stride * steps_[i].last;
      steps_[i].divisor = std::gcd(rest.divisor, steps_[i].stride);
    }
    return search(0, low, high);
  }

 private:
  struct Step {
    std::int64_t stride = 0, last = 0;
    // Over this step and all with smaller strides: the largest sum, and the gcd of the strides.
    std::int64_t total = 0, divisor = 0;
  };

  // Keeps steps in descending order of strides. Two indices with equal strides are merged: their
  // sum takes every value up to the maximum. (GCC 14 warns about std::sort over an array this
  // short.)
  void insert(std::int64_t stride, std::int64_t last) {
    std::size_t at = 0;
    while (at < count_ && steps_[at].stride > stride) ++at;
    if (at < count_ && steps_[at].stride == stride) {
      steps_[at].last += last;
      return;
    }
    for (std::size_t i = count_++; i > at; --i) steps_[i] = steps_[i - 1];
    steps_[at] = {stride, last};
  }

  // Depth-first: tries those indices of the largest stride for which smaller strides can reach the
  // interval. Answers true when the budget is used up.
  bool search(std::size_t at, std::int64_t low, std::int64_t high) {
    const Step& step = steps_[at];
    low = std::max<std::int64_t>(low, 0);
    high = std::min(high, step.total);
    if (low > high) return false;
    if (at == count_) return true;
    if (high / step.divisor * step.divisor < low) return false;
    if (--budget_ < 0) return true;
    const std::int64_t short_of = std::max<std::int64_t>(low - steps_[at + 1].total, 0);
    const std::int64_t first = (short_of + step.stride - 1) / step.stride;
    const std::int64_t last = std::min(step.last, high / step.stride);
    for (std::int64_t i = first; i <= last; ++i) {
      if (search(at + 1, low - i * step.stride, high - i * step.stride)) return true;
    }
    return false;
  }

  std::array<Step, 2 * kMaxRank + 1> steps_{};
  std::size_t count_ = 0;
  int budget_ = 1000;
};

// Elements of a begin at a_extent.begin + sum, those of b at the last element of b - sum. Two
// elements overlap if their distance is less than the size of the one at the lower address.
bool share(const Tensor& a, const Extent& a_extent, const Tensor& b, const Extent& b_extent) {
  const std::int64_t a_bytes = size_of(a.dtype), b_bytes = size_of(b.dtype);
  const auto last_of_b =
      static_cast<std::int64_t>(b_extent.begin - a_extent.begin + b_extent.bytes) - b_bytes;
  Sums sums;
  sums.add(a);
  sums.add(b);
  return sums.reach(last_of_b - (a_bytes - 1), last_of_b + (b_bytes - 1));
}

}  // namespace

bool share_memory(const Tensor& a, const Tensor& b) {
  const Extent a_extent = extent_of(a), b_extent = extent_of(b);
  return meet(a_extent, b_extent) && share(a, a_extent, b, b_extent);
}

bool same_view(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.size(i) != b.size(i) || (a.size(i) > 1 && a.stride(i) != b.stride(i))) return false;
  }
  return true;
}

const Outputs::Output* Outputs::find(const Tensor& tensor, const Extent& extent) const {
  for (std::size_t i = 0; i < count_; ++i) {
    const Output& output = outputs_[i];
    if (meet(output.extent, extent) && share(output.tensor, output.extent, tensor, extent))
      return &output;
  }
  return nullptr;
}

namespace {

[[noreturn]] void refuse_shared(const Where& output, const Where& other) {
  throw Error(ErrorCode::invalid_argument,
              words(output.text(), " shares memory with ", other.path(), "; give ", output.path(),
                    " memory of its own"));
}

}  // namespace

void Outputs::add(const Where& where, const Tensor& tensor) {
  const Extent extent = extent_of(tensor);
  if (extent.bytes == 0) return;
  if (const Output* other = find(tensor, extent)) refuse_shared(where, other->where);
  outputs_[count_++] = {where, tensor, extent};
}

void Outputs::check_input(const Where& where, const Tensor& tensor) const {
  if (!tensor) return;
  if (const Output* output = find(tensor, extent_of(tensor))) refuse_shared(output->where, where);
}

void Outputs::check_inputs(const Where& where, std::initializer_list<Field> fields) const {
  for (const auto& [name, tensor] : fields) {
    if (!tensor) continue;
    if (const Output* output = find(tensor, extent_of(tensor)))
      refuse_shared(output->where, where / name);
  }
}

void Outputs::check_lists(const Where& where, const BsrMatrix& matrix) const {
  check_inputs(where, {{"row_offsets", matrix.row_offsets}, {"col_indices", matrix.col_indices}});
}

void Outputs::check_inputs(const Where& where, const BsrMatrix& matrix) const {
  check_inputs(where, {{"values", matrix.values}});
  check_lists(where, matrix);
}

void Outputs::check_inputs(const Where& where, const BlockList& list) const {
  check_inputs(where,
               {{"counts", list.counts}, {"offsets", list.offsets}, {"indices", list.indices}});
}

void Outputs::check_inputs(const Where& where, const BlockMask& mask) const {
  if (!mask) return;
  check_inputs(where / "full", mask.full);
  check_inputs(where / "partial", mask.partial);
  check_inputs(where, {{"bit_tile", mask.bit_tile}, {"bits", mask.bits}});
}

}  // namespace tessera::core
