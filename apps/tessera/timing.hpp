#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tessera::tool {

/// Times of one side of a comparison.
struct Timing {
  double ms = 0;      ///< median
  double spread = 0;  ///< distance between the quartiles, as a share of the median
  int runs = 0;
};

/// The wall time of a call in milliseconds.
double time_ms(const std::function<void()>& call);

struct TimingOptions {
  double seconds = 4;  ///< for all sides together, warm-up included
  int min_rounds = 3;
  int max_rounds = 100;
};

/// Runs the sides in turn (A B A B ...), so that changes of the clock rate affect all sides.
/// Each side returns the milliseconds of one run. The first round is a warm-up.
std::vector<Timing> interleave(const std::vector<std::function<double()>>& sides,
                               const TimingOptions& options = {});

}  // namespace tessera::tool
