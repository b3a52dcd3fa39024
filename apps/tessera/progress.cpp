#include "apps/tessera/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <iostream>

namespace tessera::tool {

using Clock = std::chrono::steady_clock;

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1), last_(Clock::now()) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (!drawn_) return;
  std::cerr << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

void Progress::step(const std::string& what) {
  if (terminal_) {
    std::cerr << "\r\x1b[K" << what << " ..." << std::flush;
    drawn_ = true;
  } else {
    std::cerr << what << '\n';
  }
  last_ = Clock::now();
}

void Progress::update(double share, const std::string& what) {
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000);
  if (Clock::now() - last_ < pause) return;
  last_ = Clock::now();
  share = std::clamp(share, 0.0, 1.0);
  const std::string percent = std::to_string(static_cast<int>(share * 100)) + "%";
  if (!terminal_) {
    std::cerr << percent << ": " << what << '\n';
    return;
  }
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(share * kWidth);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
  std::cerr << "\r\x1b[K" << bar << ' ' << percent << "  " << what << std::flush;
  drawn_ = true;
}

}  // namespace tessera::tool
