#include "src/select/tile_table.hpp"

#include <string_view>
#include <vector>

#include "src/kernels/cpu/rows.hpp"
#include "src/select/sm80_rows.hpp"
#include "src/select/sm90_rows.hpp"

namespace tessera {
namespace planning {
namespace {

constexpr std::uint32_t kEveryOp = ops(
    {Op::matmul, Op::sddmm, Op::spgemm, Op::attention, Op::attention_backward, Op::merge_states});

/// Merging has no inner dimension: its tile is a number of rows and nothing else.
constexpr bool legal_tile(const KernelRow& row) {
  const Tile& tile = row.tile;
  if (tile.m <= 0 || tile.n < 0 || tile.k < 0 || tile.stages < 0 || tile.warpgroups < 0) {
    return false;
  }
  if (row.ops == ops({Op::merge_states})) return true;
  if (row.does(Op::merge_states) || tile.n == 0) return false;
  if (row.backend == Backend::cpu) return tile.stages == 0 && tile.warpgroups == 0;
  return tile.m % 16 == 0 && tile.n % 8 == 0 && tile.k % 16 == 0 && tile.stages > 0 &&
         tile.warpgroups > 0;
}

constexpr bool legal(std::span<const KernelRow> rows, Backend backend, std::string_view prefix) {
  for (const KernelRow& row : rows) {
    const std::string_view name = row.name;
    if (row.backend != backend || row.ops == 0 || (row.ops & ~kEveryOp) != 0) return false;
    if (!name.starts_with(prefix) || name.size() == prefix.size()) return false;
    if (std::string_view(row.why).empty() || !legal_tile(row)) return false;
  }
  return true;
}

/// The prefix keeps names of different backends apart, so a table is checked on its own.
constexpr bool unique_names(std::span<const KernelRow> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = i + 1; j < rows.size(); ++j) {
      if (std::string_view(rows[i].name) == rows[j].name) return false;
    }
  }
  return true;
}

static_assert(legal(kCpuRows, Backend::cpu, "cpu_") && unique_names(kCpuRows));
static_assert(legal(kSm80Rows, Backend::sm80, "sm80_") && unique_names(kSm80Rows));
static_assert(legal(kSm90Rows, Backend::sm90, "sm90_") && unique_names(kSm90Rows));

}  // namespace

std::span<const KernelRow> kernel_table(Backend backend) {
  switch (backend) {
    case Backend::cpu:
      return kCpuRows;
    case Backend::sm80:
      return kSm80Rows;
    case Backend::sm90:
      return kSm90Rows;
  }
  return {};
}

}  // namespace planning

std::vector<Backend> built_backends() {
#if defined(TESSERA_CUDA)
  return {Backend::cpu, Backend::sm80, Backend::sm90};
#else
  return {Backend::cpu};
#endif
}

}  // namespace tessera
