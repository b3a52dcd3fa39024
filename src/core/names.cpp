#include <array>
#include <cstddef>
#include <string>

#include <tessera/error.hpp>
#include <tessera/plan.hpp>

namespace tessera {
namespace {

// Names in the order of the enumerators.
constexpr std::array kDTypes{"none", "f32", "f16", "bf16", "e4m3", "e5m2", "i32", "i64", "u8"};
constexpr std::array kDTypeBytes{0, 4, 2, 2, 1, 1, 4, 8, 1};
constexpr std::array kBackends{"cpu", "sm80", "sm90"};
constexpr std::array kActivations{"none", "relu", "gelu", "gelu_tanh", "silu"};
constexpr std::array kOps{"matmul",      "sddmm", "spgemm", "attention", "attention_backward",
                          "merge_states"};

template <std::size_t N, class Enum>
const char* name_of(const std::array<const char*, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : "unknown";
}

template <class Enum, std::size_t N>
Enum parse(const char* argument, const std::array<const char*, N>& names, std::size_t first,
           const std::string& name) {
  std::string accepted;
  for (std::size_t i = first; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
    accepted += (i == first ? "" : ", ") + std::string(names[i]);
  }
  throw Error(ErrorCode::invalid_argument,
              std::string(argument) + ": expected one of " + accepted + ", got \"" + name + "\"");
}

}  // namespace

const char* to_string(DType dtype) { return name_of(kDTypes, dtype); }

int size_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDTypeBytes.size() ? kDTypeBytes[index] : 0;
}

DType parse_dtype(const std::string& name) { return parse<DType>("dtype", kDTypes, 1, name); }

const char* to_string(Backend backend) { return name_of(kBackends, backend); }
Backend parse_backend(const std::string& name) {
  return parse<Backend>("backend", kBackends, 0, name);
}

const char* to_string(Activation activation) { return name_of(kActivations, activation); }
const char* to_string(Op op) { return name_of(kOps, op); }

}  // namespace tessera
