#pragma once

#include <string>

namespace tessera::tool {

/// Says on stderr how far a long command is: one line redrawn on a terminal, plain lines
/// elsewhere.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What is done now: shown at once, each time.
  void step(const std::string& what);
  /// Takes the line off a terminal, so that other output can follow.
  void clear();

 private:
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace tessera::tool
