#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/families.hpp"
#include "src/kernels/cost.hpp"
#include "src/kernels/families.hpp"
#include "src/problem/describe.hpp"
#include "src/select/select.hpp"
#include "src/walk/work.hpp"

// Selection for tests: from a problem, with the families of this build.
namespace tessera::planning {

inline Explanation select(const AnyProblem& problem, const DeviceFacts& device,
                          const Execution& execution = {}) {
  return explain(api::families(), Request::of(problem, device, execution));
}

inline Plan choose(const AnyProblem& problem, const DeviceFacts& device,
                   const Execution& execution = {}) {
  return public_plan(api::families(),
                     choose(api::families(), Request::of(problem, device, execution)));
}

/// The rows of a backend, in the order in which Plan::kernel counts them.
inline const std::vector<KernelRow>& rows_of(Backend backend) {
  static const auto tables = [] {
    std::map<Backend, std::vector<KernelRow>> all;
    for (const KernelFamily& family : all_families()) {
      std::vector<KernelRow>& rows = all[family.backend];
      rows.insert(rows.end(), family.rows.begin(), family.rows.end());
    }
    return all;
  }();
  return tables.at(backend);
}

inline const KernelRow& row_named(std::string_view name) {
  return *find_row(all_families(), name).row;
}

inline const KernelFamily& family_of(const KernelRow& row) {
  return *find_row(all_families(), row.name).family;
}

/// The layout of a shape by a row's family; `Own` is the family's type of layout.
template <class Own>
Own layout_of(const KernelRow& row, const AnyShape& shape, const DeviceFacts& device) {
  Reasons reasons;
  return family_of(row).layout(shape, row, device, reasons).template get<Own>();
}

inline double predict_ms(const KernelRow& row, const AnyShape& shape, const DeviceFacts& device) {
  Reasons reasons;
  const KernelFamily& family = family_of(row);
  const Layout layout = family.layout(shape, row, device, reasons);
  return 1e3 * (family.seconds(shape, layout, row, device) + overhead_seconds(device));
}

/// Why a row does not support a problem, in words.
inline std::vector<std::string> rejections(const KernelRow& row, const AnyShape& shape,
                                           const DeviceFacts& device) {
  const Request request{.shape = shape, .device = device, .kernel = row.name, .will_run = false};
  return explain(api::families(), request).candidates.front().reasons;
}

}  // namespace tessera::planning
