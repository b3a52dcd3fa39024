#pragma once

#include <string>

// Output to files, which are written as a whole or not at all, and to the terminal.
namespace tessera::tool {

/// Checks that `write_file` can write to `path`; leaves no file behind. Throws UsageError, which
/// begins with `option`, if it cannot.
void check_writable(const std::string& option, const std::string& path);

/// Writes a file atomically: to a temporary file next to it, which is then renamed. Throws
/// UsageError with the path and the reason.
void write_file(const std::string& path, const std::string& contents);

/// The width of the terminal that standard output goes to: COLUMNS if it is set, else the
/// terminal's own answer; 0 if unknown.
int output_columns();

/// Flushes standard output. Returns the reason if not all output was written, else an empty string.
std::string output_failure();

}  // namespace tessera::tool
