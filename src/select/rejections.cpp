#include <algorithm>
#include <string>

#include "src/select/rejections_sm90.hpp"
#include "src/select/select.hpp"

namespace tessera::planning {
namespace {

/// Every element type that a kernel for a problem has to read or write, with the argument's name.
struct TypedArgument {
  const char* name;
  DType dtype;
};
using Types = std::vector<TypedArgument>;

Types types_of(const MatmulShape& s) {
  return {{"a", s.a.dtype}, {"b", s.b.dtype}, {"out", s.out}};
}
Types types_of(const SddmmShape& s) {
  return {{"a", s.a.dtype}, {"b", s.b.dtype}, {"out", s.out.dtype}};
}
Types types_of(const SpgemmShape& s) { return {{"a", s.a.dtype}, {"b", s.b.dtype}}; }
Types types_of(const AttentionShape& s) { return {{"q, k and v", s.dtype}, {"out", s.out}}; }
Types types_of(const MergeShape& s) { return {{"outs", s.dtype}, {"out", s.out}}; }

std::string dotted(int compute_capability) {
  return std::to_string(compute_capability / 10) + "." + std::to_string(compute_capability % 10);
}

void reject_device(const KernelRow& row, const Device& tensors, const DeviceFacts& device,
                   std::vector<std::string>& reasons) {
  const int capability = device.compute_capability;
  const bool wants_cpu = row.backend == Backend::cpu;
  if (wants_cpu && device.kind != DeviceKind::cpu) {
    reasons.push_back("runs on a CPU, the device is " + device.name);
  } else if (!wants_cpu && device.kind != DeviceKind::cuda) {
    reasons.push_back("runs on a GPU, the device is " + device.name);
  } else if (row.backend == Backend::sm90 && capability / 10 != 9) {
    reasons.push_back("needs compute capability 9.x, the device has " + dotted(capability));
  } else if (row.backend == Backend::sm80 && capability < 80) {
    reasons.push_back("needs compute capability 8.0 or later, the device has " +
                      dotted(capability));
  }
  if (tensors.kind != device.kind) {
    reasons.push_back("the tensors are on " + to_string(tensors) + ", the device is " +
                      device.name);
  }
}

void reject_dtypes(Op op, const Types& types, const DeviceFacts& device,
                   std::vector<std::string>& reasons) {
  const bool too_old = device.compute_capability < 89 && op != Op::merge_states;
  bool needs_newer = false;
  std::string refused;
  for (const auto& [name, dtype] : types) {
    if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) continue;
    if (dtype == DType::e4m3 && too_old) {
      needs_newer = true;
    } else {
      refused += (refused.empty() ? "" : ", ") + std::string(name) + " is " + to_string(dtype);
    }
  }
  if (needs_newer) reasons.push_back("e4m3 inputs need a GPU of compute capability 8.9 or later");
  if (!refused.empty()) reasons.push_back("takes f32, f16 and bf16: " + refused);
}

/// A GPU merge takes its parts as kernel parameters.
void reject_gpu_merge(const MergeShape& s, std::vector<std::string>& reasons) {
  if (s.parts > kMaxGpuMergeParts) {
    reasons.push_back("merges at most " + std::to_string(kMaxGpuMergeParts) +
                      " parts in one call, got " + std::to_string(s.parts));
  }
}

/// All GPU kernels of sparse times sparse count blocks in 32 bits.
void reject_gpu_spgemm(const SpgemmShape& s, std::vector<std::string>& reasons) {
  constexpr std::int64_t kMax = std::int64_t{1} << 31;
  if (s.m >= kMax || s.n >= kMax || s.k >= kMax || s.a.stored >= kMax || s.b.stored >= kMax) {
    reasons.push_back("takes sizes below 2^31");
  }
  for (const OperandShape* side : {&s.a, &s.b}) {
    if (side->dtype != DType::e4m3) continue;
    reasons.push_back("takes f32, f16 and bf16, not e4m3");
    break;
  }
}

}  // namespace

std::vector<std::string> rejections(const KernelRow& row, Op op, const AnyShape& shape,
                                    const DeviceFacts& device) {
  std::vector<std::string> reasons;
  if (!row.does(op)) reasons.push_back(std::string("does not do ") + to_string(op));
  std::visit(
      [&](const auto& s) {
        reject_device(row, s.device, device, reasons);
        reject_dtypes(op, types_of(s), device, reasons);
      },
      shape);
  if (row.backend == Backend::sm90 && row.does(op)) reject_sm90(row, op, shape, reasons);
  const auto* merge = std::get_if<static_cast<std::size_t>(Op::merge_states)>(&shape);
  if (merge && row.backend != Backend::cpu) reject_gpu_merge(*merge, reasons);
  const auto* spgemm = std::get_if<static_cast<std::size_t>(Op::spgemm)>(&shape);
  if (spgemm && row.backend != Backend::cpu) reject_gpu_spgemm(*spgemm, reasons);
  const auto* backward = std::get_if<static_cast<std::size_t>(Op::attention_backward)>(&shape);
  if (backward && backward->kv_layout == KvLayout::paged) {
    reasons.push_back("takes no page_table in the backward pass: gather the pages into k and v");
  }
  return reasons;
}

}  // namespace tessera::planning
