#pragma once

#include <string>

// Where results go: files that are whole or not there, and the terminal.
namespace tessera::tool {

/// Throws UsageError beginning with `option` unless `write_file` can write there. Leaves nothing
/// behind.
void check_writable(const std::string& option, const std::string& path);

/// Writes a whole file, in one step: into a temporary file beside it, which then takes its name.
/// Throws UsageError naming the path and the reason.
void write_file(const std::string& path, const std::string& contents);

/// Columns of the terminal that standard output goes to: COLUMNS, else what the terminal says; 0
/// where neither is known.
int output_columns();

/// The reason why what was printed did not all reach standard output; empty if it did.
std::string output_failure();

}  // namespace tessera::tool
