#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/support/compare.hpp"
#include "tests/support/generate.hpp"

// Runs generated cases and holds them against the oracle: kernel first, oracle after.
namespace tessera::expect {

using generate::Case;

inline void solve(const MatmulProblem& problem, const Execution& execution = {}) {
  matmul(problem, execution);
}
inline void solve(const SddmmProblem& problem, const Execution& execution = {}) {
  sddmm(problem, execution);
}
inline void solve(const AttentionProblem& problem, const Execution& execution = {}) {
  attention(problem, execution);
}
inline void solve(const AttentionBackwardProblem& problem, const Execution& execution = {}) {
  attention_backward(problem, execution);
}
inline void solve(const MergeStatesProblem& problem, const Execution& execution = {}) {
  merge_states(problem, execution);
}

/// What the oracle says of a case whose problem has just been run.
template <class Problem>
oracle::Comparison check(const Case<Problem>& c) {
  if constexpr (requires { oracle::check(c.problem, c.former_values()); }) {
    return oracle::check(c.problem, c.former_values());
  } else {
    return oracle::check(c.problem);
  }
}
inline oracle::Comparison check(const generate::MergeCase& c) {
  return oracle::compare_merged(c.problem, c.expected);
}

/// Runs a case and expects the right result, written where it belongs and nowhere else. One thread:
/// small problems on many threads mostly wait for each other, and the determinism tests show that
/// the number of threads changes no bit.
template <class AnyCase>
void matches_oracle(AnyCase& c, const Execution& execution = {.threads = 1}) {
  c.memory.arm();
  try {
    solve(c.problem, execution);
  } catch (const Error& error) {
    ADD_FAILURE() << c.text << ": refused: " << error.what();
    return;
  }
  EXPECT_EQ(c.memory.damage(), "") << c.text;
  const oracle::Comparison result = check(c);
  EXPECT_TRUE(result.ok) << c.text << ": " << result.message;
}

/// Expects an Error that names `argument`, and all memory as it was.
template <class AnyCase>
void refuses(AnyCase& c, const std::string& argument) {
  c.memory.arm();
  try {
    solve(c.problem);
    ADD_FAILURE() << c.text << ": not refused, expected a message about " << argument;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(argument), std::string::npos)
        << c.text << ": the message does not name " << argument << ": " << error.what();
  }
  EXPECT_TRUE(c.memory.untouched()) << c.text << ": memory changed by a refused call";
}

/// A workspace or schedule: aligned, exactly as long as asked, poisoned.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes) : bytes_(bytes) {
    const auto room = static_cast<std::size_t>(bytes + kGuard + 127) / 128 * 128;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(128, room)));
    std::memset(memory_.get(), 0xff, room);
  }
  ~Scratch() {
    for (std::int64_t n = 0; n < kGuard; ++n) {
      EXPECT_EQ(memory_.get()[bytes_ + n], std::byte{0xff})
          << "written beyond a buffer of " << bytes_ << " bytes";
    }
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Buffer buffer() const { return {memory_.get(), bytes_}; }

 private:
  static constexpr std::int64_t kGuard = 64;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::int64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace tessera::expect
