#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

#include "tests/fixtures/expect.hpp"

// The CPU backend chooses its instruction set once per process. So each instruction set is tested
// in a process of its own, which runs this executable with TESSERA_SIMD set.
namespace tessera {
namespace {

std::string own_path() {
  std::array<char, 4096> path{};
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : std::string();
}

/// Runs the tests of the suite "InstructionSet" under one instruction set.
void runs_under(const std::string& simd) {
  const std::string path = own_path();
  if (path.empty()) GTEST_SKIP() << "the path of the executable is unknown on this system";
  const std::string command =
      "TESSERA_SIMD=" + simd + " '" + path + "' --gtest_filter='InstructionSet.*' 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  std::array<char, 4096> piece{};
  while (std::fgets(piece.data(), static_cast<int>(piece.size()), pipe)) output += piece.data();
  EXPECT_EQ(::pclose(pipe), 0) << "under " << simd << ":\n" << output;
  const std::string mark = "instruction set: ";
  const std::size_t at = output.find(mark);
  ASSERT_NE(at, std::string::npos) << output;
  const std::string used =
      output.substr(at + mark.size(), output.find('\n', at) - at - mark.size());
  // A CPU without this instruction set falls back to another one, which the output names.
  if (used != simd) GTEST_SKIP() << simd << " is not supported here, used: " << used;
}

TEST(Simd, Scalar) { runs_under("scalar"); }
TEST(Simd, Sse4) { runs_under("sse4"); }
TEST(Simd, Avx2) { runs_under("avx2"); }
TEST(Simd, Avx512) { runs_under("avx512"); }
TEST(Simd, Neon) { runs_under("neon"); }

TEST(InstructionSet, Products) {
  std::printf("instruction set: %s\n", device_facts({}).simd.c_str());
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    expect::matches_oracle(*generate::matmul_case(seed));
    expect::matches_oracle(*generate::sddmm_case(seed));
  }
}

TEST(InstructionSet, Attention) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    expect::matches_oracle(*generate::attention_case(seed));
  }
}

TEST(InstructionSet, AttentionBackward) {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    expect::matches_oracle(*generate::backward_case(seed));
  }
}

TEST(InstructionSet, MergeStates) {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    expect::matches_oracle(*generate::merge_case(seed));
  }
}

}  // namespace
}  // namespace tessera
