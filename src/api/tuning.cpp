#include "src/api/tuning.hpp"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <system_error>

#include <tessera/error.hpp>

namespace tessera::api {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxBytes = std::uintmax_t{16} << 20;

/// The path in TESSERA_TUNING, if it is set; an empty path means no file.
std::optional<std::string> named_by_user() {
  const char* value = std::getenv("TESSERA_TUNING");
  return value ? std::optional<std::string>(value) : std::nullopt;
}

/// The default path, in the user's configuration folder; empty if there is no such folder.
std::string usual_path(const std::string& device) {
  const std::string name = planning::tuning_file_name(device);
  // The XDG specification says to ignore relative paths.
  const char* settings = std::getenv("XDG_CONFIG_HOME");
  if (settings && *settings == '/') return fs::path(settings) / "tessera" / name;
  const char* home = std::getenv("HOME");
  return home && *home ? fs::path(home) / ".config" / "tessera" / name : fs::path();
}

/// Reads a regular file. Throws Error with the reason if that fails.
std::string read_file(const std::string& path) {
  std::error_code error;
  const auto refuse = [](const std::string& why) -> void { throw Error(ErrorCode::io, why); };
  // Opening a pipe would block until there is a writer.
  if (!fs::is_regular_file(path, error)) refuse(error ? error.message() : "not a regular file");
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error) refuse(error.message());
  if (bytes > kMaxBytes) refuse("larger than " + std::to_string(kMaxBytes) + " bytes");
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!file) refuse("cannot be read");
  return text;
}

planning::Tuning load(const std::string& device) {
  planning::Tuning tuning;
  TuningFile& file = tuning.file;
  const auto named = named_by_user();
  file.path = named ? *named : usual_path(device);
  if (file.path.empty()) return tuning;
  std::error_code error;
  file.found = fs::exists(file.path, error);
  if (!file.found) {
    if (named) file.ignored = "no such file";
    return tuning;
  }
  try {
    tuning.rows = planning::parse_tuning(planning::all_families(), read_file(file.path), device);
    file.problems = static_cast<std::int64_t>(tuning.rows.size());
  } catch (const std::exception& reason) {
    file.ignored = reason.what();
  }
  return tuning;
}

/// The tuning of one device, in a linked list that only grows, so that readers need no lock.
struct Entry {
  std::string device;
  planning::Tuning tuning;
  const Entry* next;
};

const planning::Tuning* find(const Entry* entry, const std::string& device) {
  for (; entry; entry = entry->next)
    if (entry->device == device) return &entry->tuning;
  return nullptr;
}

}  // namespace

const planning::Tuning& tuning_of(const std::string& device) {
  static std::atomic<const Entry*> first = nullptr;
  static std::mutex loading;
  if (const planning::Tuning* known = find(first.load(std::memory_order_acquire), device)) {
    return *known;
  }
  const std::lock_guard lock(loading);
  const Entry* head = first.load(std::memory_order_acquire);
  if (const planning::Tuning* known = find(head, device)) return *known;  // another thread's
  // Never freed, as plans may be made while the process exits.
  const auto* entry = new Entry{device, load(device), head};
  first.store(entry, std::memory_order_release);
  return entry->tuning;
}

}  // namespace tessera::api
