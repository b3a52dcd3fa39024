#pragma once

#include <cstdint>

// A row of a kernel table: one kernel with its tile. The tile is stated only here: selection reads
// it, the GPU kernel is instantiated from it (Tile is a structural type, so it can be a template
// argument), and the build generates one .cu file per row.
namespace tessera::planning {

struct Tile {
  int m = 0, n = 0, k = 0;  // products: rows, columns, depth. attention: queries, keys, head dim
  int stages = 0;           // GPU: slots of the ring in shared memory
  int warpgroups = 0;       // GPU: consumer warpgroups (or warps / 4)
  int v = 0;                // attention on a GPU: head dimension of V
  int row_groups = 1;       // attention on a GPU: row groups with a list each, per tile
  int kv_splits = 1;        // attention on a GPU: KV splits inside a CTA
  // Attention backward on Hopper: queries per tile of a second kernel, which computes dQ alone; 0:
  // the main kernel adds it up.
  int dq_queries = 0;
  friend constexpr bool operator==(const Tile&, const Tile&) = default;
};

/// What the cost model knows of a row: times on one SM of an H100 or H200, fitted to measurements.
/// Other devices scale them by their rates. Zero: the family computes them from the tile.
struct RowTimes {
  double step_ns = 0;  // one step of a tile's walk, by all of the tile's rows
  double tile_ns = 0;  // what a tile takes besides its steps
};

struct KernelRow {
  const char* name;  // family and facts: "sm90_attention_d128_q192_k64_s3"
  Tile tile;
  unsigned dtypes;           // of the inputs: a set made by core::dtypes
  unsigned narrow_keys = 0;  // attention: dtypes that k and v may have beside a wider q
  RowTimes times{};
  const char* why;       // why this row exists
  const char* measured;  // a result with device, toolkit and date; "" if not measured
};

}  // namespace tessera::planning
