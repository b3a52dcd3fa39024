#pragma once

#include <limits>

#include "src/problem/shape.hpp"
#include "tests/unit/problem_table.hpp"

// Problems whose tensors have no memory: planning needs only shapes.
namespace tessera::planning {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr std::int64_t kHuge = std::int64_t{1} << 40;

using Sizes = std::initializer_list<std::int64_t>;
inline Tensor f32(Sizes shape) { return tensor(nullptr, DType::f32, shape); }
inline Tensor bf16(Sizes shape) { return tensor(nullptr, DType::bf16, shape); }
inline Tensor i32(Sizes shape) { return tensor(nullptr, DType::i32, shape); }
inline Tensor i64(Sizes shape) { return tensor(nullptr, DType::i64, shape); }
inline Tensor u8(Sizes shape) { return tensor(nullptr, DType::u8, shape); }

/// The check that expect_cases calls.
inline constexpr auto kCheckShape = [](const auto& problem) { (void)shape_of(problem); };

// 64 x 32 in blocks of 16 x 8, seven stored.
inline BsrMatrix seven_blocks() { return {f32({7, 16, 8}), i32({5}), i32({7}), 64, 32}; }

inline AttentionProblem dense_attention() {
  return {.q = bf16({2, 100, 8, 64}),
          .k = bf16({2, 200, 2, 64}),
          .v = bf16({2, 200, 2, 32}),
          .out = bf16({2, 100, 8, 32})};
}

inline AttentionProblem packed_attention() {
  AttentionProblem p{.q = bf16({100, 8, 64}),
                     .k = bf16({200, 2, 64}),
                     .v = bf16({200, 2, 32}),
                     .out = bf16({100, 8, 32})};
  p.q_offsets = i32({4});
  p.kv_offsets = i64({4});
  return p;
}

inline AttentionProblem paged_attention() {
  AttentionProblem p = dense_attention();
  p.k = bf16({50, 16, 2, 64});
  p.v = bf16({50, 16, 2, 32});
  p.page_table = i32({2, 20});
  p.kv_end = i32({2});
  return p;
}

}  // namespace tessera::planning
