#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <tessera/device.hpp>
#include <tessera/plan.hpp>

#include "src/kernels/reasons.hpp"
#include "src/kernels/row.hpp"
#include "src/problem/expand.hpp"
#include "src/problem/shape.hpp"

// A kernel family: kernels that share one source and differ by tile and type. Each family fills in
// one record, in the plan.cpp of its folder. Only the list in src/kernels/families.cpp knows
// families by name.
namespace tessera::planning {

/// What a family computes once for a problem, kernel row and device: a value of a type that the
/// family defines. The cost, the buffers, `explain` and the launch read it.
class Layout {
 public:
  Layout() = default;
  template <class T>
  requires(!std::is_same_v<T, Layout>) Layout(const T& value)
      : tag_(&kTag<T>) {  // NOLINT: implicit on purpose
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kBytes && alignof(T) <= 16);
    std::memcpy(bytes_, &value, sizeof(T));
  }
  /// Null if the value has another type.
  template <class T>
  const T* get_if() const {
    return tag_ == &kTag<T> ? std::launder(reinterpret_cast<const T*>(bytes_)) : nullptr;
  }
  template <class T>
  const T& get() const {
    if (const T* value = get_if<T>()) return *value;
    throw std::bad_variant_access();
  }

 private:
  static constexpr std::size_t kBytes = 320;
  template <class T>
  static constexpr char kTag = 0;
  const void* tag_ = nullptr;
  alignas(16) std::byte bytes_[kBytes];
};

/// Bytes of the workspace that `run` uses and of the schedule that `prepare` writes.
struct BufferSizes {
  std::int64_t workspace = 0, schedule = 0;
  friend bool operator==(const BufferSizes&, const BufferSizes&) = default;
};

struct Planned;

/// Arguments of one run, or one preparation, of a planned and checked problem.
struct Call {
  const Planned& planned;
  const AnyProblem& problem;
  const AnyShape& shape;  // equal to the planned shape; has this problem's device and scale
  void* workspace = nullptr;
  void* schedule = nullptr;
  void* stream = nullptr;
  const void* result = nullptr;  // spgemm: its result, which is not part of the problem
};

struct KernelFamily {
  std::string_view name;  // e.g. "sm90_attention", the prefix of its rows' names
  Backend backend{};
  Op op{};
  /// Whether plans depend on MatmulShape::blas. Plans of other families serve every epilogue and
  /// every stride of dense operands.
  bool depends_on_blas = false;
  /// Whether its kernels clear the rows of a result that belong to no sequence or group. For other
  /// families a kernel of its own does.
  bool clears_rest = false;
  std::span<const KernelRow> rows;

  /// Adds the reasons why a row cannot run a problem. Device and dtypes have been checked before.
  void (*refuse)(const AnyShape&, const KernelRow&, const DeviceFacts&, Reasons&) = nullptr;
  /// Computes the layout. May add reasons that depend on it.
  Layout (*layout)(const AnyShape&, const KernelRow&, const DeviceFacts&, Reasons&) = nullptr;
  double (*seconds)(const AnyShape&, const Layout&, const KernelRow&, const DeviceFacts&) = nullptr;
  /// `threads`: on the CPU.
  BufferSizes (*buffers)(const AnyShape&, const Layout&, const KernelRow&, int threads) = nullptr;
  /// Text for `explain`, after the row's `why`: "; ..." for each unusual property.
  std::string (*describe)(const AnyShape&, const Layout&) = nullptr;

  /// Null if this build does not contain the backend.
  void (*prepare)(const Call&) = nullptr;
  void (*launch)(const Call&) = nullptr;
  /// Null where nothing can be missing. What the process lacks to launch, in words; null: nothing.
  const char* (*missing)() = nullptr;
  /// Null where calls use all of the planned workspace. The bytes that this call uses, at most the
  /// planned ones; the call has no workspace yet.
  std::int64_t (*workspace)(const Call&) = nullptr;
};

/// A plan as the library keeps it: everything that `run` and `prepare` need, computed once.
struct Planned {
  const KernelFamily* family = nullptr;
  const KernelRow* row = nullptr;
  AnyShape shape;
  Layout layout;
  BufferSizes buffers;
  int threads = 0;
  double predicted_ms = 0;

  /// With dense copies of operands: the plan of the product that the kernel computes, whose family,
  /// row, layout, threads and time this plan has as well. Its schedule follows the copies.
  std::shared_ptr<const Planned> dense{};
  Expansion expansion{};
  std::int64_t expanded_bytes = 0;
};

/// Makes the record of a family from a class F with the types F::Shape and F::Layout and the static
/// functions refuse, layout, seconds, buffers and describe; a missing one is a compile error.
template <class F>
constexpr KernelFamily make_family(std::string_view name, Backend backend, Op op,
                                   std::span<const KernelRow> rows) {
  using Shape = typename F::Shape;
  using Own = typename F::Layout;
  KernelFamily family{.name = name, .backend = backend, .op = op, .rows = rows};
  family.refuse = [](const AnyShape& shape, const KernelRow& row, const DeviceFacts& device,
                     Reasons& reasons) { F::refuse(std::get<Shape>(shape), row, device, reasons); };
  family.layout = [](const AnyShape& shape, const KernelRow& row, const DeviceFacts& device,
                     Reasons& reasons) -> Layout {
    return F::layout(std::get<Shape>(shape), row, device, reasons);
  };
  family.seconds = [](const AnyShape& shape, const Layout& layout, const KernelRow& row,
                      const DeviceFacts& device) -> double {
    return F::seconds(std::get<Shape>(shape), layout.get<Own>(), row, device);
  };
  family.buffers = [](const AnyShape& shape, const Layout& layout, const KernelRow& row,
                      int threads) -> BufferSizes {
    return F::buffers(std::get<Shape>(shape), layout.get<Own>(), row, threads);
  };
  family.describe = [](const AnyShape& shape, const Layout& layout) -> std::string {
    return F::describe(std::get<Shape>(shape), layout.get<Own>());
  };
  return family;
}

/// The layout of families that decide nothing beyond the kernel row.
struct NoLayout {};

}  // namespace tessera::planning
