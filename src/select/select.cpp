#include "src/select/select.hpp"

#include <algorithm>
#include <string>

#include <tessera/error.hpp>

#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/kernels/cuda/sm90/skinny/plan.hpp"
#include "src/select/workspace.hpp"

namespace tessera::planning {
namespace {

bool has_data(const Operand& o) { return o.dense.data || o.sparse.values.data; }
bool has_data(const MatmulProblem& p) { return has_data(p.a) || has_data(p.b) || p.out.data; }
bool has_data(const SddmmProblem& p) { return has_data(p.a) || has_data(p.b) || p.out.values.data; }
bool has_data(const SpgemmProblem& p) { return has_data(p.a) || has_data(p.b); }
bool has_data(const AttentionProblem& p) { return p.q.data || p.k.data || p.v.data || p.out.data; }
bool has_data(const AttentionBackwardProblem& p) { return has_data(p.forward) || p.dout.data; }
bool has_data(const MergeStatesProblem& p) {
  return p.out.data || std::any_of(p.outs.begin(), p.outs.end(),
                                   [](const Tensor& part) { return part.data != nullptr; });
}

/// The most particular backend first: at equal times it is the one to take.
constexpr Backend kByPreference[] = {Backend::sm90, Backend::sm80, Backend::cpu};

struct Request {
  Op op;
  AnyShape shape;
  DeviceFacts device;
  const Execution& execution;
  bool explains;
  bool will_run;  // false: only shapes were given, so it does not matter what this build contains
  std::vector<Backend> built;

  bool is_built(Backend backend) const {
    return std::find(built.begin(), built.end(), backend) != built.end();
  }
};

/// A candidate and the row behind it: -1 where a backend has none for the op.
struct Ranked {
  Candidate candidate;
  int row = -1;
};

std::string why(const KernelRow& row, const AnyShape& shape) {
  std::string words = row.why;
  if (row.backend != Backend::sm90) return words;
  if (row.family() == "matmul") {
    const auto& s = std::get<static_cast<std::size_t>(Op::matmul)>(shape);
    words += describe(matmul_layout(s, row.tile));
  } else if (row.family() == "skinny") {
    const auto& s = std::get<static_cast<std::size_t>(Op::matmul)>(shape);
    words += describe(skinny_layout(s, row.tile, usual_majors(s)));
  } else if (row.family() == "attention") {
    const auto& s = std::get<static_cast<std::size_t>(Op::attention)>(shape);
    words += describe(attention_layout(s, row.tile));
  }
  return words;
}

Ranked judge(const Request& request, Backend backend, int index) {
  Ranked result{{}, index};
  result.candidate.backend = backend;
  std::vector<std::string>& reasons = result.candidate.reasons;
  if (request.execution.backend && *request.execution.backend != backend) {
    reasons.push_back(std::string("execution.backend asks for ") +
                      to_string(*request.execution.backend));
  }
  if (request.will_run && !request.is_built(backend)) {
    reasons.push_back("not in this build: configure with TESSERA_CUDA=ON");
  }
  if (index < 0) {
    reasons.push_back(std::string("no kernel for ") + to_string(request.op) + " in this version");
    return result;
  }
  const KernelRow& row = kernel_table(backend)[static_cast<std::size_t>(index)];
  if (request.explains) {
    result.candidate.kernel = row.name;
    result.candidate.why = why(row, request.shape);
  }
  for (std::string& reason : rejections(row, request.op, request.shape, request.device)) {
    reasons.push_back(std::move(reason));
  }
  if (reasons.empty()) {
    result.candidate.predicted_ms = predict_ms(row, request.op, request.shape, request.device);
  }
  return result;
}

/// Rows that do other operations are no candidates; a backend without any row says so once.
std::vector<Ranked> enumerate(const Request& request) {
  std::vector<Ranked> all;
  for (Backend backend : kByPreference) {
    const std::span<const KernelRow> rows = kernel_table(backend);
    const std::size_t before = all.size();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].does(request.op)) all.push_back(judge(request, backend, static_cast<int>(i)));
    }
    if (all.size() == before) all.push_back(judge(request, backend, -1));
  }
  return all;
}

bool runs_before(const Ranked& a, const Ranked& b) {
  if (a.candidate.reasons.empty() != b.candidate.reasons.empty()) {
    return a.candidate.reasons.empty();
  }
  return a.candidate.predicted_ms < b.candidate.predicted_ms;
}

/// Starting a team of threads costs microseconds: small problems are quicker on fewer.
int threads_for(const Request& request, int most) {
  constexpr double kFlopsWorthAThread = 1e6, kBytesWorthAThread = 5e5;
  const Work work = work_of(request.op, request.shape);
  const double worth =
      1.0 + std::max(work.flops / kFlopsWorthAThread, work.bytes / kBytesWorthAThread);
  return worth < most ? static_cast<int>(worth) : most;
}

Plan plan_for(const Ranked& best, const Request& request, const std::string& signature) {
  const Backend backend = best.candidate.backend;
  const KernelRow& row = kernel_table(backend)[static_cast<std::size_t>(best.row)];
  const int threads = backend == Backend::cpu ? threads_for(request, request.device.units) : 0;
  const BufferSizes buffers = buffer_sizes(row, request.op, request.shape, threads);
  return {.op = request.op,
          .backend = backend,
          .kernel = best.row,
          .kernel_name = row.name,
          .workspace_bytes = buffers.workspace,
          .schedule_bytes = buffers.schedule,
          .threads = threads,
          .predicted_ms = best.candidate.predicted_ms,
          .signature = signature};
}

Request request_of(const AnyProblem& problem, const DeviceFacts& device, const Execution& execution,
                   bool explains) {
  if (execution.threads < 0) {
    throw Error(ErrorCode::invalid_argument,
                "execution: threads: expected 0 or more, got " + std::to_string(execution.threads));
  }
  Request request{op_of(problem), shape_of(problem), device, execution, explains,
                  true,           built_backends()};
  request.will_run = std::visit([](const auto& p) { return has_data(p); }, problem);
  // Tensors without data live nowhere yet: the device asked about is theirs.
  if (!request.will_run) std::visit([&](auto& s) { s.device = {device.kind, 0}; }, request.shape);
  if (device.kind == DeviceKind::cpu) {
    request.device.units = std::max(execution.threads > 0 ? execution.threads : device.units, 1);
  }
  return request;
}

}  // namespace

Explanation select(const AnyProblem& problem, const DeviceFacts& device,
                   const Execution& execution) {
  const Request request = request_of(problem, device, execution, true);
  std::vector<Ranked> ranked = enumerate(request);
  std::stable_sort(ranked.begin(), ranked.end(), runs_before);

  const Work work = work_of(request.op, request.shape);
  Explanation result{.op = request.op,
                     .problem = describe(request.op, request.shape),
                     .device = device.name,
                     .supported = ranked.front().candidate.reasons.empty(),
                     .plan = {},
                     .useful_flops = work.flops,
                     .bytes = work.bytes,
                     .candidates = {}};
  if (result.supported) result.plan = plan_for(ranked.front(), request, result.problem);
  for (Ranked& r : ranked) result.candidates.push_back(std::move(r.candidate));
  return result;
}

Plan choose(const AnyProblem& problem, const DeviceFacts& device, const Execution& execution) {
  const Request request = request_of(problem, device, execution, false);
  const std::vector<Ranked> ranked = enumerate(request);
  const auto best = std::min_element(ranked.begin(), ranked.end(), runs_before);
  if (!best->candidate.reasons.empty())
    throw Error(ErrorCode::unsupported, to_text(select(problem, device, execution)));
  return plan_for(*best, request, describe(request.op, request.shape));
}

}  // namespace tessera::planning
