#pragma once

#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/plan/select.hpp"
#include "src/plan/tile_table.hpp"
#include "src/plan/workspace.hpp"

// Products by a row of the test's choice, whatever the cost model thinks.
namespace tessera::gpu_test {

/// The rows of one family.
inline std::vector<int> rows_of(const std::string& family) {
  std::vector<int> rows;
  const auto table = planning::kernel_table(Backend::sm90);
  for (std::size_t i = 0; i < table.size(); ++i)
    if (table[i].family() == family) rows.push_back(static_cast<int>(i));
  return rows;
}

inline std::string name_of(int row) {
  return planning::kernel_table(Backend::sm90)[static_cast<std::size_t>(row)].name;
}

inline void run_by(int row, const MatmulProblem& problem, const Execution& execution = {}) {
  Plan made = plan(problem, execution);
  const planning::KernelRow& chosen =
      planning::kernel_table(Backend::sm90)[static_cast<std::size_t>(row)];
  const planning::BufferSizes sizes =
      planning::buffer_sizes(chosen, Op::matmul, planning::shape_of(AnyProblem(problem)), 0);
  made.kernel = row;
  made.kernel_name = chosen.name;
  made.workspace_bytes = sizes.workspace;
  made.schedule_bytes = sizes.schedule;
  run(made, problem, execution);
}

}  // namespace tessera::gpu_test
