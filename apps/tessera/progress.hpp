#pragma once

#include <chrono>
#include <string>

namespace tessera::tool {

/// Says on stderr how far a long command is: one line redrawn on a terminal, plain lines (at most
/// one every few seconds for `update`) elsewhere.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What is done now: shown at once, each time.
  void step(const std::string& what);
  /// How much of it is done, 0 to 1, with a few words.
  void update(double share, const std::string& what);
  /// Takes the line off a terminal, so that other output can follow.
  void clear();

 private:
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace tessera::tool
