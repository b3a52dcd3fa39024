#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <tessera/attention.hpp>
#include <tessera/device.hpp>
#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/matmul.hpp>
#include <tessera/spgemm.hpp>

namespace tessera {

namespace planning {
struct Planned;
}

enum class Op : std::uint8_t { matmul, sddmm, spgemm, attention, attention_backward, merge_states };
TESSERA_EXPORT const char* to_string(Op op);

/// Any problem this library solves.
using AnyProblem = std::variant<MatmulProblem, SddmmProblem, SpgemmProblem, AttentionProblem,
                                AttentionBackwardProblem, MergeStatesProblem>;

/// Everything that follows from shapes, dtypes and the device alone. A plain value: copy it, keep
/// it, use it from any thread for every problem of the same signature.
struct Plan {
  Op op{};
  Backend backend{};
  int kernel = -1;  ///< which of the backend's kernel rows
  std::string kernel_name;
  std::int64_t workspace_bytes = 0;  ///< what `run` needs
  std::int64_t schedule_bytes = 0;   ///< what `prepare` fills; 0: nothing to prepare
  int threads = 0;                   ///< CPU backend
  double predicted_ms = 0;           ///< the cost model's guess, an upper bound where data decides
  std::string signature;             ///< shapes and dtypes planned for, in words
  /// What the library worked out for `run` and `prepare`; the fields above say the same to people.
  std::shared_ptr<const planning::Planned> planned{};
};

/// One kernel that was looked at for a problem.
struct Candidate {
  Backend backend{};
  std::string family{};  ///< the kernel family that the row belongs to
  std::string kernel;
  std::string why;                   ///< what the kernel is for
  std::vector<std::string> reasons;  ///< why not; empty: it could run
  double predicted_ms = 0;
};

/// The file of rows that were measured to be the fastest on a device (docs/tuning.md). Read once a
/// process and device.
struct TuningFile {
  std::string path;           ///< where it is looked for; empty: nowhere
  bool found = false;         ///< something is there
  std::string ignored;        ///< why it is of no use; empty: in use, where found
  std::int64_t problems = 0;  ///< how many it has a row for
};
/// "PATH: in use (3 problems)", "PATH: ignored: line 7: ...", "PATH: not there", "none".
TESSERA_EXPORT std::string to_string(const TuningFile& file);
/// Throws `Error` with the line and what is wrong there, if a tuning file of this text would be
/// ignored on the device of that name.
TESSERA_EXPORT void check_tuning(const std::string& text, const std::string& device);

/// Who chose a kernel: the caller by `Execution::kernel`, the tuning file, or the cost model.
enum class ChosenBy : std::uint8_t { cost_model, tuning_file, execution };
TESSERA_EXPORT const char* to_string(ChosenBy chosen_by);

/// The answer to "what would run, and why": the chosen plan, the others in order, those rejected.
struct Explanation {
  Op op{};
  std::string problem;  ///< the problem in words
  std::string device;
  bool supported = false;
  Plan plan;  ///< valid where supported
  double useful_flops = 0;
  double bytes = 0;
  std::vector<Candidate> candidates;  ///< the chosen one, others by predicted time, rejected ones
  ChosenBy chosen_by = ChosenBy::cost_model;
  std::string preferred{};  ///< the row that the tuning file names for the problem; empty: none
  TuningFile tuning{};      ///< that of the device
};

TESSERA_EXPORT std::string to_text(const Explanation& explanation);
TESSERA_EXPORT std::string to_json(const Explanation& explanation);

/// Reads no data and needs no device: shapes, dtypes, strides and presence only. Throws `Error`
/// only where the problem itself is invalid.
TESSERA_EXPORT Explanation explain(const AnyProblem& problem, const DeviceFacts& device,
                                   const Execution& execution = {});

/// The same, as a plan; throws `Error` with every reason where no kernel takes the problem.
TESSERA_EXPORT Plan plan(const AnyProblem& problem, const DeviceFacts& device,
                         const Execution& execution = {});
/// For the device that the problem's tensors are on.
TESSERA_EXPORT Plan plan(const AnyProblem& problem, const Execution& execution = {});

/// Reads the pattern's contents and writes what follows from them (row order, splits, transposed
/// lists) into execution.schedule, on the device, without a host sync. Again whenever the pattern
/// changes. The memory of dense operands and results is not read: their data may be null.
TESSERA_EXPORT void prepare(const Plan& plan, const AnyProblem& problem,
                            const Execution& execution);

/// Runs. `execution.schedule` is what `prepare` wrote; a problem whose plan asks for none needs
/// none.
TESSERA_EXPORT void run(const Plan& plan, const AnyProblem& problem, const Execution& execution);

/// Plans, prepares and runs: `attention`, `matmul` and the others for any problem but `spgemm`.
TESSERA_EXPORT void run(const AnyProblem& problem, const Execution& execution = {});

}  // namespace tessera
