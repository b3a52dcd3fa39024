#include "apps/tessera/output.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "apps/tessera/command.hpp"

namespace tessera::tool {

namespace {

namespace fs = std::filesystem;

// Pipes, terminals and the names of standard output cannot be replaced by a file.
bool is_special(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return path.starts_with("/dev/std") || path.starts_with("/dev/fd/") ||
         (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status));
}

// Resolves links, so that the file that a link points to is replaced, not the link.
std::string temporary_of(const std::string& path, std::string& target) {
  std::error_code error;
  target = fs::weakly_canonical(path, error).string();
  if (error || target.empty()) target = path;
  return target + "." + std::to_string(getpid()) + ".part";
}

[[noreturn]] void cannot_write(const std::string& path, const std::string& reason) {
  throw UsageError("cannot write " + path + ": " + reason);
}

void write_to(const std::string& file_path, const std::string& contents, const std::string& path) {
  std::ofstream file(file_path, std::ios::binary);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  file.close();
  if (file) return;
  const std::string reason = std::strerror(errno);
  if (file_path != path) std::remove(file_path.c_str());
  cannot_write(path, reason);
}

}  // namespace

void check_writable(const std::string& option, const std::string& path) {
  try {
    std::error_code error;
    if (fs::is_directory(path, error)) cannot_write(path, "it is a folder");
    if (is_special(path)) return;
    std::string target;
    const std::string temporary = temporary_of(path, target);
    write_to(temporary, "", path);
    std::remove(temporary.c_str());
  } catch (const UsageError& error) {
    throw UsageError(option + ": " + error.what());
  }
}

void write_file(const std::string& path, const std::string& contents) {
  if (is_special(path)) return write_to(path, contents, path);
  std::string target;
  const std::string temporary = temporary_of(path, target);
  write_to(temporary, contents, path);
  if (std::rename(temporary.c_str(), target.c_str()) == 0) return;
  const std::string reason = std::strerror(errno);
  std::remove(temporary.c_str());
  cannot_write(path, reason);
}

int output_columns() {
  if (const char* text = std::getenv("COLUMNS")) {
    int columns = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, columns);
    if (error == std::errc{} && stop == end && columns > 0) return columns;
  }
  winsize size{};
  return isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col
                                                                                    : 0;
}

std::string output_failure() {
  errno = 0;
  std::cout.flush();
  if (std::cout) return "";
  return errno != 0 ? std::strerror(errno) : "not everything was written";
}

}  // namespace tessera::tool
