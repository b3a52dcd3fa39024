#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include <tessera/matmul.hpp>

#include "src/problem/scale_rules.hpp"
#include "src/problem/shape.hpp"
#include "src/problem/tma_rules.hpp"

// What cuBLASLt asks of products in FP8, besides what it asks of all: how factors are given, and
// where they lie.
namespace tessera::planning {

/// How the library reads the factors of an operand; the numbers are those of its header.
enum class ScaleMode : std::int64_t { one = 0, per_line = 3, per_128 = 4, per_128x128 = 5 };
struct ScaleModes {
  ScaleMode a = ScaleMode::one, b = ScaleMode::one;
};

/// How both operands' factors are given; empty where the library has no such pair.
inline std::optional<ScaleModes> scale_modes(const MatmulShape& s) {
  using enum ScaleForm;
  const auto for_all = [](ScaleForm form) { return form == none || form == tensor; };
  // The factor of a single line, or of a depth within one block, is of several forms.
  const auto per_line = [](ScaleForm form, std::int64_t lines) {
    return form == line || (form == tensor && lines == 1);
  };
  const auto per_128 = [&](ScaleForm form, std::int64_t lines) {
    return form == line_128 || (s.k <= kScaleBlock && per_line(form, lines));
  };
  const auto per_block = [&](ScaleForm form, std::int64_t lines) {
    return form == block_128 || (form == tensor && lines <= kScaleBlock && s.k <= kScaleBlock);
  };
  const ScaleForm a = s.a.scale, b = s.b.scale;
  if (for_all(a) && for_all(b)) return ScaleModes{};
  if (s.batch != 1) return std::nullopt;
  if (per_line(a, s.m) && per_line(b, s.n))
    return ScaleModes{ScaleMode::per_line, ScaleMode::per_line};
  const auto of_block = [](bool is_line) {
    return is_line ? ScaleMode::per_128 : ScaleMode::per_128x128;
  };
  const bool a_line = per_128(a, s.m), b_line = per_128(b, s.n);
  if ((!a_line && !per_block(a, s.m)) || (!b_line && !per_block(b, s.n)) || (!a_line && !b_line))
    return std::nullopt;
  return ScaleModes{of_block(a_line), of_block(b_line)};
}

/// Whether factors lie as the library reads them in this mode: side by side along the lines, or, of
/// 128 x 128, along the depth with each line of them at a multiple of 16 bytes.
inline bool scale_lies_for(const Operand& operand, ScaleMode mode, bool is_left, std::int64_t lines,
                           std::int64_t depth) {
  const Tensor& scale = operand.scale;
  if (mode == ScaleMode::one || scale.numel() == 1) return true;
  const bool in_rows = is_left != operand.transposed;  // lines are rows of what is stored
  const int line_dim = scale.rank - (in_rows ? 2 : 1), depth_dim = scale.rank - (in_rows ? 1 : 2);
  const auto steps = [&](int dim, std::int64_t stride) {
    return scale.size(dim) <= 1 || scale.stride(dim) == stride;
  };
  const auto address = reinterpret_cast<std::uintptr_t>(scale.data);
  if (address % kTmaAlignment != 0) return false;
  if (mode == ScaleMode::per_line) return steps(line_dim, 1);
  if (mode == ScaleMode::per_128) return steps(line_dim, 1) && steps(depth_dim, lines);
  constexpr std::int64_t kPitch = 4;
  return steps(depth_dim, 1) &&
         steps(line_dim, (scale_blocks(depth) + kPitch - 1) / kPitch * kPitch);
}

/// Whether a side's lines lie along the depth, at multiples of 16 bytes.
inline bool lies_for_fp8(const OperandShape& o, bool is_left) {
  return o.tma_readable && o.lies_along_depth(is_left == o.transposed);
}

/// What the library does not compute of a dense product in FP8 that a BLAS has nothing against.
/// `along`: the dimension in which the result is contiguous.
inline BlasLimit fp8_limit(const MatmulProblem& problem, const MatmulShape& s, int along) {
  constexpr std::int64_t kMultiple = 16;
  const Tensor& out = problem.out;
  if (!lies_for_fp8(s.a, true)) return BlasLimit::fp8_a;
  if (!lies_for_fp8(s.b, false)) return BlasLimit::fp8_b;
  if (s.k % kMultiple != 0) return BlasLimit::fp8_depth;
  if (out.size(along) % kMultiple != 0 || !lies_along(out, along) || !begins_aligned(out))
    return BlasLimit::fp8_out;
  const auto modes = scale_modes(s);
  if (!modes) return BlasLimit::fp8_scales;
  if (!scale_lies_for(problem.a, modes->a, true, s.m, s.k)) return BlasLimit::fp8_a_scale;
  if (!scale_lies_for(problem.b, modes->b, false, s.n, s.k)) return BlasLimit::fp8_b_scale;
  const bool by_block = modes->a != ScaleMode::one && modes->a != ScaleMode::per_line;
  if (by_block && (s.m % 4 != 0 || s.n % 4 != 0)) return BlasLimit::fp8_block_sizes;
  return BlasLimit::none;
}

}  // namespace tessera::planning
