#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <tessera/device.hpp>
#include <tessera/plan.hpp>
#include <tessera/version.hpp>

#include "apps/tessera/command.hpp"
#include "apps/tessera/shapes.hpp"
#include "apps/tessera/table.hpp"

namespace tessera::tool {

namespace {

using Json = nlohmann::ordered_json;

struct KernelInfo {
  std::string name;
  Backend backend{};
  std::string why;
  std::vector<std::string> ops;
};

// The device that represents a backend, which need not be present.
DeviceFacts facts_of(Backend backend) {
  switch (backend) {
    case Backend::sm80:
      return device_preset("a100");
    case Backend::sm90:
      return device_preset("h100");
    default:
      return device_facts({});
  }
}

// The kernel rows that `explain` accepts for a default problem of some operation.
std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> result;
  for (const Backend backend : built_backends()) {
    const DeviceFacts facts = facts_of(backend);
    for (const std::string& op : op_names()) {
      const Explanation explanation = explain(make_problem(op, {}, facts.kind), facts);
      for (const Candidate& candidate : explanation.candidates) {
        if (candidate.backend != backend || !candidate.reasons.empty()) continue;
        auto known = std::find_if(result.begin(), result.end(), [&](const KernelInfo& kernel) {
          return kernel.name == candidate.kernel;
        });
        if (known == result.end())
          known =
              result.insert(result.end(), {candidate.kernel, candidate.backend, candidate.why, {}});
        known->ops.push_back(op);
      }
    }
  }
  return result;
}

std::vector<DeviceFacts> devices() {
  std::vector<DeviceFacts> result{device_facts({})};
  const int gpus = cuda_device_count();
  for (int i = 0; i < gpus; ++i) result.push_back(device_facts({DeviceKind::cuda, i}));
  return result;
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

std::string build_type() {
#if defined(NDEBUG) && defined(__OPTIMIZE__)
  return "release";
#elif defined(__OPTIMIZE__)
  return "optimised, with assertions";
#else
  return "debug";
#endif
}

std::string joined(const std::vector<std::string>& words) { return CLI::detail::join(words, ", "); }

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Backend backend : built_backends()) names.emplace_back(to_string(backend));
  return names;
}

bool has_cuda() {
  const auto backends = built_backends();
  return std::any_of(backends.begin(), backends.end(), [](Backend b) { return b != Backend::cpu; });
}

std::string found_cublaslt() {
  const std::string version = cublaslt_version();
  return version.empty() ? "not found" : version;
}

void print_json() {
  Json json{{"version", TESSERA_VERSION_STRING},
            {"build", build_type()},
            {"compiler", compiler()},
            {"cuda", has_cuda()},
            {"backends", backend_names()},
            {"cublaslt", cublaslt_version()},
            {"presets", device_presets()},
            {"devices", Json::array()},
            {"kernels", Json::array()}};
  for (const DeviceFacts& d : devices())
    json["devices"].push_back({{"name", d.name},
                               {"kind", d.kind == DeviceKind::cpu ? "cpu" : "cuda"},
                               {"compute_capability", d.compute_capability},
                               {"units", d.units},
                               {"simd", d.simd},
                               {"cache_bytes", d.l2_bytes},
                               {"memory_bytes", d.memory_bytes},
                               {"clock_ghz", d.clock_ghz}});
  for (const KernelInfo& kernel : kernels())
    json["kernels"].push_back({{"name", kernel.name},
                               {"backend", to_string(kernel.backend)},
                               {"operations", kernel.ops},
                               {"why", kernel.why}});
  std::cout << json.dump(2) << '\n';
}

void print_text() {
  std::cout << "tessera " << TESSERA_VERSION_STRING << " (" << build_type() << ", " << compiler()
            << ")\n"
            << "backends: " << joined(backend_names())
            << (has_cuda() ? "" : "  (built without CUDA)") << '\n'
            << (has_cuda() ? "cuBLASLt: " + found_cublaslt() + '\n' : "")
            << "presets for explain: " << joined(device_presets()) << "\n\nDevices\n";
  Table table({{"device"},
               {"simd"},
               {"units", Table::Align::right},
               {"cache", Table::Align::right},
               {"memory", Table::Align::right}});
  for (const DeviceFacts& d : devices())
    table.add({d.name, d.kind == DeviceKind::cpu ? d.simd : "-", std::to_string(d.units),
               bytes_text(static_cast<double>(d.l2_bytes)),
               bytes_text(static_cast<double>(d.memory_bytes))});
  std::cout << table.text() << "\nKernels\n";
  Table rows({{"kernel"}, {"backend"}, {"operations"}, {"why"}});
  for (const KernelInfo& kernel : kernels())
    rows.add({kernel.name, to_string(kernel.backend), joined(kernel.ops), kernel.why});
  std::cout << rows.text();
}

}  // namespace

Command add_info(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* parser =
      app.add_subcommand("info", "Show this build, its devices, backends and kernels");
  parser->add_flag("--json", *json, "print JSON");
  set_footer(*parser, "  tessera info\n  tessera info --json");
  return {parser, [json] {
            *json ? print_json() : print_text();
            return static_cast<int>(kFine);
          }};
}

}  // namespace tessera::tool
