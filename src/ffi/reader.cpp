#include "src/ffi/reader.hpp"

#include <type_traits>

namespace tessera::python {

namespace ffi = tvm::ffi;

ffi::AnyView Reader::take(const char* name) {
  if (next_ >= args_.size()) {
    fail("TypeError", {op_, name},
         "missing, got only " + std::to_string(args_.size()) + " arguments");
  }
  return args_[next_++];
}

void Reader::finish() const {
  if (next_ == args_.size()) return;
  fail("TypeError", {op_, "arguments"},
       "expected " + std::to_string(next_) + ", got " + std::to_string(args_.size()));
}

std::optional<std::string> Reader::optional_text(const char* name) {
  const ffi::AnyView any = take(name);
  if (any == nullptr) return {};
  return to_text({op_, name}, any);
}

template <class T>
void Reader::write(const char* name, const std::vector<T>& values) {
  static_assert(std::is_same_v<T, std::int64_t> || std::is_same_v<T, float>);
  constexpr DType kDType = std::is_same_v<T, float> ? DType::f32 : DType::i64;
  const Tensor to = to_tensor({op_, name}, take(name), to_string(kDType), Memory::read);
  const auto count = static_cast<std::int64_t>(values.size());
  if (to.dtype != kDType || to.rank != 1 || to.size(0) != count) {
    fail("ValueError", {op_, name},
         std::string("expected ") + to_string(kDType) + "[" + std::to_string(count) + "], got " +
             to_string(to));
  }
  for (std::int64_t i = 0; i < count; ++i)
    static_cast<T*>(to.data)[i * to.stride(0)] = values[static_cast<std::size_t>(i)];
}
template void Reader::write(const char*, const std::vector<std::int64_t>&);
template void Reader::write(const char*, const std::vector<float>&);

}  // namespace tessera::python
