#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include <tessera/pattern.hpp>

#include "src/core/check_lists.hpp"
#include "src/sparse/support.hpp"

namespace tessera {
namespace {

using core::blocks_of;
using sparse::refuse;

// A u8 tensor of element flags, viewed as [batch, heads, q_length, kv_length].
struct Elements {
  Tensor tensor;

  explicit Elements(const Tensor& given) : tensor(given) {
    sparse::require_host(core::Where("elements"), tensor);
    if (tensor.dtype != DType::u8 || (tensor.rank != 2 && tensor.rank != 4)) {
      refuse("elements: expected u8[q_length, kv_length] or u8[batch, heads, q_length, kv_length]" +
             (", got " + to_string(tensor)));
    }
    if (tensor.rank == 2) {
      tensor.shape = {1, 1, given.size(0), given.size(1)};
      tensor.strides = {0, 0, given.stride(0), given.stride(1)};
      tensor.rank = 4;
    }
  }
  std::uint8_t& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return static_cast<std::uint8_t*>(tensor.data)[b * tensor.stride(0) + h * tensor.stride(1) +
                                                   i * tensor.stride(2) + j * tensor.stride(3)];
  }
  std::int64_t size(int dim) const { return tensor.size(dim); }
};

// The queries and keys of a block. The last block on each side may be ragged.
struct Box {
  std::int64_t q_begin, q_end, kv_begin, kv_end;
  Box(const Elements& elements, std::int64_t block_q, std::int64_t block_kv, std::int64_t row,
      std::int64_t col)
      : q_begin(row * block_q),
        q_end(std::min(elements.size(2) - q_begin, block_q) + q_begin),
        kv_begin(col * block_kv),
        kv_end(std::min(elements.size(3) - kv_begin, block_kv) + kv_begin) {}
};

// A row of lists of the mask under construction.
struct Row {
  std::vector<std::int32_t> full, partial, tiles;
};

// A set of distinct bit tiles.
class TileSet {
 public:
  std::int32_t insert(const std::string& tile) {
    const auto [place, added] = ids_.try_emplace(tile, static_cast<std::int32_t>(ids_.size()));
    if (added) tiles_ += tile;
    return place->second;
  }
  HostTensor tensor(std::int64_t block_q, std::int64_t bytes) const {
    HostTensor bits(DType::u8, {static_cast<std::int64_t>(ids_.size()), block_q, bytes});
    std::copy(tiles_.begin(), tiles_.end(), bits.data<char>());
    return bits;
  }

 private:
  std::unordered_map<std::string, std::int32_t> ids_;
  std::string tiles_;
};

// Sets the bits of a block's elements in `tile`, which is zero before, and returns their number.
std::int64_t pack(const Elements& elements, std::int64_t b, std::int64_t h, const Box& box,
                  std::int64_t bytes, std::string& tile) {
  std::int64_t set = 0;
  for (std::int64_t i = box.q_begin; i < box.q_end; ++i) {
    for (std::int64_t j = box.kv_begin; j < box.kv_end; ++j) {
      if (elements.at(b, h, i, j) == 0) continue;
      ++set;
      const std::int64_t key = j - box.kv_begin;
      char& byte = tile[static_cast<std::size_t>((i - box.q_begin) * bytes + key / 8)];
      byte = static_cast<char>(byte | (1 << (key % 8)));
    }
  }
  return set;
}

// Writes one of the lists of all rows as counts and padded indices (or tiles).
void fill_lists(const std::vector<Row>& rows, std::vector<std::int32_t> Row::*list,
                const std::vector<std::int64_t>& shape, HostTensor* counts, HostTensor& indices) {
  std::size_t capacity = 0;
  for (const Row& row : rows) capacity = std::max(capacity, (row.*list).size());
  std::vector<std::int64_t> padded = shape;
  padded.push_back(static_cast<std::int64_t>(capacity));
  indices = HostTensor(DType::i32, padded);
  if (counts) *counts = HostTensor(DType::i32, shape);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto& entries = rows[r].*list;
    std::copy(entries.begin(), entries.end(), indices.data<std::int32_t>() + r * capacity);
    if (counts) counts->data<std::int32_t>()[r] = static_cast<std::int32_t>(entries.size());
  }
}

void write_block(const BlockMask& mask, const Elements& elements, std::int64_t b, std::int64_t h,
                 const Box& box, std::int64_t tile) {
  const auto* bits = static_cast<const std::uint8_t*>(mask.bits.data);
  for (std::int64_t i = box.q_begin; i < box.q_end; ++i) {
    for (std::int64_t j = box.kv_begin; j < box.kv_end; ++j) {
      const std::int64_t key = j - box.kv_begin;
      elements.at(b, h, i, j) =
          tile < 0 || ((bits[tile * mask.bits.stride(0) + (i - box.q_begin) * mask.bits.stride(1) +
                             key / 8 * mask.bits.stride(2)] >>
                        (key % 8)) &
                       1);
    }
  }
}

}  // namespace

HostBlockMask block_mask_from_elements(const Tensor& given, std::int64_t block_q,
                                       std::int64_t block_kv) {
  const Elements elements(given);
  sparse::require_at_least(block_q, 1, "block_q");
  sparse::require_at_least(block_kv, 1, "block_kv");
  // A block may be longer than the sequence, but a bit tile must not become too large.
  constexpr std::int64_t kLargestBlock = 1 << 16;
  if (block_q > kLargestBlock || block_kv > kLargestBlock) {
    refuse("block_q, block_kv: expected at most " + std::to_string(kLargestBlock) + ", got " +
           std::to_string(block_q) + " and " + std::to_string(block_kv));
  }
  const std::int64_t rows = blocks_of(elements.size(2), block_q);
  const std::int64_t cols = blocks_of(elements.size(3), block_kv);
  if (cols > std::numeric_limits<std::int32_t>::max()) {
    refuse("elements: expected at most 2^31 - 1 key blocks, got " + std::to_string(cols));
  }
  const std::int64_t bytes = blocks_of(block_kv, 8);
  TileSet tiles;
  std::string tile;
  std::vector<Row> lists;
  bool any_partial = false;
  for (std::int64_t b = 0; b < elements.size(0); ++b) {
    for (std::int64_t h = 0; h < elements.size(1); ++h) {
      for (std::int64_t r = 0; r < rows; ++r) {
        Row& row = lists.emplace_back();
        for (std::int64_t c = 0; c < cols; ++c) {
          const Box box(elements, block_q, block_kv, r, c);
          tile.assign(static_cast<std::size_t>(block_q * bytes), '\0');
          const std::int64_t set = pack(elements, b, h, box, bytes, tile);
          if (set == 0) continue;
          if (set == (box.q_end - box.q_begin) * (box.kv_end - box.kv_begin)) {
            row.full.push_back(static_cast<std::int32_t>(c));
            continue;
          }
          any_partial = true;
          row.partial.push_back(static_cast<std::int32_t>(c));
          row.tiles.push_back(tiles.insert(tile));
        }
      }
    }
  }
  HostBlockMask mask;
  mask.block_q = block_q;
  mask.block_kv = block_kv;
  const std::vector<std::int64_t> shape{elements.size(0), elements.size(1), rows};
  fill_lists(lists, &Row::full, shape, &mask.full_counts, mask.full_indices);
  if (any_partial) {
    fill_lists(lists, &Row::partial, shape, &mask.partial_counts, mask.partial_indices);
    fill_lists(lists, &Row::tiles, shape, nullptr, mask.bit_tile);
    mask.bits = tiles.tensor(block_q, bytes);
  }
  return mask;
}

void block_mask_to_elements(const BlockMask& mask, const Tensor& given) {
  const Elements elements(given);
  core::check_no_alias(core::Where("elements"), given);
  validate(mask, elements.size(2), elements.size(3));
  const core::MaskSets sets = core::sets_of(mask);
  const auto check = [&](std::int64_t size, std::int64_t own, const char* what) {
    if (own != 1 && size != own) {
      refuse("elements: expected a " + std::string(what) + " dimension of " + std::to_string(own) +
             ", as the mask has, got " + to_string(given));
    }
  };
  check(elements.size(0), sets.batch, "batch");
  check(elements.size(1), sets.heads, "head");

  const auto fill = [&](const BlockList& list, const Tensor& tiles, std::int64_t b, std::int64_t h,
                        std::int64_t row) {
    if (!list) return;
    const core::EntryRow blocks = core::entries_of(list, list.indices, b, h, row);
    const core::EntryRow bits = tiles ? core::entries_of(list, tiles, b, h, row) : blocks;
    for (std::int64_t t = 0; t < blocks.count; ++t) {
      const std::int64_t col = core::read_index(list.indices, blocks.begin + t * blocks.stride);
      const std::int64_t tile =
          tiles ? core::read_index(tiles, bits.begin + t * bits.stride) : std::int64_t{-1};
      write_block(mask, elements, b, h, Box(elements, mask.block_q, mask.block_kv, row, col), tile);
    }
  };
  for (std::int64_t b = 0; b < elements.size(0); ++b) {
    for (std::int64_t h = 0; h < elements.size(1); ++h) {
      for (std::int64_t i = 0; i < elements.size(2); ++i) {
        for (std::int64_t j = 0; j < elements.size(3); ++j) elements.at(b, h, i, j) = 0;
      }
      for (std::int64_t row = 0; row < blocks_of(elements.size(2), mask.block_q); ++row) {
        fill(mask.full, {}, b, h, row);
        fill(mask.partial, mask.bit_tile, b, h, row);
      }
    }
  }
}

}  // namespace tessera
