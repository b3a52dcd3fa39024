#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "src/select/tile_table.hpp"

namespace {

using namespace tessera;            // NOLINT: a test of many small names
using namespace tessera::planning;  // NOLINT

constexpr Backend kBackends[] = {Backend::cpu, Backend::sm80, Backend::sm90};
constexpr Op kOps[] = {
    Op::matmul, Op::sddmm, Op::spgemm, Op::attention, Op::attention_backward, Op::merge_states};

TEST(TileTable, RowsBelongToTheirBackendAndNamesAreUnique) {
  std::set<std::string> names;
  for (Backend backend : kBackends) {
    EXPECT_FALSE(kernel_table(backend).empty());
    for (const KernelRow& row : kernel_table(backend)) {
      EXPECT_EQ(row.backend, backend);
      EXPECT_TRUE(names.insert(row.name).second) << row.name;
      EXPECT_EQ(std::string(row.name).rfind(std::string(to_string(backend)) + "_", 0), 0u);
    }
  }
  EXPECT_TRUE(kernel_table(static_cast<Backend>(77)).empty());
}

TEST(TileTable, TheCpuDoesEveryOperation) {
  for (Op op : kOps) {
    const auto rows = kernel_table(Backend::cpu);
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [op](const KernelRow& row) {
      return row.does(op);
    })) << to_string(op);
  }
}

TEST(TileTable, ASetOfOpsHoldsWhatItWasGiven) {
  constexpr KernelRow kRow{.name = "",
                           .backend = Backend::cpu,
                           .ops = ops({Op::matmul, Op::merge_states}),
                           .tile = {},
                           .why = "",
                           .measured = ""};
  static_assert(kRow.does(Op::matmul) && kRow.does(Op::merge_states));
  static_assert(!kRow.does(Op::sddmm) && !kRow.does(Op::attention));
  SUCCEED();
}

TEST(TileTable, EveryBuildHasTheCpu) {
  const std::vector<Backend> built = built_backends();
  EXPECT_NE(std::find(built.begin(), built.end(), Backend::cpu), built.end());
}

}  // namespace
