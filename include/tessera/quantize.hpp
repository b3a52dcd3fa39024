#pragma once

#include <cstdint>

#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

/// Tensors in FP8 with factors. Calls run on the device of their tensors, do not wait for a GPU,
/// need no workspace and can be captured in a graph.
namespace tessera {

/// Where the factors of `quantize` come from.
enum class Scales : std::uint8_t {
  computed,  ///< from the largest finite magnitudes, and written
  given,     ///< by the caller, and read
};

/// Writes out = x / scale, rounded to the nearest even FP8 value. x is a float tensor of rank 2 to
/// 4, `out` is e4m3 or e5m2 of its shape, `scale` is f32. Its shape says which elements share a
/// factor:
///
/// - [1]: all of them;
/// - of x [.., rows, cols], with the rank of x and its leading sizes, [.., 1, 1]: each matrix (each
///   stored block of a BSR matrix); [.., rows, 1] and [.., 1, cols]: each row, each column;
///   [.., rows, ceil(cols / 128)] and [.., ceil(rows / 128), cols]: 128 elements of a row, of a
///   column; [.., ceil(rows / 128), ceil(cols / 128)]: a block of 128 x 128;
/// - of x [length, heads, dim] or [outer, length, heads, dim] (keys of a sequence or of a page),
///   [heads] or [outer, heads]: each head; [heads, ceil(length / n)] or [outer, heads, ceil(length
///   / n)] with n = 64 or 128: n rows of a head.
///
/// Computed factors are the largest finite |x| over the largest value of FP8 (448 or 57344), at
/// least the smallest normal f32, and 1 where there is no finite magnitude above 0.
///
/// Finite values beyond the largest one saturate. NaN stays NaN. An infinity stays one in e5m2; in
/// e4m3, which has none, it saturates. A factor of 0 makes 0 of finite values, and NaN of others.
TESSERA_EXPORT void quantize(const Tensor& x, const Tensor& out, const Tensor& scale,
                             Scales scales = Scales::computed, const Execution& execution = {});

}  // namespace tessera
