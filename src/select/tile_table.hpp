#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <tessera/plan.hpp>

// The kernels that exist, one row each: the only place where a tile shape is stated. Host selection
// reads the row; a GPU kernel is instantiated from the same row's `tile` (a structural type, so it
// is a template argument); the build generates one .cu a row.
namespace tessera::planning {

/// Structural: everything a kernel template needs to know.
struct Tile {
  int m = 0, n = 0, k = 0;  // products: rows, columns, depth. attention: query rows, keys, dim
  int stages = 0;           // GPU: ring of shared-memory stages
  int warpgroups = 0;       // GPU: consumer warpgroups (or warps / 4)
  int v = 0;                // attention on a GPU: dim of values
  int row_groups = 1;       // attention on a GPU: row groups of a tile with a list each
  int kv_splits = 1;        // attention on a GPU: KV splits inside a CTA
  friend constexpr bool operator==(const Tile&, const Tile&) = default;
};

constexpr std::uint32_t ops(std::initializer_list<Op> list) {
  std::uint32_t set = 0;
  for (Op op : list) set |= 1u << static_cast<int>(op);
  return set;
}

struct KernelRow {
  const char* name;
  Backend backend;
  std::uint32_t ops;  // set of Op
  Tile tile;
  const char* why;       // the reason this row exists
  const char* measured;  // what it gave: device, toolkit, date; "" until measured

  constexpr bool does(Op op) const { return (ops >> static_cast<int>(op)) & 1u; }
  /// The kernel that the row is one instance of: "matmul" of "sm90_matmul_128x256".
  constexpr std::string_view family() const {
    const std::string_view after =
        std::string_view(name).substr(std::string_view(name).find('_') + 1);
    return after.substr(0, after.find('_'));
  }
};

/// Parts that a GPU's merge_states takes in one call.
inline constexpr int kMaxGpuMergeParts = 64;

/// The rows of one backend; `Plan::kernel` is an index into them.
std::span<const KernelRow> kernel_table(Backend backend);

}  // namespace tessera::planning
