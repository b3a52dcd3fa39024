// Damaged tuning files are read or refused with a line number. Rows that are read exist.
#include <gtest/gtest.h>

#include <string>

#include <tessera/error.hpp>

#include "src/select/tuning.hpp"
#include "tests/support/random.hpp"

namespace tessera {
namespace {

using generate::Random;
using planning::parse_tuning;

const std::string kGood =
    "tessera-tuning 1\ndevice X\n# remark\nsm90_matmul_128x256\tmatmul a on cuda\t3 us\n"
    "sm90_merge_r8\tmerge_states b on cuda\ncpu_attention\tattention_backward c on cpu\n";

std::string damaged(Random& random) {
  std::string text = kGood;
  for (std::int64_t i = random.between(1, 6); i > 0 && !text.empty(); --i) {
    const auto at =
        static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(text.size()) - 1));
    const auto length = static_cast<std::size_t>(random.between(0, 40));
    switch (random.between(0, 4)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, text.substr(at / 2, length));
        break;
      case 2:
        text[at] = static_cast<char>(random.between(0, 255));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        text.insert(at, random.pick<std::string>({"\n", "\r", "\t", " ", "#", "\n\n", "\t\t"}));
    }
  }
  return text;
}

TEST(FuzzTuning, DamagedFilesAreReadOrRefused) {
  std::int64_t read = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 50000; ++seed) {
    Random random(seed);
    const std::string text = damaged(random);
    try {
      for (const auto& [signature, row] :
           planning::parse_tuning(planning::all_families(), text, "X")) {
        ASSERT_TRUE(row) << "seed " << seed;
        ASSERT_NE(text.find(std::string(row.row->name) + "\t" + signature), std::string::npos)
            << "seed " << seed;
      }
      ++read;
    } catch (const Error& error) {
      ASSERT_EQ(std::string(error.what()).rfind("line ", 0), 0u) << "seed " << seed;
      ++refused;
    }
  }
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace tessera
