#include "src/cuda/prepare/unused_rows.hpp"

#include <cstdint>
#include <variant>

#include "src/cuda/prepare/launch.cuh"
#include "src/plan/views.hpp"

namespace tessera::cuda {
namespace {

using planning::Indices;

constexpr int kThreads = 256;

/// [rows, heads, elements] of one type, in strides of elements.
template <class Element>
struct Rows {
  Element* data = nullptr;
  std::int64_t row_stride = 0, head_stride = 0, stride = 1;
  std::int64_t heads = 0, elements = 0;  // elements of a head

  __device__ void fill(std::int64_t first, std::int64_t total, const Element& value) const {
    const std::int64_t a_row = heads * elements;
    const std::int64_t count = (total - first) * a_row;
    const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count;
         i += threads) {
      const std::int64_t row = first + i / a_row, head = i % a_row / elements;
      data[row * row_stride + head * head_stride + i % elements * stride] = value;
    }
  }
};

/// Rows from the last of `offsets` on.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    clear_rows(Indices offsets, std::int64_t last, std::int64_t total, Rows<Element> out,
               Rows<float> lse) {
  const std::int64_t end = offsets[last];
  const std::int64_t first = end < 0 ? 0 : end;
  if (first >= total) return;
  out.fill(first, total, Element{});
  if (lse.data) lse.fill(first, total, -INFINITY);
}

/// What is cleared: `out` as [rows, heads, elements], and lse [heads, rows] where there is one.
struct Cleared {
  Tensor offsets, out, lse;
};

/// `out` in elements of `Element`, of which one holds `ratio` of its own.
template <class Element>
Rows<Element> rows_of(const Tensor& out, std::int64_t ratio) {
  Rows<Element> rows;
  rows.data = static_cast<Element*>(out.data);
  rows.row_stride = out.stride(0) / ratio;
  rows.heads = out.rank == 3 ? out.size(1) : 1;
  rows.head_stride = out.rank == 3 ? out.stride(1) / ratio : 0;
  rows.elements = out.size(out.rank - 1) / ratio;
  rows.stride = ratio > 1 ? 1 : out.stride(out.rank - 1);
  return rows;
}

template <class Element>
void launch_clear(const Cleared& what, std::int64_t ratio, void* stream) {
  Rows<float> lse;
  if (what.lse) {
    lse = {static_cast<float*>(what.lse.data),
           what.lse.stride(1),
           what.lse.stride(0),
           1,
           what.lse.size(0),
           1};
  }
  Tensor offsets = what.offsets;
  const std::int64_t last = (offsets.size(0) - 1) * offsets.stride(0);
  launch("clear_unused_rows", clear_rows<Element>, grid_of(2 * unit_count()), kThreads, stream,
         planning::indices_of(offsets), last, what.out.size(0), rows_of<Element>(what.out, ratio),
         lse);
}

/// Whether every head of every row is whole 16-byte pieces.
bool in_pieces(const Tensor& out, std::int64_t ratio) {
  if (out.stride(out.rank - 1) != 1 || reinterpret_cast<std::uintptr_t>(out.data) % 16 != 0)
    return false;
  for (int i = 0; i < out.rank - 1; ++i)
    if (out.stride(i) % ratio != 0) return false;
  return out.size(out.rank - 1) % ratio == 0;
}

void clear(const Cleared& what, void* stream) {
  if (what.out.numel() == 0) return;
  const std::int64_t size = size_of(what.out.dtype), ratio = 16 / size;
  if (in_pieces(what.out, ratio)) return launch_clear<uint4>(what, ratio, stream);
  if (size == 2) return launch_clear<std::uint16_t>(what, 1, stream);
  launch_clear<std::uint32_t>(what, 1, stream);
}

}  // namespace

void clear_unused_rows(const AnyProblem& problem, void* stream) {
  if (const auto* attention = std::get_if<AttentionProblem>(&problem)) {
    if (attention->q_offsets) clear({attention->q_offsets, attention->out, attention->lse}, stream);
  } else if (const auto* matmul = std::get_if<MatmulProblem>(&problem)) {
    const bool by_rows = matmul->group_axis == GroupAxis::rows;
    if (matmul->group_offsets && by_rows) clear({matmul->group_offsets, matmul->out, {}}, stream);
  }
}

}  // namespace tessera::cuda
