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

/// Milliseconds of wall time that a call takes.
double time_ms(const std::function<void()>& call);

struct TimingOptions {
  double seconds = 4;  ///< for all sides together, warm-up included
  int min_rounds = 3;
  int max_rounds = 100;
};

/// Runs the sides in turn (A B A B ...), so that a drift of the machine's clock meets all of them.
/// Each side returns the milliseconds of one run. The first round warms up and does not count.
std::vector<Timing> interleave(const std::vector<std::function<double()>>& sides,
                               const TimingOptions& options = {});

}  // namespace tessera::tool
