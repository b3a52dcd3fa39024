#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <tessera/tensor.hpp>

// Why a kernel row cannot run a problem, as values. src/select/reason_text.cpp turns them into text
// when they are printed.
namespace tessera::planning {

struct Reason {
  enum class Kind : std::uint8_t {
    forced_backend,      // execution.backend names another backend
    not_built,           // this build has no such backend
    missing,             // `what` says what the process lacks
    no_kernel,           // the backend has no family for the operation
    needs_cpu,           // the device is a GPU
    needs_gpu,           // the device is a CPU
    compute_capability,  // expected `limit`, as 90; got `got`
    other_device,        // the tensors are on another device
    dtype,               // of `what`: got `dtype`, supported `dtypes`
    unsupported,         // `what` is present
    required,            // `what` is absent
    multiple,            // `what`: expected a multiple of `limit`, got `got`
    exactly,             // `what`: expected `limit`, got `got`
    at_most,             // `what`: expected at most `limit`, got `got`
    layout,              // `what`: expected the layout that `more` names
  };
  Kind kind{};
  DType dtype = DType::none;
  unsigned dtypes = 0;
  const char* what = "";
  const char* more = "";  // what to change, or the rest of a sentence
  std::int64_t got = 0, limit = 0;
};

/// Collects reasons: all of them for `explain`; only the first one if `all` is false.
class Reasons {
 public:
  explicit Reasons(bool all = true) : all_(all) {}

  void add(const Reason& reason) {
    if (count_ < kMax) std::construct_at(storage_.reasons + count_++, reason);
  }
  void dtype(const char* what, DType got, unsigned supported) {
    add({.kind = Reason::Kind::dtype, .dtype = got, .dtypes = supported, .what = what});
  }
  void unsupported(const char* what, const char* more = "") {
    add({.kind = Reason::Kind::unsupported, .what = what, .more = more});
  }
  void required(const char* what) { add({.kind = Reason::Kind::required, .what = what}); }
  void layout(const char* what, const char* more) {
    add({.kind = Reason::Kind::layout, .what = what, .more = more});
  }
  void unless_multiple(const char* what, std::int64_t got, std::int64_t of) {
    if (got % of != 0) add({.kind = Reason::Kind::multiple, .what = what, .got = got, .limit = of});
  }
  void unless_exactly(const char* what, std::int64_t got, std::int64_t wanted) {
    if (got != wanted)
      add({.kind = Reason::Kind::exactly, .what = what, .got = got, .limit = wanted});
  }
  void unless_at_most(const char* what, std::int64_t got, std::int64_t limit) {
    if (got > limit) add({.kind = Reason::Kind::at_most, .what = what, .got = got, .limit = limit});
  }

  bool none() const { return count_ == 0; }
  /// Whether no further reasons are needed.
  bool enough() const { return !all_ && count_ > 0; }
  std::span<const Reason> list() const { return {storage_.reasons, count_}; }

 private:
  static constexpr std::size_t kMax = 12;
  // Left uninitialised: selection creates one such object per kernel row.
  union Storage {
    Storage() {}  // NOLINT: leaves the reasons uninitialised
    Reason reasons[kMax];
  } storage_;
  std::size_t count_ = 0;
  bool all_;
};

}  // namespace tessera::planning
