#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

// What the program measures, a step at a time; each file beside this one knows some of the steps.
namespace tessera::ceilings {

struct Card {
  std::string name;
  int units;    // multiprocessors
  bool hopper;  // has wgmma, bulk copies and programmatic launches
};

/// Figures under their keys in a result, in the order in which they were measured.
using Figures = std::vector<std::pair<std::string, double>>;

struct Step {
  std::string part;  // what --only chooses by
  std::string name;
  bool for_hopper;
  std::function<void(const Card&, double seconds, Figures&)> measure;
};

std::vector<Step> tensor_steps();
std::vector<Step> l2_steps();
std::vector<Step> memory_steps();
std::vector<Step> launch_steps();

}  // namespace tessera::ceilings
