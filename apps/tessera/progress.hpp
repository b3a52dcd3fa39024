#pragma once

#include <string>

namespace tessera::tool {

/// Shows the progress of a long command on stderr: one line that is redrawn on a terminal, else
/// plain lines.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows the current step at once.
  void step(const std::string& what);
  /// Clears the line on a terminal, so that other output can follow.
  void clear();

 private:
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace tessera::tool
