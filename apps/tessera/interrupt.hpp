#pragma once

#include <stdexcept>

// Ctrl-C in commands that keep what was done so far.
namespace tessera::tool {

/// Thrown at the next safe place after Ctrl-C.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

/// While one lives, the first Ctrl-C only makes `interrupted()` true; the second one ends the
/// process.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

bool interrupted();
/// Throws Interrupted after Ctrl-C.
void check_interrupt();

}  // namespace tessera::tool
