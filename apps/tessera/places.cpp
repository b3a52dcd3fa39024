#include "apps/tessera/places.hpp"

#include <cstdlib>
#include <fstream>

namespace tessera::tool {

namespace fs = std::filesystem;

namespace {

// The path of `name` in `folder`, or in the closest folder above that has it; else empty.
fs::path find_above(const fs::path& folder, const fs::path& name) {
  std::error_code error;
  for (fs::path place = folder;; place = place.parent_path()) {
    if (fs::exists(place / name, error)) return place / name;
    if (place == place.parent_path()) return {};
  }
}

// The same for this program's folder, else for the current folder.
fs::path find_above(const fs::path& name) {
  std::error_code error;
  const fs::path here = find_above(own_path().parent_path(), name);
  return here.empty() ? find_above(fs::current_path(error), name) : here;
}

}  // namespace

fs::path own_path() { return fs::read_symlink("/proc/self/exe"); }

fs::path source_tree() {
  const fs::path known = find_above("apps/tessera/main.cpp");
  return known.empty() ? known : known.parent_path().parent_path().parent_path();
}

std::string find_python() {
  const char* named = std::getenv("TESSERA_PYTHON");
  if (named && *named) return named;
  const fs::path python = find_above(".venv/bin/python3");
  return python.empty() ? "python3" : python.string();
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

}  // namespace tessera::tool
