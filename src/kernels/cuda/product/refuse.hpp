#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "src/kernels/reasons.hpp"
#include "src/problem/shape.hpp"

// Requirements of the GPU's product families on their operands.
namespace tessera::planning::product {

/// Largest coordinate. TMA coordinates are 32-bit integers, and a tile may reach past the end.
inline constexpr std::int64_t kMaxCoordinate = (std::int64_t{1} << 31) - 1024;
/// Tiles are counted in 32 bits, and adding one more step must not overflow.
inline constexpr std::int64_t kMaxTiles = INT32_MAX / 2;

inline void refuse_unaligned(bool a, bool b, Reasons& reasons) {
  if (!a || !b)
    reasons.layout(a ? "b" : "a", "contiguous rows or columns at multiples of 16 bytes");
}

inline void refuse_sizes(const MatmulShape& s, Reasons& reasons) {
  const std::int64_t batches = std::max({s.a.batch, s.b.batch, std::int64_t{1}});
  reasons.unless_at_most("the largest size, over all matrices of a batch",
                         std::max({s.m, s.n, s.k, s.a.stored, s.b.stored}),
                         (kMaxCoordinate - 1) / batches);
}

/// a * b, saturating: planning also accepts sizes that no memory holds; more than kMaxTiles are
/// refused.
inline std::int64_t count_tiles(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMax = std::int64_t{1} << 62;
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMax : std::min(product, kMax);
}

inline void refuse_tiles(std::int64_t tiles, Reasons& reasons) {
  reasons.unless_at_most("tiles of the result", tiles, kMaxTiles);
}

/// Refuses a sparse operand that is not walked by rows of blocks as stored (op(A), or op(B)
/// transposed), and block sizes that are not multiples of `rows` x `cols`.
inline void refuse_walk(const MatmulShape& s, std::int64_t rows, std::int64_t cols,
                        Reasons& reasons) {
  if (s.a.sparse == s.b.sparse) return;
  const OperandShape& sparse = s.a.sparse ? s.a : s.b;
  if (sparse.transposed != s.b.sparse) {
    if (s.a.sparse)
      reasons.unsupported("transpose_a with a sparse a");
    else
      reasons.required("transpose_b with a sparse b");
  }
  reasons.unless_multiple("block rows", sparse.block.rows, rows);
  reasons.unless_multiple("block columns", sparse.block.cols, cols);
}

/// Refuses blocks that are not of multiples of 16, and positions of blocks that do not fit in 32
/// bits of 16 bytes each.
inline void refuse_blocks(const MatmulShape& s, Reasons& reasons) {
  const OperandShape& sparse = s.a.sparse ? s.a : s.b;
  if (!sparse.sparse) return;
  reasons.unless_multiple("block rows", sparse.block.rows, 16);
  reasons.unless_multiple("block columns", sparse.block.cols, 16);
  if (!sparse.pool_fits) reasons.layout("values", "stored blocks that span at most 64 GiB");
}

inline void refuse_two_sparse(const MatmulShape& s, Reasons& reasons) {
  if (s.a.sparse && s.b.sparse) reasons.unsupported("a sparse a with a sparse b");
}

}  // namespace tessera::planning::product
