#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/unit/selecting.hpp"

// Attention problems that have shapes but no memory, and helpers to plan them with Hopper's rows.
namespace tessera::planning {

/// A tensor without memory.
inline Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
  return tensor(nullptr, dtype, shape, {DeviceKind::cuda, 0});
}

struct Sizes {
  std::int64_t batch = 2, heads = 16, kv_heads = 16, length = 4096, dim = 128, dim_v = 0;
  DType dtype = DType::bf16;
};

inline AttentionProblem problem_of(const Sizes& s) {
  const std::int64_t dim_v = s.dim_v > 0 ? s.dim_v : s.dim;
  AttentionProblem p;
  p.q = shaped({s.batch, s.length, s.heads, s.dim}, s.dtype);
  p.k = shaped({s.batch, s.length, s.kv_heads, s.dim}, s.dtype);
  p.v = shaped({s.batch, s.length, s.kv_heads, dim_v}, s.dtype);
  p.out = shaped({s.batch, s.length, s.heads, dim_v}, s.dtype);
  return p;
}

/// A problem with a mask: `heads` sets of lists, with room for `capacity` blocks per row.
inline AttentionProblem masked(const Sizes& s, std::int64_t block_q, std::int64_t block_kv,
                               std::int64_t capacity, std::int64_t heads = 1) {
  AttentionProblem p = problem_of(s);
  const std::int64_t rows = (s.length + block_q - 1) / block_q;
  p.mask.block_q = block_q, p.mask.block_kv = block_kv;
  p.mask.full.counts = shaped({1, heads, rows}, DType::i32);
  p.mask.full.indices = shaped({1, heads, rows, capacity}, DType::i32);
  return p;
}

/// Device presets that run the rows of sm80, and what forces these rows.
inline constexpr const char* kSinceAmpere[] = {"a100", "l4",   "l40s", "rtx4090",
                                               "b200", "h100", "h200"};
inline Execution on_sm80() {
  Execution execution;
  execution.backend = Backend::sm80;
  return execution;
}

inline Explanation on_h200(const AttentionProblem& problem) {
  return select(problem, device_preset("h200"), {});
}

inline AttentionShape shape_for(const AttentionProblem& problem) { return shape_of(problem); }

inline const KernelRow& row_of(std::string_view name) {
  for (const KernelRow& row : rows_of(Backend::sm90))
    if (row.name == name) return row;
  throw std::runtime_error(std::string(name));
}
inline const Tile& tile_of(std::string_view name) { return row_of(name).tile; }

}  // namespace tessera::planning
