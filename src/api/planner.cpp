#include "src/api/planner.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include <tessera/error.hpp>

#include "src/api/families.hpp"

namespace tessera::api {
namespace {

/// The fields of Execution that influence a plan.
struct Wishes {
  std::optional<Backend> backend;
  std::string kernel;
  int threads = 0;

  bool match(const Execution& e) const {
    return backend == e.backend && threads == e.threads && kernel == e.kernel;
  }
};

/// A direct-mapped cache of plans by shape.
struct Remembered {
  struct Entry {
    std::shared_ptr<const planning::Planned> planned;
    int device = 0;
    Wishes wishes;
  };
  std::array<Entry, 64> entries;

  Entry& place_of(const planning::AnyShape& shape) {
    return entries[planning::hash_of(shape) % entries.size()];
  }
};

}  // namespace

const DeviceFacts& facts_of(const Device& device) {
  // A linked list that only grows, so that readers need no lock.
  struct Entry {
    Device device;
    DeviceFacts facts;
    const Entry* next;
  };
  static std::atomic<const Entry*> first = nullptr;
  static std::mutex reading;
  const auto find = [&](const Entry* entry) {
    while (entry && entry->device != device) entry = entry->next;
    return entry;
  };
  if (const Entry* known = find(first.load(std::memory_order_acquire))) return known->facts;
  const std::lock_guard lock(reading);
  const Entry* head = first.load(std::memory_order_acquire);
  if (const Entry* known = find(head)) return known->facts;
  const auto* entry = new Entry{device, device_facts(device), head};
  first.store(entry, std::memory_order_release);
  return entry->facts;
}

std::shared_ptr<const planning::Planned> plan_for(const planning::AnyShape& shape,
                                                  const Execution& execution) {
  thread_local Remembered remembered;
  Remembered::Entry& entry = remembered.place_of(shape);
  const Device device = planning::device_of(shape);
  if (entry.planned && entry.device == device.index && entry.wishes.match(execution) &&
      entry.planned->shape == shape) {
    return entry.planned;
  }
  const DeviceFacts& facts = facts_of(device);
  auto planned = planning::choose(families(), planning::Request::of(shape, facts, execution));
  entry = {planned, device.index, {execution.backend, execution.kernel, execution.threads}};
  return planned;
}

}  // namespace tessera::api
