#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention/layout.hpp"
#include "src/kernels/family.hpp"

// Reasons why rows of attention families cannot run a problem.
namespace tessera::planning {

/// Adds the reasons that hold for all families: head dimensions, memory layout, sizes.
void refuse_heads(const AttentionShape& s, const Tile& tile, Reasons& reasons);

/// Refuses composed lists, or what is made from them, of more than 8 GiB. Returns whether it did.
bool refuse_composed(double bytes, Reasons& reasons);

/// Of families that read pages of fewer than 64 keys as well.
void refuse_pages(const AttentionShape& s, Reasons& reasons);

/// Adds the reasons that depend on a layout and hold for all forward families: numbers of tiles,
/// lengths of lists, composed lists.
void refuse_tiles(const AttentionShape& s, const AttentionLayout& layout, Reasons& reasons);

/// Add the reasons that hold for attention rows of all architectures: those that do not depend on
/// the layout, and those that do.
void refuse_attention(const AttentionShape& s, const KernelRow& row, Reasons& reasons);
void refuse_attention_layout(const AttentionShape& s, const KernelRow& row,
                             const AttentionLayout& layout, Reasons& reasons);

}  // namespace tessera::planning
