#pragma once

#include <omp.h>

#include <cstdint>

namespace tessera::cpu {

/// How many of `threads` threads a loop may use: one in a process that was forked after a
/// multi-threaded loop, because OpenMP's threads do not exist there and the loop would wait for
/// them.
int usable_threads(int threads);

/// Calls body(thread, item) for every item; threads take items one at a time, in order. An item's
/// result must not depend on the thread: then results are the same for any number of threads.
template <class Body>
void parallel_for(int threads, std::int64_t items, const Body& body) {
  if (threads > items) threads = static_cast<int>(items);
  if (threads > 1) threads = usable_threads(threads);
  if (threads <= 1) {
    for (std::int64_t i = 0; i < items; ++i) body(0, i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (std::int64_t i = 0; i < items; ++i) body(omp_get_thread_num(), i);
}

}  // namespace tessera::cpu
