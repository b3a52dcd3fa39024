#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

void match(std::uint64_t seeds, std::int64_t largest) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const generate::ProductOptions options{.dtype = dtype, .largest = largest};
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      expect::matches_oracle(*generate::sddmm_case(seed, options));
    }
  }
}

TEST(Sddmm, MatchesTheOracle) { match(500, 70); }
TEST(Sddmm, MatchesTheOracleWhereTilesMeet) { match(25, 260); }

}  // namespace
}  // namespace tessera
