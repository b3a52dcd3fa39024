#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

// The steps that the program measures; each .cu file of this folder defines some of them.
namespace tessera::ceilings {

struct Card {
  std::string name;
  int units;    // SMs
  bool hopper;  // supports wgmma, bulk copies and programmatic launches
};

/// Figures by key, in the order of measurement.
using Figures = std::vector<std::pair<std::string, double>>;

struct Step {
  std::string part;  // the value for --only
  std::string name;
  bool for_hopper;
  std::function<void(const Card&, double seconds, Figures&)> measure;
};

std::vector<Step> tensor_steps();
std::vector<Step> l2_steps();
std::vector<Step> memory_steps();
std::vector<Step> launch_steps();

}  // namespace tessera::ceilings
