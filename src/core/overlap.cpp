#include "src/core/overlap.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

namespace tessera::core {
namespace {

struct Bytes {
  std::intptr_t begin = 0, end = 0;
};

bool has_memory(const Tensor& tensor) {
  if (!tensor || tensor.data == nullptr) return false;
  for (int i = 0; i < tensor.rank; ++i)
    if (tensor.size(i) == 0) return false;
  return true;
}

/// From the first byte of a tensor with memory to one past its last.
Bytes bytes_of(const Tensor& tensor) {
  std::int64_t below = 0, above = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t reach = tensor.stride(i) * (tensor.size(i) - 1);
    (reach < 0 ? below : above) += reach;
  }
  const std::int64_t size = size_of(tensor.dtype);
  const auto data = reinterpret_cast<std::intptr_t>(tensor.data);
  return {data + below * size, data + (above + 1) * size};
}

bool intersect(const Bytes& a, const Bytes& b) { return a.begin < b.end && b.begin < a.end; }

/// stride * x for every x from `first` to `last`; a positive stride in bytes.
struct Term {
  std::int64_t stride, first, last;
};

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && a < 0); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 && a > 0); }

/// Whether `at`, plus one value of each term, can lie in [low, high]. Terms come by falling stride,
/// so that few values of the first leave a distance that the others can bridge. True when `steps`
/// run out.
bool can_reach(std::span<const Term> terms, std::int64_t at, std::int64_t low, std::int64_t high,
               int& steps) {
  if (terms.empty()) return low <= at && at <= high;
  const Term& term = terms.front();
  const std::span<const Term> rest = terms.subspan(1);
  std::int64_t least = at, greatest = at;
  for (const Term& t : rest) least += t.stride * t.first, greatest += t.stride * t.last;
  const std::int64_t first = std::max(term.first, ceil_div(low - greatest, term.stride));
  const std::int64_t last = std::min(term.last, floor_div(high - least, term.stride));
  for (std::int64_t x = first; x <= last; ++x) {
    if (--steps < 0) return true;
    if (can_reach(rest, at + term.stride * x, low, high, steps)) return true;
  }
  return false;
}

class Terms {
 public:
  /// `sign`: whether the tensor's elements are added to the distance or subtracted from it.
  void add(const Tensor& tensor, int sign) {
    const std::int64_t size = size_of(tensor.dtype);
    for (int i = 0; i < tensor.rank; ++i) {
      const std::int64_t stride = std::abs(tensor.stride(i)) * size, last = tensor.size(i) - 1;
      if (stride == 0 || last == 0) continue;
      add({stride, sign < 0 ? -last : 0, sign < 0 ? 0 : last});
    }
  }
  std::span<const Term> all() const { return std::span(terms_).first(count_); }

 private:
  void add(const Term& term) {
    std::size_t at = 0;
    while (at < count_ && terms_[at].stride > term.stride) ++at;
    if (at < count_ && terms_[at].stride == term.stride) {
      terms_[at].first += term.first, terms_[at].last += term.last;
      return;
    }
    for (std::size_t i = count_++; i > at; --i) terms_[i] = terms_[i - 1];
    terms_[at] = term;
  }
  std::array<Term, 2 * kMaxRank> terms_{};
  std::size_t count_ = 0;
};

/// The argument without the operation's name: "mask.full.indices".
std::string name_of(const Where& where) {
  std::string text = where.text();
  if (text.ends_with(':')) text.pop_back();
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

[[noreturn]] void refuse_overlap(const Where& output, const Tensor& tensor, const Where& other) {
  refuse(output, "memory of its own",
         words(to_string(tensor), " that shares memory with ", name_of(other)));
}

}  // namespace

bool may_overlap(const Tensor& a, const Tensor& b) {
  if (!has_memory(a) || !has_memory(b)) return false;
  const Bytes in_a = bytes_of(a), in_b = bytes_of(b);
  if (!intersect(in_a, in_b)) return false;
  Terms terms;
  terms.add(a, -1);
  terms.add(b, +1);
  int steps = 1000;
  // An element of b that begins this many bytes after one of a shares a byte with it.
  return can_reach(terms.all(), in_b.begin - in_a.begin, 1 - size_of(b.dtype), size_of(a.dtype) - 1,
                   steps);
}

bool same_elements(const Tensor& a, const Tensor& b) {
  if (!a || a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.size(i) != b.size(i) || (a.size(i) > 1 && a.stride(i) != b.stride(i))) return false;
  }
  return true;
}

const Outputs::Entry* Outputs::sharing(const Tensor& tensor, const Tensor& in_place) const {
  const Bytes bytes = bytes_of(tensor);
  for (const Entry& entry : std::span(entries_).first(count_)) {
    if (!intersect(bytes, {entry.begin, entry.end})) continue;
    const Tensor& output = *entry.tensor;
    if (same_elements(output, in_place) && same_elements(output, tensor)) continue;
    if (may_overlap(output, tensor)) return &entry;
  }
  return nullptr;
}

void Outputs::add(const Where& where, const Tensor& output) {
  if (!has_memory(output)) return;
  if (const Entry* other = sharing(output, {})) refuse_overlap(where, output, other->where);
  const auto [begin, end] = bytes_of(output);
  entries_.at(count_++) = {where, &output, begin, end};
}

void Outputs::check_input(const Where& where, const Tensor& input, const Tensor& in_place) const {
  if (!has_memory(input)) return;
  if (const Entry* output = sharing(input, in_place))
    refuse_overlap(output->where, *output->tensor, where);
}

void Outputs::check_input(const Where& where, const BsrMatrix& matrix) const {
  check_input(where / "values", matrix.values);
  check_input(where / "row_offsets", matrix.row_offsets);
  check_input(where / "col_indices", matrix.col_indices);
}

void Outputs::check_input(const Where& where, const BlockList& list) const {
  check_input(where / "counts", list.counts);
  check_input(where / "offsets", list.offsets);
  check_input(where / "indices", list.indices);
}

void Outputs::check_input(const Where& where, const BlockMask& mask) const {
  check_input(where / "full", mask.full);
  check_input(where / "partial", mask.partial);
  check_input(where / "bit_tile", mask.bit_tile);
  check_input(where / "bits", mask.bits);
}

}  // namespace tessera::core
