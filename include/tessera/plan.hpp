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

/// The operations of this library.
enum class Op : std::uint8_t { matmul, sddmm, spgemm, attention, attention_backward, merge_states };
/// The enumerator's name: "matmul", "attention_backward", ...
TESSERA_EXPORT const char* to_string(Op op);

/// The problem of any operation; the alternatives are in the order of `Op`.
using AnyProblem = std::variant<MatmulProblem, SddmmProblem, SpgemmProblem, AttentionProblem,
                                AttentionBackwardProblem, MergeStatesProblem>;

/// The choice of a kernel and its buffer sizes, from shapes, dtypes and the device alone. A plan is
/// a value: copy it, keep it, and use it from any thread for every problem with its signature.
struct Plan {
  Op op{};
  Backend backend{};
  int kernel = -1;                   ///< index of the kernel row within the backend
  std::string kernel_name;           ///< name of the kernel row
  std::int64_t workspace_bytes = 0;  ///< size of the workspace of `run`
  std::int64_t schedule_bytes = 0;   ///< size of the schedule; 0: `prepare` is not needed
  /// Bytes of the schedule that are dense copies of block-sparse operands; 0: operands are used as
  /// given. With copies, `prepare` reads the operands' values as well and `run` does not.
  std::int64_t expanded_bytes = 0;
  int threads = 0;          ///< of the CPU backend
  double predicted_ms = 0;  ///< by the cost model; an upper bound if the time depends on the lists
  std::string signature;    ///< the planned shapes and dtypes, as text
  /// The library's own data for `prepare` and `run`.
  std::shared_ptr<const planning::Planned> planned{};
};

/// A kernel row that was considered for a problem.
struct Candidate {
  Backend backend{};
  std::string family{};              ///< the kernel family that the row belongs to
  std::string kernel;                ///< the name of the row
  std::string why;                   ///< what the row is good for
  std::vector<std::string> reasons;  ///< why the row cannot run the problem; empty: it can
  double predicted_ms = 0;           ///< by the cost model, if the row can run the problem
  /// Bytes of dense copies of block-sparse operands, if the row computes with them
  /// (`Execution::expand_bytes`); a row may be listed with and without copies.
  std::int64_t expanded_bytes = 0;
};

/// How a kernel was chosen: by the cost model, or by the caller with `Execution::kernel`.
enum class ChosenBy : std::uint8_t { cost_model, execution };
/// "cost model" or "execution.kernel".
TESSERA_EXPORT const char* to_string(ChosenBy chosen_by);

/// Which kernel would run a problem, and why: the answer of `explain`.
struct Explanation {
  Op op{};
  std::string problem;      ///< the problem's signature
  std::string device;       ///< the name of the device
  bool supported = false;   ///< whether a kernel row can run the problem
  Plan plan;                ///< valid if supported
  double useful_flops = 0;  ///< FLOPs, from shapes: an upper bound if the lists decide
  double bytes = 0;         ///< bytes that have to be moved: a lower bound
  /// The chosen row, then the other rows that can run by predicted time, then the rejected rows.
  std::vector<Candidate> candidates;
  ChosenBy chosen_by = ChosenBy::cost_model;
};

/// The explanation as lines for people, as `tessera explain` prints it.
TESSERA_EXPORT std::string to_text(const Explanation& explanation);
/// The explanation as one JSON object.
TESSERA_EXPORT std::string to_json(const Explanation& explanation);

/// Explains which kernel would run a problem on a device, and why the others would not. Only
/// shapes, dtypes, strides and the presence of tensors matter: no data is read, and the device need
/// not be present (`device_preset`). Throws `Error` if the problem is invalid; if no kernel
/// supports it, `Explanation::supported` is false.
TESSERA_EXPORT Explanation explain(const AnyProblem& problem, const DeviceFacts& device,
                                   const Execution& execution = {});

/// Plans a problem for a device, which need not be present. Throws `Error` if the problem is
/// invalid or no kernel supports it; the message then gives the reasons.
TESSERA_EXPORT Plan plan(const AnyProblem& problem, const DeviceFacts& device,
                         const Execution& execution = {});
/// Plans a problem for the device that its tensors are on.
TESSERA_EXPORT Plan plan(const AnyProblem& problem, const Execution& execution = {});

/// Fills the schedule (`Execution::schedule`) from the contents of the problem's lists: row order,
/// splits, transposed lists. It runs on the problem's device without a host sync. Call it once
/// after planning and again whenever the lists change; it is not needed if `Plan::schedule_bytes`
/// is 0. Dense operands and results are not read, so their data may be null. Throws `Error` if the
/// problem does not match the plan.
///
/// With `Plan::expanded_bytes`, it also copies the values of block-sparse operands: call it again
/// whenever these change.
TESSERA_EXPORT void prepare(const Plan& plan, const AnyProblem& problem,
                            const Execution& execution);

/// Runs a planned problem, with the schedule that `prepare` filled if the plan has one. Throws
/// `Error` if the problem does not match the plan or a buffer is too small. Products of two sparse
/// matrices run by `spgemm_symbolic` and `spgemm_numeric` instead.
///
/// With `Plan::expanded_bytes`, the values of block-sparse operands are those that `prepare` read.
/// On a CPU, values at another address are refused. As in every dense product, an infinity or NaN
/// in the other operand reaches results of which no stored block meets it.
TESSERA_EXPORT void run(const Plan& plan, const AnyProblem& problem, const Execution& execution);

/// Plans, prepares and runs a problem of any operation except spgemm, as `attention`, `matmul` and
/// the other calls do.
TESSERA_EXPORT void run(const AnyProblem& problem, const Execution& execution = {});

}  // namespace tessera
