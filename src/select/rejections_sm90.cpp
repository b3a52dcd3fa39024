#include "src/select/rejections_sm90.hpp"

#include <algorithm>

#include "src/kernels/cuda/sm90/attention/plan.hpp"

namespace tessera::planning {
namespace {

/// Coordinates are 32 bits wide, and a tile may begin before the end and reach past it.
constexpr std::int64_t kMaxCoordinate = (std::int64_t{1} << 31) - 1024;

/// A sparse side is walked by the rows of its blocks, as it is stored: op(A), or op(B) transposed.
void reject_walk(const MatmulShape& s, std::int64_t rows, std::int64_t cols,
                 std::vector<std::string>& reasons) {
  if (s.a.sparse == s.b.sparse) return;
  const OperandShape& sparse = s.a.sparse ? s.a : s.b;
  if (sparse.transposed != s.b.sparse) {
    reasons.push_back(s.a.sparse ? "walks a sparse a by its rows: a must not be transposed"
                                 : "walks a sparse b by its columns: b must be transposed");
  }
  if (sparse.block.rows % rows != 0) {
    reasons.push_back("blocks need a multiple of " + std::to_string(rows) + " rows");
  }
  if (sparse.block.cols % cols != 0) {
    reasons.push_back("blocks need a multiple of " + std::to_string(cols) + " columns");
  }
}

/// Products by the uniform loop of sm90/matmul.
void reject_matmul(const MatmulShape& s, const Tile& tile, std::vector<std::string>& reasons) {
  for (const OperandShape* side : {&s.a, &s.b}) {
    if (side->dtype != DType::f16 && side->dtype != DType::bf16) {
      reasons.push_back(std::string("multiplies f16 and bf16, not ") + to_string(side->dtype));
      return;
    }
  }
  if (s.a.sparse && s.b.sparse) reasons.push_back("one of a and b has to be dense");
  for (const OperandShape* side : {&s.a, &s.b}) {  // a dense one is copied where it has to be
    if (side->sparse && !side->tma_readable)
      reasons.push_back("stored blocks need contiguous rows or columns, at multiples of 16 bytes");
  }
  if (std::max({s.m, s.n, s.k, s.a.stored, s.b.stored}) >=
      kMaxCoordinate / std::max({s.a.batch, s.b.batch, std::int64_t{1}})) {
    reasons.push_back("takes sizes below 2^31");
  }
  // sm90/skinny takes the rest.
  if (tile.n < 128 && !s.grouped && s.a.tma_readable && s.b.tma_readable) {
    reasons.push_back("takes groups, and operands that have to be copied");
  }
  reject_walk(s, tile.k, tile.k, reasons);
}

/// Few columns, by the stream of sm90/skinny.
void reject_skinny(const MatmulShape& s, const Tile& tile, std::vector<std::string>& reasons) {
  if (s.a.dtype != DType::f16 && s.a.dtype != DType::bf16) {
    reasons.push_back(std::string("multiplies f16 and bf16, not ") + to_string(s.a.dtype));
    return;
  }
  if (s.a.sparse && s.b.sparse) reasons.push_back("one of a and b has to be dense");
  if (s.grouped) reasons.push_back("takes no group_offsets");
  if (!s.a.tma_readable || !s.b.tma_readable) {
    reasons.push_back("a and b need contiguous rows or columns, at multiples of 16 bytes");
  }
  if (std::max({s.m, s.n, s.k, s.a.stored, s.b.stored}) >=
      kMaxCoordinate / std::max({s.a.batch, s.b.batch, std::int64_t{1}})) {
    reasons.push_back("takes sizes below 2^31");
  }
  constexpr std::int64_t kMaxColumns = 1024, kMaxInGrid = 65535;
  const std::int64_t columns = s.a.sparse ? s.n : s.b.sparse ? s.m : std::min(s.m, s.n);
  if (columns > kMaxColumns) {
    reasons.push_back("takes a short side of " + std::to_string(kMaxColumns) + " at most");
  }
  if (s.batch > kMaxInGrid) reasons.push_back("takes fewer than 65536 matrices");
  reject_walk(s, 64, tile.k, reasons);
}

/// One side sparse, by the union of several lines' lists: sm90/bsr.
void reject_bsr(const MatmulShape& s, std::vector<std::string>& reasons) {
  if (s.a.sparse == s.b.sparse) {
    reasons.push_back("one of a and b has to be sparse, the other dense");
    return;
  }
  const OperandShape& sparse = s.a.sparse ? s.a : s.b;
  if (sparse.dtype != DType::f16 && sparse.dtype != DType::bf16) {
    reasons.push_back(std::string("multiplies f16 and bf16, not ") + to_string(sparse.dtype));
    return;
  }
  if (s.grouped) reasons.push_back("takes no group_offsets");
  if (!s.a.tma_readable || !s.b.tma_readable) {
    reasons.push_back("a and b need contiguous rows or columns, at multiples of 16 bytes");
  }
  const std::int64_t batches = std::max({s.a.batch, s.b.batch, std::int64_t{1}});
  if (std::max({s.m, s.n, s.k, s.a.stored, s.b.stored}) >= kMaxCoordinate / batches) {
    reasons.push_back("takes sizes below 2^31");
  }
  if (sparse.block.rows % 16 != 0 || sparse.block.cols % 16 != 0) {
    reasons.push_back("blocks need multiples of 16 rows and columns");
  }
}

/// Products sampled at a pattern, by the gathering loop of sm90/sddmm.
void reject_sddmm(const SddmmShape& s, const Tile& tile, std::vector<std::string>& reasons) {
  if (s.a.dtype != DType::f16 && s.a.dtype != DType::bf16) {
    reasons.push_back(std::string("multiplies f16 and bf16, not ") + to_string(s.a.dtype));
    return;
  }
  if (!s.a.tma_readable || !s.b.tma_readable) {
    reasons.push_back("a and b need contiguous rows or columns, at multiples of 16 bytes");
  }
  if (std::max({s.m, s.n, s.k, s.batch, s.out.stored}) >= kMaxCoordinate) {
    reasons.push_back("takes sizes below 2^31");
  }
  if (s.out.block.rows % tile.m != 0) {
    reasons.push_back("blocks need a multiple of " + std::to_string(tile.m) + " rows");
  }
  if (s.out.block.cols % 16 != 0) reasons.push_back("blocks need a multiple of 16 columns");
}

/// Sparse times sparse, whose tiles are blocks of the result.
void reject_spgemm(const SpgemmShape& s, const Tile& tile, std::vector<std::string>& reasons) {
  if (s.a.dtype != DType::f16 && s.a.dtype != DType::bf16) {
    reasons.push_back(std::string("multiplies f16 and bf16, not ") + to_string(s.a.dtype));
    return;
  }
  if (!s.a.tma_readable || !s.b.tma_readable) {
    reasons.push_back("blocks need contiguous rows or columns, at multiples of 16 bytes");
  }
  const BlockShape a = s.a.transposed ? BlockShape{s.a.block.cols, s.a.block.rows} : s.a.block;
  const BlockShape b = s.b.transposed ? BlockShape{s.b.block.cols, s.b.block.rows} : s.b.block;
  if (a.rows != tile.m || b.cols != tile.n) {
    reasons.push_back("the result's blocks need " + std::to_string(tile.m) + " x " +
                      std::to_string(tile.n));
  }
  if (a.cols % tile.k != 0) {
    reasons.push_back("the blocks that meet need a multiple of " + std::to_string(tile.k) +
                      " in depth");
  }
}

/// Attention by sm90/attention.
void reject_attention(const AttentionShape& s, const Tile& tile,
                      std::vector<std::string>& reasons) {
  if (s.dtype != DType::f16 && s.dtype != DType::bf16) {
    reasons.push_back(std::string("multiplies f16 and bf16, not ") + to_string(s.dtype));
    return;
  }
  if (s.kv_layout == KvLayout::paged) reasons.push_back("takes no page_table");
  if (s.dim % 8 != 0 || s.dim_v % 8 != 0 || s.dim == 0 || s.dim_v == 0) {
    reasons.push_back("takes head dimensions of multiples of 8, got " + std::to_string(s.dim) +
                      " and " + std::to_string(s.dim_v));
  } else if (s.dim > tile.k || s.dim_v > tile.v) {
    reasons.push_back("takes head dimensions up to " + std::to_string(tile.k) +
                      ", of values up to " + std::to_string(tile.v));
  }
  if (!s.tma_readable)
    reasons.push_back("q, k and v need contiguous rows, at multiples of 16 bytes");
  if (transforms_scores(s) && !supports_score_transform(tile))
    reasons.push_back("takes no softcap, and scales above zero");
  constexpr std::int64_t kMax = std::int64_t{1} << 29;
  if (std::max({s.q_total, s.kv_total, s.kv_length, s.heads, s.batch}) >= kMax)
    reasons.push_back("takes sizes below 2^29");
  if (!s.masked) {
    if (tile.row_groups > 1) reasons.push_back("walks lists: takes problems with a mask");
    return;
  }
  // What its tiles do not fit is composed into blocks that they do fit.
  const AttentionLayout layout = attention_layout(s, tile);
  const AttentionShape walked = with_mask(s, layout.composed);
  if (tile.row_groups > 1) {
    const auto fills_tile = [&](const AttentionShape& of) {
      return layout.queries > 0 && of.mask_block.rows % layout.queries == 0;
    };
    if (fills_tile(s) || fills_tile(walked))
      reasons.push_back("takes lists that differ inside " + std::to_string(layout.queries) +
                        " queries: a row of blocks fills as many");
    if ((s.kv_length - 1) / std::max<std::int64_t>(walked.mask_block.cols, 1) >= kMaxRowGroupBlocks)
      reasons.push_back("takes masks of up to " + std::to_string(kMaxRowGroupBlocks) +
                        " columns of blocks");
  }
  if (walked.mask_capacity >= kMax / std::max<std::int64_t>(walked.mask_block.cols, 1))
    reasons.push_back("takes lists of fewer than 2^29 keys");
  if (composed_bytes(layout.composed) > kMaxComposedBytes)
    reasons.push_back("composes blocks into " + std::to_string(layout.composed.queries) + " x " +
                      std::to_string(kComposedKeys) + ": lists that fit into 8 GiB");
}

}  // namespace

void reject_sm90(const KernelRow& row, Op op, const AnyShape& shape,
                 std::vector<std::string>& reasons) {
  if (op == Op::matmul) {
    const auto& s = std::get<static_cast<std::size_t>(Op::matmul)>(shape);
    if (row.family() == "bsr")
      reject_bsr(s, reasons);
    else if (row.family() == "skinny")
      reject_skinny(s, row.tile, reasons);
    else
      reject_matmul(s, row.tile, reasons);
  }
  if (op == Op::sddmm)
    reject_sddmm(std::get<static_cast<std::size_t>(Op::sddmm)>(shape), row.tile, reasons);
  if (op == Op::spgemm)
    reject_spgemm(std::get<static_cast<std::size_t>(Op::spgemm)>(shape), row.tile, reasons);
  if (op == Op::attention)
    reject_attention(std::get<static_cast<std::size_t>(Op::attention)>(shape), row.tile, reasons);
}

}  // namespace tessera::planning
