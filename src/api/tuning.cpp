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

/// TESSERA_TUNING, where it is set: a path, or nothing for no file.
std::optional<std::string> named_by_user() {
  const char* value = std::getenv("TESSERA_TUNING");
  return value ? std::optional<std::string>(value) : std::nullopt;
}

/// In the user's folder for settings; empty where there is none.
std::string usual_path(const std::string& device) {
  const std::string name = planning::tuning_file_name(device);
  // The rules for that variable say that a relative path counts for nothing.
  const char* settings = std::getenv("XDG_CONFIG_HOME");
  if (settings && *settings == '/') return fs::path(settings) / "tessera" / name;
  const char* home = std::getenv("HOME");
  return home && *home ? fs::path(home) / ".config" / "tessera" / name : fs::path();
}

/// The whole of a regular file; throws Error with why not.
std::string read_file(const std::string& path) {
  std::error_code error;
  const auto refuse = [](const std::string& why) -> void { throw Error(ErrorCode::io, why); };
  // Never opens what would wait for a writer.
  if (!fs::is_regular_file(path, error)) refuse(error ? error.message() : "it is no regular file");
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error) refuse(error.message());
  if (bytes > kMaxBytes) refuse("it has more than " + std::to_string(kMaxBytes) + " bytes");
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!file) refuse("it cannot be read");
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
    if (named) file.ignored = "there is no such file";
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

/// One device's, in a list that only grows: readers need no lock.
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
  // Lives as long as the process: plans may be made while it ends.
  const auto* entry = new Entry{device, load(device), head};
  first.store(entry, std::memory_order_release);
  return entry->tuning;
}

}  // namespace tessera::api
