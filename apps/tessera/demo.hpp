#pragma once

#include <filesystem>
#include <string>
#include <tessera/pattern.hpp>
#include <vector>

#include "apps/tessera/timing.hpp"

namespace tessera::tool {

/// One operation of the demo: the sparse run, the dense run and the comparison with the oracle.
struct DemoPart {
  std::string name;     ///< "attention"
  std::string shape;    ///< "1 x 4 heads x 8192 x 64, bf16"
  std::string pattern;  ///< "BigBird, blocks of 64 x 64"
  std::string kept;     ///< adjective for blocks of the pattern: "visible", "stored"
  Pattern blocks;
  Timing dense, sparse;
  double max_error = 0, budget = 0;  ///< of the element that uses the largest share of its budget
  bool ok = false;
  std::string message;  ///< the first mismatch, if not ok

  double speed_up() const { return dense.ms / sparse.ms; }
  std::string share_text() const;  ///< "12.5% visible"
};

struct DemoResult {
  std::string version, device, backend, date;
  std::string idle_gpus;          ///< "2 x NVIDIA H100 80GB HBM3"; empty if there is none
  std::vector<std::string> next;  ///< suggested next commands
  std::vector<DemoPart> parts;
};

/// An HTML page with the result: self-contained, for light and dark mode. `folder` is where the
/// page will be written; inside the source tree it links to the documentation.
std::string demo_page(const DemoResult& result, const std::filesystem::path& folder);

}  // namespace tessera::tool
