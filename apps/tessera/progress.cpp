#include "apps/tessera/progress.hpp"

#include <unistd.h>

#include <iostream>

namespace tessera::tool {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

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
}

}  // namespace tessera::tool
