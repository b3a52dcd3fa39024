#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using generate::matmul_case;
using generate::ProductOptions;

void match(const ProductOptions& options, std::uint64_t seeds) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    ProductOptions typed = options;
    typed.dtype = dtype;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      expect::matches_oracle(*matmul_case(seed, typed));
    }
  }
}

TEST(Grouped, RowsTimesDenseExperts) {
  match({.sparse_b = false, .grouped = GroupAxis::rows}, 200);
}
TEST(Grouped, RowsTimesSparseExperts) {
  match({.sparse_b = true, .grouped = GroupAxis::rows}, 200);
}
TEST(Grouped, InnerDimension) { match({.grouped = GroupAxis::inner}, 200); }
TEST(Grouped, LargerGroups) {
  match({.grouped = GroupAxis::rows, .largest = 160}, 12);
  match({.grouped = GroupAxis::inner, .largest = 160}, 12);
}

}  // namespace
}  // namespace tessera
