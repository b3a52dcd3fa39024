#pragma once

#include "src/kernels/family.hpp"

namespace tessera::cuda {

/// A stretch of the host's time that profilers show on their timeline (NVTX, domain "tessera"), to
/// the end of the scope: its name is the step, the operation and the kernel row. Only where the
/// environment variable TESSERA_NVTX is 1 at the first of them; else it costs a comparison.
class Range {
 public:
  Range(const char* step, const planning::Planned& planned);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  bool open_ = false;
};

}  // namespace tessera::cuda
