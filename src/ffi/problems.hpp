#pragma once

#include <string>

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
Call read_plain_matmul(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_linear(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_sddmm(const tvm::ffi::PackedArgs& packed, Memory memory);
Call read_spgemm(const tvm::ffi::PackedArgs& packed, Memory memory);

/// Puts the tensors of a run into a copy of the planned problem: its operands in order (of a
/// block-sparse one the values, row offsets and column indices; nothing where `prepared` has it),
/// then its results. The problem has no other tensors. `planned`: the arguments of the operation
/// that was planned, with its name.
class RunTensors {
 public:
  RunTensors(const std::string& op, const tvm::ffi::PackedArgs& planned);
  AnyProblem read(const tvm::ffi::PackedArgs& packed, const AnyProblem& planned,
                  const MatmulProblem* prepared) const;

 private:
  void read(const tvm::ffi::PackedArgs& packed, const MatmulProblem* prepared,
            MatmulProblem& problem) const;
  void read(const tvm::ffi::PackedArgs& packed, AttentionProblem& problem) const;

  bool linear_ = false;  // x and the result may have any number of leading dimensions
  bool bhld_ = false;
};

/// Generates a pattern from the arguments: kind, rows, cols, and the parameters of that generator.
/// The generators sliding_tile and mesh have no rows and cols.
Pattern read_pattern(Reader& args);

}  // namespace tessera::python
