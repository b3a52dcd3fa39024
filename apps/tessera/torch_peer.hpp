#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "apps/tessera/coprocess.hpp"

namespace tessera::tool {

/// PyTorch's attention on the CPU, in a Python process of its own that times itself.
class TorchPeer {
 public:
  /// Starts the process and prepares the tensors.
  TorchPeer(const std::string& python, int threads, std::int64_t batch, std::int64_t heads,
            std::int64_t length, std::int64_t dim);

  /// Empty where it can be used.
  const std::string& unavailable() const { return unavailable_; }
  const std::string& version() const { return version_; }
  /// Runs once; milliseconds.
  double run_ms();

 private:
  std::unique_ptr<Coprocess> process_;
  std::string version_, unavailable_;
};

}  // namespace tessera::tool
