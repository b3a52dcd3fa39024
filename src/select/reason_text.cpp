#include "src/select/reason_text.hpp"

#include "src/core/check.hpp"

namespace tessera::planning {
namespace {

using core::words;

std::string dotted(std::int64_t compute_capability) {
  return words(compute_capability / 10, ".", compute_capability % 10);
}

std::string names_of(unsigned dtypes) {
  std::string names;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    if (!(dtypes & core::dtypes({dtype}))) continue;
    names += (names.empty() ? "" : ", ") + std::string(to_string(dtype));
  }
  return names;
}

}  // namespace

std::string to_text(const Reason& r, const DeviceFacts& device) {
  using Kind = Reason::Kind;
  switch (r.kind) {
    case Kind::forced_backend:
      return words("execution.backend requires ", to_string(static_cast<Backend>(r.got)));
    case Kind::not_built:
      return "not in this build: configure with TESSERA_CUDA=ON and a "
             "TESSERA_CUDA_ARCHITECTURES that names the GPU";
    case Kind::missing:
      return r.what;
    case Kind::no_kernel:
      return words("no kernel for ", r.what, " in this version");
    case Kind::needs_cpu:
      return "runs on a CPU, the device is " + device.name;
    case Kind::needs_gpu:
      return "runs on a GPU, the device is " + device.name;
    case Kind::compute_capability:
      return words("requires compute capability ", r.more, ", the device has ", dotted(r.got));
    case Kind::other_device:
      return words("the tensors are on ", r.what, ", the device is ", device.name);
    case Kind::dtype:
      return words(r.what, ": dtype ", to_string(r.dtype),
                   " is not supported (supported: ", names_of(r.dtypes), ")");
    case Kind::unsupported:
      return words(r.what, " is not supported", *r.more ? "; " : "", r.more);
    case Kind::required:
      return words("requires ", r.what);
    case Kind::multiple:
      return words(r.what, ": expected a multiple of ", r.limit, ", got ", r.got);
    case Kind::exactly:
      return words(r.what, ": expected ", r.limit, ", got ", r.got);
    case Kind::at_most:
      return words(r.what, ": expected at most ", r.limit, ", got ", r.got);
    case Kind::layout:
      return words(r.what, ": expected ", r.more);
  }
  return "?";
}

}  // namespace tessera::planning
