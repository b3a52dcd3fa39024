// KV split across CTAs: every key of every tile is walked once, and the CTAs agree on their parts.
#include "src/walk/kv_share.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::planning {
namespace {

void check_shares(int tiles, int split_ctas, int count, int unit) {
  SCOPED_TRACE(testing::Message() << tiles << " tiles, CTAs: " << split_ctas << ", " << count << "/"
                                  << unit);
  std::map<int, std::vector<KvShare>> of_tile;
  std::set<int> slots;
  for (int cta = 0; cta < split_ctas + 3; ++cta) {
    KvShare share;
    int walked = 0;
    for (int index = 0; find_kv_share(tiles, split_ctas, cta, index, share); ++index) {
      walked += share.to - share.from;
      of_tile[share.tile].push_back(share);
      EXPECT_TRUE(slots.insert(share.slot + share.part).second) << "two parts have the same slot";
      EXPECT_LT(share.slot + share.part, tiles + split_ctas);
    }
    EXPECT_EQ(walked, cta < split_ctas ? tiles : 0) << "shares are not equal";
  }
  ASSERT_EQ(of_tile.size(), static_cast<std::size_t>(tiles));
  for (const auto& [tile, shares] : of_tile) {
    EXPECT_LT(tile, tiles);
    int at = 0;
    for (std::size_t part = 0; part < shares.size(); ++part) {
      const KvShare& share = shares[part];
      EXPECT_EQ(share.part, static_cast<int>(part));
      EXPECT_EQ(share.parts, static_cast<int>(shares.size()));
      EXPECT_EQ(share.slot, shares[0].slot);
      EXPECT_EQ(share.begin(count, unit), at);
      EXPECT_TRUE(share.begin(count, unit) % unit == 0 || at == count);
      at = share.end(count, unit);
    }
    EXPECT_EQ(at, count) << "tile " << tile;
  }
}

TEST(KvShare, WalksEveryKeyOnce) {
  for (const int tiles : {1, 2, 7, 66, 67, 68, 100, 131})
    for (const int split_ctas : {tiles, tiles + 1, 2 * tiles, 131, 132})
      if (split_ctas >= tiles)
        for (const int count : {0, 1, 2, 5, 64, 257})
          for (const int unit : {1, 2, 4}) check_shares(tiles, split_ctas, count, unit);
}

TEST(KvShare, AWholeTileIsOneShare) {
  const KvShare whole;
  EXPECT_EQ(whole.begin(100, 2), 0);
  EXPECT_EQ(whole.end(100, 2), 100);
  EXPECT_EQ(whole.end(101, 2), 101);
  EXPECT_EQ(whole.parts, 1);
}

}  // namespace
}  // namespace tessera::planning
