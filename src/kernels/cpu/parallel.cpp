#include "src/kernels/cpu/parallel.hpp"

#include <pthread.h>

#include <atomic>

namespace tessera::cpu {
namespace {

std::atomic<bool> forked{false};

}  // namespace

int usable_threads(int threads) {
  // Registered before the first multi-threaded loop; forked processes inherit the handler.
  static const int failed =
      pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  return failed || forked.load(std::memory_order_relaxed) ? 1 : threads;
}

}  // namespace tessera::cpu
