// The kernel tables: what every family and row has to state, and the names of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "src/core/check.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

constexpr Op kOps[] = {
    Op::matmul, Op::sddmm, Op::spgemm, Op::attention, Op::attention_backward, Op::merge_states};

/// Whether another library chooses the tile, so that the row states none.
bool has_no_tile(const KernelRow& row) { return row.tile == Tile{}; }

/// The part of a row's name after the family's name.
std::string facts(const KernelFamily& family, const KernelRow& row) {
  const Tile& t = row.tile;
  if (has_no_tile(row)) {
    std::string text;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2})
      if (row.dtypes & core::dtypes({dtype})) text += "_" + std::string(to_string(dtype));
    return text;
  }
  const auto fact = [](const char* letter, int number) {
    return "_" + std::string(letter) + std::to_string(number);
  };
  if (family.op == Op::merge_states) return fact("r", t.m);
  if (family.op == Op::attention || family.op == Op::attention_backward) {
    std::string text = row.dtypes == core::dtypes({DType::e4m3}) ? "_fp8" : "";
    if (t.k > 0) text += fact("d", t.k);
    if (t.v > 0 && t.v != t.k) text += fact("v", t.v);
    text += fact("q", t.m) + fact("k", t.n);
    if (t.stages > 0) text += fact("s", t.stages);
    if (t.row_groups > 1) text += fact("lists", t.row_groups);
    if (t.kv_splits > 1) text += fact("split", t.kv_splits);
    if (t.dq_queries > 0) text += fact("dq", t.dq_queries);
    if (family.backend == Backend::sm80) text += fact("w", t.warpgroups * 4);
    return text;
  }
  return fact("m", t.m) + fact("n", t.n) + fact("k", t.k) +
         (t.stages > 0 ? fact("s", t.stages) : "");
}

TEST(Families, NamesSayTheFactsAndAreUnique) {
  std::set<std::string> names;
  for (const KernelFamily& family : all_families()) {
    EXPECT_FALSE(family.rows.empty()) << family.name;
    EXPECT_TRUE(family.name.starts_with(std::string(to_string(family.backend)) + "_"));
    for (const KernelRow& row : family.rows) {
      EXPECT_EQ(row.name, std::string(family.name) + facts(family, row));
      EXPECT_TRUE(names.insert(row.name).second) << row.name;
      const FoundRow found = find_row(all_families(), row.name);
      EXPECT_EQ(found.row, &row);
      EXPECT_EQ(found.family, &family);
    }
  }
  EXPECT_FALSE(find_row(all_families(), "sm90_attention"));
  EXPECT_FALSE(find_row(all_families(), ""));
}

TEST(Families, EachRowStatesItsTileDtypesAndReason) {
  for (const KernelFamily& family : all_families()) {
    for (const KernelRow& row : family.rows) {
      SCOPED_TRACE(row.name);
      const Tile& t = row.tile;
      EXPECT_NE(row.dtypes & core::kValues, 0u);
      EXPECT_EQ(row.dtypes & ~core::kValues, 0u);
      EXPECT_NE(std::string(row.why), "");
      if (has_no_tile(row)) {
        EXPECT_EQ(family.name, "sm80_cublaslt");
        continue;
      }
      EXPECT_GT(t.m, 0);
      if (family.op == Op::merge_states) continue;
      EXPECT_GT(t.n, 0);
      if (family.backend == Backend::cpu) continue;
      EXPECT_EQ(t.m % 16 + t.n % 8 + t.k % 16, 0);
      EXPECT_GT(t.stages, 0);
      EXPECT_GT(t.warpgroups, 0);
    }
  }
}

TEST(Families, EachHasAllPlanningFunctions) {
  for (const KernelFamily& family : all_families()) {
    SCOPED_TRACE(family.name);
    EXPECT_TRUE(family.refuse && family.layout && family.seconds && family.buffers &&
                family.describe);
  }
}

TEST(Families, TheCpuDoesEveryOperation) {
  for (Op op : kOps) {
    const auto families = all_families();
    EXPECT_TRUE(std::any_of(families.begin(), families.end(), [op](const KernelFamily& family) {
      return family.backend == Backend::cpu && family.op == op;
    })) << to_string(op);
  }
}

TEST(Families, EveryBuildHasTheCpu) {
  const std::vector<Backend> built = built_backends();
  EXPECT_NE(std::find(built.begin(), built.end(), Backend::cpu), built.end());
  for (const KernelFamily& family : api::families()) {
    const bool is_built = std::find(built.begin(), built.end(), family.backend) != built.end();
    EXPECT_EQ(family.launch != nullptr, is_built) << family.name;
  }
}

TEST(Layouts, KnowTheirType) {
  const Layout number(7), none{};
  EXPECT_EQ(number.get<int>(), 7);
  EXPECT_EQ(number.get_if<double>(), nullptr);
  EXPECT_THROW(number.get<double>(), std::bad_variant_access);
  EXPECT_EQ(none.get_if<int>(), nullptr);
  const Layout copy = number;
  EXPECT_EQ(copy.get<int>(), 7);
}

}  // namespace
