#include "src/select/select.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <tessera/error.hpp>

#include "src/core/check.hpp"
#include "src/kernels/cost.hpp"
#include "src/kernels/families.hpp"
#include "src/problem/describe.hpp"
#include "src/problem/place.hpp"
#include "src/select/reason_text.hpp"
#include "src/walk/work.hpp"

namespace tessera {

const char* to_string(ChosenBy chosen_by) {
  switch (chosen_by) {
    case ChosenBy::cost_model:
      return "cost model";
    case ChosenBy::execution:
      return "execution.kernel";
  }
  return "?";
}

namespace planning {
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

void refuse_backend(const KernelFamily& family, const Request& request, Reasons& reasons) {
  using Kind = Reason::Kind;
  if (request.backend && *request.backend != family.backend)
    reasons.add({.kind = Kind::forced_backend, .got = static_cast<int>(*request.backend)});
  if (request.will_run && !family.launch) reasons.add({.kind = Kind::not_built});
}

void refuse_device(Backend backend, const Request& request, Reasons& reasons) {
  using Kind = Reason::Kind;
  const DeviceFacts& device = request.device;
  const int capability = device.compute_capability;
  if (backend == Backend::cpu && device.kind != DeviceKind::cpu) {
    reasons.add({.kind = Kind::needs_cpu});
  } else if (backend != Backend::cpu && device.kind != DeviceKind::cuda) {
    reasons.add({.kind = Kind::needs_gpu});
  } else if (backend == Backend::sm90 && capability / 10 != 9) {
    reasons.add({.kind = Kind::compute_capability, .more = "9.x", .got = capability});
  } else if (backend == Backend::sm80 && capability < 80) {
    reasons.add({.kind = Kind::compute_capability, .more = "8.0 or later", .got = capability});
  }
  const DeviceKind tensors = device_of(request.shape).kind;
  if (tensors != device.kind)
    reasons.add(
        {.kind = Kind::other_device, .what = tensors == DeviceKind::cpu ? "the CPU" : "a GPU"});
}

/// Adds the reasons that are the same for all rows of a family.
void refuse_family(const KernelFamily& family, const Request& request, Reasons& reasons) {
  refuse_backend(family, request, reasons);
  refuse_device(family.backend, request, reasons);
}

/// Adds a reason for each dtype of the problem that a row does not support.
void refuse_dtypes(const AnyShape& shape, const KernelRow& row, Reasons& reasons) {
  const unsigned supported = row.dtypes;
  const auto in = [&](const char* name, DType dtype) {
    if (!(core::dtypes({dtype}) & supported)) reasons.dtype(name, dtype, supported);
  };
  const auto out = [&](DType dtype) {
    if (!(core::dtypes({dtype}) & core::kFloats)) reasons.dtype("out", dtype, core::kFloats);
  };
  std::visit(
      [&](const auto& s) {
        if constexpr (requires { s.a; }) {
          in("a", s.a.dtype);
          if (s.b.dtype != s.a.dtype) in("b", s.b.dtype);
          if constexpr (requires { s.out.dtype; }) {
            out(s.out.dtype);
          } else if constexpr (requires { s.out; }) {
            out(s.out);
          }
        } else {
          constexpr bool kMerges = requires { s.parts; };
          in(kMerges ? "outs" : "q, k and v", s.dtype);
          if constexpr (requires { s.narrow_kv; }) {
            if (s.narrow_kv != DType::none && !(core::dtypes({s.narrow_kv}) & row.narrow_keys))
              reasons.dtype("k and v", s.narrow_kv, supported | row.narrow_keys);
          }
          out(s.out);
        }
      },
      shape);
}

/// A row with its layout and predicted time.
struct Judged {
  const KernelFamily* family = nullptr;
  const KernelRow* row = nullptr;
  Layout layout;
  double predicted_ms = 0;
};

/// The predicted time in milliseconds, including launch overhead.
double predicted_ms(double seconds, const DeviceFacts& device) {
  return 1e3 * (seconds + overhead_seconds(device));
}

/// The same request for another shape, which is not expanded.
Request request_for(const Request& request, const AnyShape& shape) {
  return {.shape = shape,
          .device = request.device,
          .backend = request.backend,
          .kernel = request.kernel,
          .will_run = request.will_run};
}

/// Adds the reasons that do not depend on the layout. Returns false if no more are needed.
bool may_run(const KernelFamily& family, const KernelRow& row, const Request& request,
             Reasons& reasons) {
  refuse_family(family, request, reasons);
  if (reasons.enough()) return false;
  refuse_dtypes(request.shape, row, reasons);
  if (reasons.enough()) return false;
  family.refuse(request.shape, row, request.device, reasons);
  // Last, as looking may load a library.
  if (reasons.none() && request.will_run && family.missing) {
    if (const char* what = family.missing())
      reasons.add({.kind = Reason::Kind::missing, .what = what});
  }
  return !reasons.enough();
}

/// Computes layout and time of a row, or adds the reasons why the row cannot run the problem.
void judge(Judged& at, const Request& request, Reasons& reasons) {
  const KernelFamily& family = *at.family;
  const DeviceFacts& device = request.device;
  if (!may_run(family, *at.row, request, reasons)) return;
  at.layout = family.layout(request.shape, *at.row, device, reasons);
  if (!reasons.none()) return;
  at.predicted_ms = predicted_ms(family.seconds(request.shape, at.layout, *at.row, device), device);
}

/// Finds the fastest row. Among rows with equal times it is the first one.
class Fastest {
 public:
  explicit Fastest(const Request& request) : request_(request) {}
  void consider(const KernelFamily& family) {
    Reasons reasons(false);
    refuse_family(family, request_, reasons);
    if (!reasons.none()) return;
    for (const KernelRow& row : family.rows) consider(family, row);
  }
  const Judged* found() const { return best_->family ? best_ : nullptr; }

 private:
  void consider(const KernelFamily& family, const KernelRow& row) {
    at_->family = &family;
    at_->row = &row;
    Reasons reasons(false);
    judge(*at_, request_, reasons);
    if (!reasons.none()) return;
    if (!best_->family || at_->predicted_ms < best_->predicted_ms) std::swap(best_, at_);
  }

  const Request& request_;
  Judged two_[2];  // the fastest row and the current one; swapped to avoid copies of layouts
  Judged *best_ = &two_[0], *at_ = &two_[1];
};

/// The number of CPU threads for a problem. Starting threads costs microseconds, so small problems
/// run faster on fewer.
int threads_for(const Request& request) {
  constexpr double kFlopsWorthAThread = 1e6, kBytesWorthAThread = 5e5;
  const Work work = work_of(request.shape);
  const double worth =
      1.0 + std::max(work.flops / kFlopsWorthAThread, work.bytes / kBytesWorthAThread);
  return worth < request.device.units ? static_cast<int>(worth) : request.device.units;
}

std::shared_ptr<const Planned> planned_with(const Judged& best, const Request& request) {
  auto planned = std::make_shared<Planned>();
  planned->family = best.family;
  planned->row = best.row;
  planned->shape = request.shape;
  planned->layout = best.layout;
  planned->threads = best.family->backend == Backend::cpu ? threads_for(request) : 0;
  planned->buffers = best.family->buffers(request.shape, best.layout, *best.row, planned->threads);
  planned->predicted_ms = best.predicted_ms;
  return planned;
}

/// The row that the request names. Throws if the operation has no row of that name.
FoundRow forced_row(Families families, const Request& request) {
  const Op op = op_of(request.shape);
  const FoundRow found = find_row(families, request.kernel);
  if (found && found.family->op == op) return found;
  std::string known;
  for (const KernelFamily& family : families) {
    if (family.op != op) continue;
    for (const KernelRow& row : family.rows)
      known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw Error(ErrorCode::invalid_argument,
              core::words("execution: kernel: expected a row for ", to_string(op), " (", known,
                          "), got '", request.kernel.substr(0, 100), "'"));
}

struct Ranked {
  Judged judged;
  Candidate candidate;
  double miss = 0;  // how far the row is from supporting the problem; 0 if it does
};

/// The number of reasons, plus a small term for how far numbers are off, relative to their limit.
/// Of a family's rows, those for other dtypes are the farthest.
double miss_of(const Reasons& reasons) {
  double miss = 0;
  for (const Reason& reason : reasons.list()) {
    miss += reason.kind == Reason::Kind::dtype ? 1.5 : 1;
    if (reason.limit > 0) {
      const double off = std::abs(static_cast<double>(reason.got - reason.limit));
      miss += 1e-3 * std::min(off / static_cast<double>(reason.limit), 100.0);
    }
  }
  return miss;
}

/// All rows of the operation with the texts of their reasons.
std::vector<Ranked> judge_all(Families families, const Request& request) {
  const Op op = op_of(request.shape);
  std::vector<Ranked> all;
  for (const KernelFamily& family : families) {
    if (family.op != op) continue;
    for (const KernelRow& row : family.rows) {
      Ranked one{{&family, &row, {}, 0}, {}};
      Reasons reasons;
      judge(one.judged, request, reasons);
      Candidate& c = one.candidate;
      c.backend = family.backend;
      c.family = family.name;
      c.kernel = row.name;
      c.why = row.why;
      for (const Reason& reason : reasons.list())
        c.reasons.push_back(to_text(reason, request.device));
      c.predicted_ms = one.judged.predicted_ms;
      one.miss = miss_of(reasons);
      if (reasons.none()) c.why += family.describe(request.shape, one.judged.layout);
      all.push_back(std::move(one));
    }
  }
  return all;
}

/// All candidates: the supported ones by predicted time, then the others, the nearest miss first.
/// A backend without a family for the operation gets one candidate. If the plan is expanded, rows
/// that support the expanded product are listed as well.
std::vector<Ranked> rank(Families families, const Request& request, const Planned* planned) {
  std::vector<Ranked> all = judge_all(families, request);
  for (const Backend backend : {Backend::sm90, Backend::sm80, Backend::cpu}) {
    if (std::any_of(all.begin(), all.end(),
                    [&](const Ranked& r) { return r.candidate.backend == backend; }))
      continue;
    Reasons reasons;
    reasons.add({.kind = Reason::Kind::no_kernel, .what = to_string(op_of(request.shape))});
    Ranked none;
    none.candidate.backend = backend;
    none.candidate.family = to_string(backend);
    none.miss = miss_of(reasons);
    none.candidate.reasons.push_back(to_text(reasons.list().front(), request.device));
    all.push_back(std::move(none));
  }
  if (planned && planned->dense) {
    for (Ranked& one : judge_all(families, request_for(request, planned->dense->shape))) {
      if (!one.candidate.reasons.empty()) continue;
      one.candidate.expanded_bytes = planned->expanded_bytes;
      all.push_back(std::move(one));
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) {
    const bool first = a.candidate.reasons.empty(), second = b.candidate.reasons.empty();
    if (first != second) return first;
    return first ? a.candidate.predicted_ms < b.candidate.predicted_ms : a.miss < b.miss;
  });
  return all;
}

[[noreturn]] void refuse_forced(const Judged& at, const Request& request, const Reasons& reasons) {
  std::string all;
  for (const Reason& reason : reasons.list())
    all += (all.empty() ? "" : "; ") + to_text(reason, request.device);
  throw Error(ErrorCode::unsupported,
              core::words("execution: kernel: ", at.row->name, " does not support ",
                          describe(request.shape), ": ", all));
}

/// The plan for the given operands; null if no row, or not the one that the request names, supports
/// them.
std::shared_ptr<const Planned> choose_given(Families families, const Request& request) {
  if (!request.kernel.empty()) {
    const FoundRow named = forced_row(families, request);
    Judged at{named.family, named.row, {}, 0};
    Reasons reasons(false);
    judge(at, request, reasons);
    return reasons.none() ? planned_with(at, request) : nullptr;
  }
  const Op op = op_of(request.shape);
  Fastest fastest(request);
  for (const KernelFamily& family : families)
    if (family.op == op) fastest.consider(family);
  const Judged* best = fastest.found();
  return best ? planned_with(*best, request) : nullptr;
}

/// The fastest plan with dense copies; null if there is none.
std::shared_ptr<const Planned> choose_expanded(Families families, const Request& request) {
  std::shared_ptr<Planned> best;
  for (const ExpandedShape& expanded : request.expanded) {
    const auto dense = choose_given(families, request_for(request, expanded.shape));
    if (!dense || (best && best->predicted_ms <= dense->predicted_ms)) continue;
    best = std::make_shared<Planned>(*dense);
    best->dense = dense;
    best->expansion = expanded.expansion;
  }
  if (!best) return nullptr;
  best->shape = request.shape;
  const auto& shape = std::get<MatmulShape>(request.shape);
  core::Carver carver;
  carve_expanded(carver, shape, best->expansion, best->dense->buffers.schedule);
  best->buffers.schedule = carver.used();
  best->expanded_bytes = copy_bytes(shape, best->expansion);
  return best;
}

/// The plan with the shorter predicted time, with or without dense copies; null if there is none.
/// On a GPU a copy has to win by something: the library that usually multiplies it takes 4 us more
/// of the host's time than our rows.
std::shared_ptr<const Planned> choose_any(Families families, const Request& request) {
  auto given = choose_given(families, request);
  auto expanded = choose_expanded(families, request);
  if (!given || !expanded) return given ? given : expanded;
  constexpr double kLeastGainMs = 0.6e-3;
  const double gain = request.device.kind == DeviceKind::cuda ? kLeastGainMs : 0;
  return expanded->predicted_ms < given->predicted_ms - gain ? expanded : given;
}

/// Lists the expanded shapes whose copies take at most `limit` bytes.
void add_expansions(Request& request, const AnyProblem& any, std::int64_t limit) {
  if (limit < 0) {
    throw Error(ErrorCode::invalid_argument,
                "execution: expand_bytes: expected 0 or more, got " + std::to_string(limit));
  }
  const auto* const problem = std::get_if<MatmulProblem>(&any);
  if (!problem || limit == 0) return;
  const auto& shape = std::get<MatmulShape>(request.shape);
  for (const Expansion& expansion : expansions_of(shape)) {
    const std::int64_t bytes = copy_bytes(shape, expansion);
    // An empty matrix has nothing to copy.
    if (bytes == 0 || bytes > std::min(limit, core::kMaxSize)) continue;
    request.expanded.push_back(
        {expansion,
         expanded_shape(expanded_problem(*problem, shape, expansion), shape, expansion)});
  }
}

}  // namespace

Request Request::of(const AnyShape& shape, const DeviceFacts& device, const Execution& execution) {
  if (execution.threads < 0) {
    throw Error(ErrorCode::invalid_argument,
                "execution: threads: expected 0 or more, got " + std::to_string(execution.threads));
  }
  Request request{
      .shape = shape, .device = device, .backend = execution.backend, .kernel = execution.kernel};
  if (device.kind == DeviceKind::cpu) {
    request.device.units = std::max(execution.threads > 0 ? execution.threads : device.units, 1);
  }
  return request;
}

Request Request::with_expansions(const AnyProblem& problem, const AnyShape& shape,
                                 const DeviceFacts& device, const Execution& execution) {
  Request request = of(shape, device, execution);
  add_expansions(request, problem, execution.expand_bytes);
  return request;
}

Request Request::of(const AnyProblem& problem, const DeviceFacts& device,
                    const Execution& execution) {
  if (std::visit([](const auto& p) { return has_data(p); }, problem))
    return with_expansions(problem, shape_of(problem), device, execution);
  const AnyProblem placed = on_device(problem, {device.kind, 0});
  Request request = with_expansions(placed, shape_of(placed), device, execution);
  request.will_run = false;
  return request;
}

std::shared_ptr<const Planned> choose(Families families, const Request& request) {
  if (auto planned = choose_any(families, request)) return planned;
  if (!request.kernel.empty()) {
    const FoundRow named = forced_row(families, request);
    Judged at{named.family, named.row, {}, 0};
    Reasons reasons;
    judge(at, request, reasons);
    refuse_forced(at, request, reasons);
  }
  throw Error(ErrorCode::unsupported, to_text(explain(families, request)));
}

Explanation explain(Families families, const Request& request) {
  const bool forced = !request.kernel.empty();
  const auto planned = choose_any(families, request);
  std::vector<Ranked> ranked = rank(families, request, planned.get());
  if (forced) {  // other rows are not considered
    const FoundRow named = forced_row(families, request);
    std::erase_if(ranked, [&](const Ranked& r) { return r.judged.row != named.row; });
  }

  const Work work = work_of(request.shape);
  Explanation e;
  e.op = op_of(request.shape);
  e.problem = describe(request.shape);
  e.device = request.device.name;
  e.supported = planned != nullptr;
  e.useful_flops = work.flops;
  e.bytes = work.bytes;
  e.chosen_by = forced ? ChosenBy::execution : ChosenBy::cost_model;
  if (planned) {
    const auto chosen = std::find_if(ranked.begin(), ranked.end(), [&](const Ranked& r) {
      return r.judged.row == planned->row && r.candidate.expanded_bytes == planned->expanded_bytes;
    });
    std::rotate(ranked.begin(), chosen, chosen + 1);
    e.plan = public_plan(families, planned);
  }
  for (Ranked& r : ranked) e.candidates.push_back(std::move(r.candidate));
  return e;
}

Plan public_plan(Families families, const std::shared_ptr<const Planned>& planned) {
  int index = 0;  // rows are numbered over all families of a backend
  for (const KernelFamily& family : families) {
    if (&family == planned->family) break;
    if (family.backend == planned->family->backend) index += static_cast<int>(family.rows.size());
  }
  Plan plan;
  plan.op = planned->family->op;
  plan.backend = planned->family->backend;
  plan.kernel = index + static_cast<int>(planned->row - planned->family->rows.data());
  plan.kernel_name = planned->row->name;
  plan.workspace_bytes = planned->buffers.workspace;
  plan.schedule_bytes = planned->buffers.schedule;
  plan.expanded_bytes = planned->expanded_bytes;
  plan.threads = planned->threads;
  plan.predicted_ms = planned->predicted_ms;
  plan.signature = describe(planned->shape);
  plan.planned = planned;
  return plan;
}

}  // namespace planning
}  // namespace tessera
