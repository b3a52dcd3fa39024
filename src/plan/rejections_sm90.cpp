#include "src/plan/rejections_sm90.hpp"

#include <algorithm>

namespace tessera::planning {
namespace {

/// Products by the uniform loop of sm90/matmul.
void reject_matmul(const MatmulShape& s, const Tile& tile, std::vector<std::string>& reasons) {
  for (const OperandShape* side : {&s.a, &s.b}) {
    if (side->dtype != DType::f16 && side->dtype != DType::bf16) {
      reasons.push_back(std::string("multiplies f16 and bf16, not ") + to_string(side->dtype));
      return;
    }
  }
  if (s.grouped) reasons.push_back("takes no group_offsets");
  if (s.a.sparse && s.b.sparse) reasons.push_back("one of a and b has to be dense");
  if (!s.a.tma_readable || !s.b.tma_readable) {
    reasons.push_back("a and b need contiguous rows or columns, at multiples of 16 bytes");
  }
  constexpr std::int64_t kMostCoordinate = std::int64_t{1} << 31;
  if (std::max({s.m, s.n, s.k, s.a.stored, s.b.stored}) >=
      kMostCoordinate / std::max({s.a.batch, s.b.batch, std::int64_t{1}})) {
    reasons.push_back("takes sizes below 2^31");
  }
  if (s.a.sparse == s.b.sparse) return;
  // The sparse side is walked by the rows of its blocks, as it is stored: op(A), or op(B)
  // transposed.
  const OperandShape& sparse = s.a.sparse ? s.a : s.b;
  if (sparse.transposed != s.b.sparse) {
    reasons.push_back(s.a.sparse ? "walks a sparse a by its rows: a must not be transposed"
                                 : "walks a sparse b by its columns: b must be transposed");
  }
  if (sparse.block.rows % tile.m != 0) {
    reasons.push_back("blocks need a multiple of " + std::to_string(tile.m) + " rows");
  }
  if (sparse.block.cols % tile.k != 0) {
    reasons.push_back("blocks need a multiple of " + std::to_string(tile.k) + " columns");
  }
}

}  // namespace

void reject_sm90(const KernelRow& row, Op op, const AnyShape& shape,
                 std::vector<std::string>& reasons) {
  if (op == Op::matmul)
    reject_matmul(std::get<static_cast<std::size_t>(Op::matmul)>(shape), row.tile, reasons);
}

}  // namespace tessera::planning
