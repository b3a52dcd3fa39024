#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention_backward/plan.hpp"

// How key tiles are divided into shares, and in which order shares are handed out: so that tiles
// that add to the same sums of dQ wait little, and what they load is in L2.
namespace tessera::planning {

/// What decides how many shares a key tile has.
struct TileCosts {
  double concurrent_tiles = 0;  // by the number of SMs
  double seconds = 0;           // of an SM for the steps of all tiles
  double tile_seconds = 0;      // besides its steps, per tile
};

/// What decides in which order key tiles are handed out.
struct TileOrder {
  double concurrent_tiles = 1;  // on all SMs
  double lag = 1;               // blocks of queries by which a tile follows the one before it
  bool may_rotate = false;      // whether the family lets tiles begin at blocks of their own
  double tile_blocks = 0;       // what a tile costs besides its steps, in blocks of queries
  double cache_bytes = 0;       // L2; 0: not known
};

struct ChosenShares {
  TileShares shares;
  double waits = 0;  // seconds
};

/// How much longer the longest tile is than the mean one: under a causal mask some see everything,
/// twice the mean if there are as many queries as keys.
double longest_tile(const AttentionBackwardShape& s);

/// The size of sums of shares.
double bytes_of_shares(const AttentionBackwardShape& s, const TileShares& tile_shares);

/// The shares of a key tile with the least time: many of them fill the SMs where tiles are few.
ChosenShares best_shares(const AttentionBackwardShape& s, const TileCosts& costs,
                         const TileOrder& order, bool in_order);

/// Sets the shares whose tiles are handed out in turns, whether sections of them alternate, and how
/// many sums of a block they add to. A block of queries may be in another share of the next tile,
/// so all shares of a head that divide blocks are in one section: no tile waits for one that is
/// handed out after it.
void set_sections(const AttentionBackwardShape& s, std::int64_t shares, const TileOrder& order,
                  BackwardLayout& layout);

/// Whether all key tiles see all blocks of queries, so that each may begin at a block of its own.
bool may_rotate(const AttentionBackwardShape& s, const BackwardLayout& layout);

}  // namespace tessera::planning
