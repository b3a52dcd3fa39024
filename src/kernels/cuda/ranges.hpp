#pragma once

#include "src/kernels/family.hpp"

namespace tessera::cuda {

/// An NVTX range on the host (domain "tessera") until the end of the scope. Its name is the step,
/// the operation and the kernel row. Active only if the environment variable TESSERA_NVTX is 1 when
/// the first range is opened; otherwise it costs one comparison.
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
