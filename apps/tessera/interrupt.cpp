#include "apps/tessera/interrupt.hpp"

#include <signal.h>

namespace tessera::tool {

namespace {

volatile sig_atomic_t seen = 0;

void note(int) { seen = 1; }

}  // namespace

InterruptGuard::InterruptGuard() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

InterruptGuard::~InterruptGuard() { signal(SIGINT, SIG_DFL); }

bool interrupted() { return seen != 0; }

void check_interrupt() {
  if (interrupted()) throw Interrupted();
}

}  // namespace tessera::tool
