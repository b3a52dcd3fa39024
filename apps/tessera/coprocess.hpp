#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tessera::tool {

/// A program that runs beside this one and talks in lines over its standard input and output.
class Coprocess {
 public:
  /// Throws std::runtime_error with the reason where it cannot be started.
  explicit Coprocess(const std::vector<std::string>& command);
  ~Coprocess();
  Coprocess(const Coprocess&) = delete;
  Coprocess& operator=(const Coprocess&) = delete;

  void send(const std::string& line);
  /// The next line; throws std::runtime_error where the program ended or took too long, and
  /// Interrupted after Ctrl-C.
  std::string receive(double timeout_seconds);

 private:
  pid_t process_ = -1;
  int socket_ = -1;
  std::string received_;
};

}  // namespace tessera::tool
