#pragma once

#include <tessera/pattern.hpp>
#include <tessera/plan.hpp>

#include <tvm/ffi/function.h>

#include "src/ffi/convert.hpp"
#include "src/ffi/reader.hpp"

namespace tessera::python {

/// The problem and execution of a call from Python.
struct Call {
  AnyProblem problem;
  Execution execution;
};

// Each function reads the arguments of the operation in its name.
using ReadCall = Call (*)(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_attention(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_plain_attention(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_attention_backward(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_merge_states(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_matmul(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_linear(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_sddmm(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_spgemm(const tvm::ffi::PackedArgs& packed, Memory memory);

/// Generates a pattern from the arguments: kind, rows, cols, and the parameters of that generator.
/// The generators sliding_tile and mesh have no rows and cols.
Pattern read_pattern(Reader& args);

}  // namespace tessera::python
