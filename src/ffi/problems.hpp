#pragma once

#include <tessera/pattern.hpp>
#include <tessera/plan.hpp>

#include <tvm/ffi/function.h>

#include "src/ffi/convert.hpp"
#include "src/ffi/reader.hpp"

namespace tessera::python {

/// What an exported function was asked to do.
struct Call {
  AnyProblem problem;
  Execution execution;
};

// Each reads the arguments of the operation of its name.
using ReadCall = Call (*)(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_attention(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_plain_attention(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_attention_backward(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_merge_states(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_matmul(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_linear(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_sddmm(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_spgemm(const tvm::ffi::PackedArgs& packed, Memory memory);

/// kind, rows, cols, then what the generator of that name takes.
Pattern read_pattern(Reader& args);

}  // namespace tessera::python
