#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include <tessera/tessera.hpp>

#include "tests/support/random.hpp"

// What fuzz tests share.
namespace tessera::fuzz {

inline char g_current[256];

/// Names the problem at work when it takes longer than any of these may.
class Watchdog {
 public:
  Watchdog() {
    std::signal(SIGALRM, [](int) {
      [[maybe_unused]] auto written = ::write(STDERR_FILENO, g_current, std::strlen(g_current));
      ::_exit(3);
    });
  }
  ~Watchdog() { ::alarm(0); }
  void next(const std::string& text) {
    std::snprintf(g_current, sizeof(g_current), "hangs: %s\n", text.c_str());
    ::alarm(20);
  }
};

/// explain answers or throws Error for any device; its answer can be printed.
template <class Problem>
void explains(generate::Random& random, const Problem& problem) {
  const std::vector<std::string> presets = device_presets();
  const auto n = random.between(0, static_cast<std::int64_t>(presets.size()) - 1);
  try {
    const Explanation e = explain(problem, device_preset(presets[static_cast<std::size_t>(n)]));
    EXPECT_FALSE(to_text(e).empty());
    EXPECT_EQ(to_json(e).front(), '{');
  } catch (const Error& error) {
    EXPECT_GT(std::string(error.what()).size(), 10u);
  }
}

}  // namespace tessera::fuzz
