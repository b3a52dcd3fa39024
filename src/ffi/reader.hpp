#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tvm/ffi/function.h>

#include "src/ffi/convert.hpp"

namespace tessera::python {

/// Reads arguments one after the other, for exported functions without a generated signature:
/// generators, files, settings.
class Reader {
 public:
  Reader(const char* op, const tvm::ffi::PackedArgs& args) : op_(op), args_(args) {}

  bool flag(const char* name) { return to_flag({op_, name}, take(name)); }
  std::int64_t integer(const char* name) { return to_integer({op_, name}, take(name)); }
  double number(const char* name) { return to_number({op_, name}, take(name)); }
  std::string text(const char* name) { return to_text({op_, name}, take(name)); }
  std::optional<std::string> optional_text(const char* name);

  /// Copies i64 or f32 values to an array argument, which must have that dtype and length.
  template <class T>
  void write(const char* name, const std::vector<T>& values);

  /// The arguments that have not been read.
  tvm::ffi::PackedArgs rest() const { return args_.Slice(next_); }
  /// Throws if there are arguments that have not been read.
  void finish() const;

 private:
  tvm::ffi::AnyView take(const char* name);

  const char* op_;
  tvm::ffi::PackedArgs args_;
  int next_ = 0;
};

}  // namespace tessera::python
