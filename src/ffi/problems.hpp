#pragma once

#include <tessera/pattern.hpp>
#include <tessera/plan.hpp>

#include "src/ffi/reader.hpp"

namespace tessera::python {

/// What an exported function was asked to do.
struct Call {
  AnyProblem problem;
  Execution execution;
};

// Each reads the arguments of the function of its name, in the order that python/tessera states.
Call read_attention(Reader& args);
Call read_attention_backward(Reader& args);
Call read_merge_states(Reader& args);
Call read_matmul(Reader& args);
Call read_sddmm(Reader& args);
Call read_spgemm(Reader& args);

/// kind, rows, cols, then what the generator of that name takes.
Pattern read_pattern(Reader& args);

}  // namespace tessera::python
