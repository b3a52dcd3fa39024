#include "src/kernels/cuda/attention/refuse.hpp"

#include <algorithm>

#include "src/walk/key_pieces.hpp"

namespace tessera::planning {
namespace {

constexpr std::int64_t kMaxLength = std::int64_t{1} << 29;
constexpr std::int64_t kMaxTiles = INT32_MAX / 2;  // one more step still fits

/// Keys per block of the lists that a kernel walks.
std::int64_t block_keys(const AttentionShape& walked) {
  return std::max<std::int64_t>(walked.mask_block.cols, 1);
}

}  // namespace

void refuse_heads(const AttentionShape& s, const Tile& tile, Reasons& reasons) {
  if (s.dim == 0 || s.dim_v == 0) reasons.required("a head dimension above 0");
  reasons.unless_multiple("head dimension", s.dim, 8);
  reasons.unless_multiple("head dimension of v", s.dim_v, 8);
  reasons.unless_at_most("head dimension", s.dim, tile.k);
  reasons.unless_at_most("head dimension of v", s.dim_v, tile.v);
  // Families that support v by keys refuse the rest themselves.
  if (!s.tma_readable && !s.v_by_keys)
    reasons.layout("q, k and v", s.dtype == DType::e4m3
                                     ? "contiguous rows at multiples of 16 bytes, or contiguous "
                                       "keys of v"
                                     : "contiguous rows at multiples of 16 bytes");
  // Of pages only the rows of one are adjacent.
  const std::int64_t rows = s.kv_layout == KvLayout::paged ? s.page : s.kv_total;
  reasons.unless_at_most("the largest size",
                         std::max({s.q_total, rows, s.kv_length, s.heads, s.batch}),
                         kMaxLength - 1);
}

void refuse_pages(const AttentionShape& s, Reasons& reasons) {
  if (s.kv_layout != KvLayout::paged) return;
  constexpr std::int64_t kSmallest = 8;
  if (s.page % kKeyPiece != 0 && (s.page < kSmallest || kKeyPiece % s.page != 0))
    reasons.layout("page_table", "pages of 8, 16 or 32 keys, or of a multiple of 64");
  reasons.unless_at_most("pages", s.pages, INT32_MAX);
}

bool refuse_composed(double bytes, Reasons& reasons) {
  constexpr double kMaxBytes = 8.0 * (1 << 30);
  if (bytes <= kMaxBytes) return false;
  reasons.layout("mask", "blocks that can be composed within 8 GiB");
  return true;
}

void refuse_tiles(const AttentionShape& s, const AttentionLayout& at, Reasons& reasons) {
  reasons.unless_at_most("tiles of the result", at.tiles, kMaxTiles);
  if (!s.masked) return;
  const WalkedShape walked(s, at.composed);
  reasons.unless_at_most("blocks of the longest list", (*walked).mask_capacity,
                         (kMaxLength - 1) / block_keys(*walked));
  refuse_composed(composed_bytes(at.composed), reasons);
}

void refuse_attention(const AttentionShape& s, const KernelRow& row, Reasons& reasons) {
  const Tile& tile = row.tile;
  if (s.batch_invariant) reasons.unsupported("batch_invariant");
  refuse_heads(s, tile, reasons);
  if (s.transforms_scores && !supports_score_transform(tile))
    reasons.unsupported("softcap or a scale of zero or less");
  if (!s.masked && tile.row_groups > 1) reasons.required("a block mask");
}

void refuse_attention_layout(const AttentionShape& s, const KernelRow& row,
                             const AttentionLayout& at, Reasons& reasons) {
  if (s.masked && row.tile.row_groups > 1) {
    // The mask's blocks if the tiles fit them, else the composed blocks.
    const WalkedShape walked(s, at.composed);
    const auto fills_tile = [&](const AttentionShape& of) {
      return at.queries > 0 && of.mask_block.rows % at.queries == 0;
    };
    if (fills_tile(s) || fills_tile(*walked))
      reasons.layout("mask", "lists that differ within the queries of a tile");
    reasons.unless_at_most("columns of blocks", (s.kv_length - 1) / block_keys(*walked) + 1,
                           kMaxRowGroupBlocks);
  }
  refuse_tiles(s, at, reasons);
}

}  // namespace tessera::planning
