#include <algorithm>
#include <cmath>
#include <cstdint>
#include <variant>

#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/prepare/clear_rest.hpp"
#include "src/walk/views.hpp"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 256;  // usually there is nothing to clear

/// The rows of a result: `heads` heads of `size` words each; strides in words.
struct Rows {
  void* data = nullptr;
  std::int64_t row = 0, head = 0, word = 0;
  std::int64_t heads = 0, size = 0;
};

struct Rest {
  planning::Indices offsets;
  std::int64_t offset_stride = 1, last = 0;  // index of the last offset
  std::int64_t rows = 0;                     // rows of out
  Rows out;
  float* lse = nullptr;
  std::int64_t lse_row = 0, lse_head = 0;
};

/// One CTA clears one row at a time.
template <class Word>
__global__ void __launch_bounds__(kThreads) clear_rest_kernel(const __grid_constant__ Rest rest) {
  const std::int64_t begin = planning::clamp_to(rest.offsets[0], 0, rest.rows);
  const std::int64_t end =
      planning::clamp_to(rest.offsets[rest.last * rest.offset_stride], begin, rest.rows);
  const std::int64_t count = begin + rest.rows - end;
  for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const std::int64_t row = i < begin ? i : end + i - begin;
    Word* const out = static_cast<Word*>(rest.out.data) + row * rest.out.row;
    for (std::int64_t j = threadIdx.x; j < rest.out.heads * rest.out.size; j += kThreads)
      out[j / rest.out.size * rest.out.head + j % rest.out.size * rest.out.word] = Word{};
    if (!rest.lse) continue;
    for (std::int64_t head = threadIdx.x; head < rest.out.heads; head += kThreads)
      rest.lse[row * rest.lse_row + head * rest.lse_head] = -INFINITY;
  }
}

/// The rows of a tensor [rows, dim] or [rows, heads, dim], in words of `word_bytes`.
Rows rows_of(const Tensor& out, std::int64_t word_bytes) {
  const std::int64_t per_word = word_bytes / size_of(out.dtype);
  const int dim = out.rank - 1;
  Rows rows{out.data, out.stride(0) / per_word, 0, out.stride(dim), 1, out.size(dim) / per_word};
  if (dim == 2) {
    rows.heads = out.size(1);
    rows.head = out.stride(1) / per_word;
  }
  return rows;
}

/// Whether the rows can be written in 16-byte words.
bool takes_wide_words(const Tensor& out) {
  const std::int64_t per_word = 16 / size_of(out.dtype);
  const int dim = out.rank - 1;
  bool aligned = out.stride(dim) == 1 && out.size(dim) % per_word == 0 &&
                 reinterpret_cast<std::uintptr_t>(out.data) % 16 == 0;
  for (int i = 0; i < dim; ++i) aligned &= out.stride(i) % per_word == 0;
  return aligned;
}

void launch_rest(Rest rest, const Tensor& out, const Tensor& offsets, void* stream) {
  const DeviceGuard guard(out.device.index);
  rest.offsets = planning::indices_of(offsets);
  rest.offset_stride = offsets.stride(0);
  rest.last = offsets.size(0) - 1;
  rest.rows = out.size(0);
  const dim3 grid = grid_of(std::min(rest.rows, kMaxBlocks));
  const auto clear = [&]<class Word>(Word) {
    rest.out = rows_of(out, sizeof(Word));
    Kernel<clear_rest_kernel<Word>>::launch({"clear_rest_kernel", grid, kThreads, stream}, rest);
  };
  if (takes_wide_words(out)) return clear(uint4{});
  size_of(out.dtype) == 4 ? clear(std::uint32_t{}) : clear(std::uint16_t{});
}

void clear_rest(const AttentionProblem& problem, void* stream) {
  if (!problem.q_offsets) return;
  Rest rest;
  if (const Tensor& lse = problem.lse) {
    rest.lse = static_cast<float*>(lse.data);
    rest.lse_head = lse.stride(0);
    rest.lse_row = lse.stride(1);
  }
  launch_rest(rest, problem.out, problem.q_offsets, stream);
}

void clear_rest(const AttentionBackwardProblem& problem, void* stream) {
  const auto clear = [&](const Tensor& gradient, const Tensor& offsets) {
    if (gradient && offsets) launch_rest({}, gradient, offsets, stream);
  };
  clear(problem.dq, problem.forward.q_offsets);
  clear(problem.dk, problem.forward.kv_offsets);
  clear(problem.dv, problem.forward.kv_offsets);
}

void clear_rest(const MatmulProblem& problem, void* stream) {
  if (!problem.group_offsets || problem.group_axis != GroupAxis::rows) return;
  launch_rest({}, problem.out, problem.group_offsets, stream);
}

}  // namespace

void clear_rest(const AnyProblem& problem, void* stream) {
  if (const auto* attention = std::get_if<AttentionProblem>(&problem))
    clear_rest(*attention, stream);
  else if (const auto* backward = std::get_if<AttentionBackwardProblem>(&problem))
    clear_rest(*backward, stream);
  else if (const auto* product = std::get_if<MatmulProblem>(&problem))
    clear_rest(*product, stream);
}

}  // namespace tessera::cuda
