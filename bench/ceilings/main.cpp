// Measures the ceilings of a card without the library's kernels: tensor-core rates by instruction,
// bandwidths, launch costs. `ceilings` writes one JSON object of figures, for `python -m
// tessera.bench ceilings` and tools/gpu_check.py; docs/measuring.md explains them.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/ceilings/steps.hpp"
#include "bench/ceilings/timing.hpp"

namespace {

using namespace tessera::ceilings;
using tessera::cuda::check;

constexpr const char* kUsage =
    "usage: ceilings [--only PART,...] [--seconds S]\n"
    "  --only     tensor, l2, memory, launch [all]\n"
    "  --seconds  per sustained measurement, 0.1 to 60; watts require 0.5 [2]\n";
constexpr double kMinSeconds = 0.1, kMaxSeconds = 60;

/// Invalid arguments.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  std::set<std::string> parts;  // empty: all parts
  double seconds = 2;
};

std::vector<Step> all_steps() {
  std::vector<Step> steps;
  for (const auto& part : {tensor_steps(), l2_steps(), memory_steps(), launch_steps()})
    steps.insert(steps.end(), part.begin(), part.end());
  return steps;
}

std::set<std::string> parts_of(const std::string& text, const std::vector<Step>& steps) {
  std::set<std::string> parts;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (std::none_of(steps.begin(), steps.end(),
                     [&](const Step& step) { return step.part == word; }))
      throw Refused("--only: expected some of tensor, l2, memory, launch, got '" + word + "'");
    parts.insert(word);
  }
  if (parts.empty()) throw Refused("--only: expected some of tensor, l2, memory, launch, got ''");
  return parts;
}

double seconds_of(const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(seconds >= kMinSeconds && seconds <= kMaxSeconds))
    throw Refused("--seconds: expected a number from 0.1 to 60, got '" + text + "'");
  return seconds;
}

Options parse(const std::vector<std::string>& arguments, const std::vector<Step>& steps) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name != "--only" && name != "--seconds")
      throw Refused("expected --only or --seconds, got '" + name + "'");
    if (i + 1 == arguments.size()) throw Refused(name + ": a value is missing");
    const std::string& value = arguments[++i];
    if (name == "--only")
      options.parts = parts_of(value, steps);
    else
      options.seconds = seconds_of(value);
  }
  return options;
}

/// The first GPU; none if the driver reports none.
std::optional<Card> find_card() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver || count == 0)
    return std::nullopt;
  check(status, "cudaGetDeviceCount");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  check(cudaSetDevice(0), "cudaSetDevice");
  return Card{properties.name, properties.multiProcessorCount,
              properties.major == 9 && properties.minor == 0};
}

/// The chosen steps that the card supports; prints the others.
std::vector<Step> steps_for(const Card& card, const Options& options, std::vector<Step> steps) {
  std::string left_out;
  std::erase_if(steps, [&](const Step& step) {
    if (!options.parts.empty() && !options.parts.contains(step.part)) return true;
    if (card.hopper || !step.for_hopper) return false;
    left_out += (left_out.empty() ? "" : ", ") + step.name;
    return true;
  });
  if (!left_out.empty())
    std::fprintf(stderr, "ceilings: %s does not have compute capability 9.0; skipped: %s\n",
                 card.name.c_str(), left_out.c_str());
  return steps;
}

void print(const Figures& figures) {
  std::string text;
  for (const auto& [key, value] : figures) {
    char number[40];
    std::snprintf(number, sizeof(number), "%.6g", value);
    text += (text.empty() ? "\"" : ", \"") + key + "\": " + number;
  }
  std::printf("{%s}\n", text.c_str());
}

int measure(const Options& options, const std::vector<Step>& all) {
  const std::optional<Card> card = find_card();
  if (!card) {
    std::fputs("ceilings: no GPU here: the driver reports none\n", stderr);
    return 1;
  }
  const std::vector<Step> steps = steps_for(*card, options, all);
  if (steps.empty()) return 1;
  Figures figures;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::fprintf(stderr, "[%zu/%zu] %s\n", i + 1, steps.size(), steps[i].name.c_str());
    steps[i].measure(*card, options.seconds, figures);
  }
  print(figures);
  return 0;
}

}  // namespace

int main(int count, char** words) try {
  const std::vector<std::string> arguments(words + 1, words + count);
  if (arguments == std::vector<std::string>{"--help"}) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const std::vector<Step> steps = all_steps();
  return measure(parse(arguments, steps), steps);
} catch (const Refused& error) {
  std::fprintf(stderr, "ceilings: %s\n", error.what());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ceilings: %s\n", error.what());
  return 1;
}
