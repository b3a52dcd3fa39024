// The functions that python/tessera calls, registered as "tessera.NAME" when this library is
// loaded.
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <tessera/tessera.hpp>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <generated/signatures.hpp>

#include "src/ffi/arguments.hpp"
#include "src/ffi/execute.hpp"
#include "src/ffi/planned_call.hpp"
#include "src/ffi/reader.hpp"

namespace tessera::python {
namespace {

namespace ffi = tvm::ffi;

BlockList list(const Tensor& counts, const Tensor& indices) {
  BlockList made;
  made.counts = counts;
  made.indices = indices;
  return made;
}

struct Exported {
  const char* name;
  ReadCall read;
};

constexpr Exported kOperations[] = {
    {"attention", read_attention},
    {"attention_backward", read_attention_backward},
    {"merge_states", read_merge_states},
    {"matmul", read_matmul},
    {"linear", read_linear},
    {"sddmm", read_sddmm},
    {"spgemm", read_spgemm},
};

ReadCall reader_of(const char* where, const std::string& op) {
  for (const Exported& exported : kOperations) {
    if (op == exported.name) return exported.read;
  }
  throw Error(ErrorCode::invalid_argument,
              std::string(where) + ": op: no operation is called '" + op + "'");
}

/// explain(op, device, as_json, expand_bytes, arguments of the operation...) -> text or JSON.
void explain_call(ffi::PackedArgs args, ffi::Any* result) {
  translated([&] {
    Reader reader("explain", args);
    const std::string op = reader.text("op");
    const auto preset = reader.optional_text("device");
    const bool as_json = reader.flag("as_json");
    const std::int64_t expand_bytes = reader.integer("expand_bytes");
    const Memory memory = preset ? Memory::ignored : Memory::read;
    Call call = reader_of("explain", op)(reader.rest(), memory);
    call.execution.expand_bytes = expand_bytes;
    const DeviceFacts facts =
        preset ? device_preset(*preset) : device_facts(device_of(call.problem));
    const Explanation explanation = explain(call.problem, facts, call.execution);
    *result = ffi::String(as_json ? to_json(explanation) : to_text(explanation));
  });
}

/// plan(op, expand_bytes, arguments of the operation...) -> [kernel, backend, signature, workspace
/// bytes, schedule bytes, expanded bytes, prepare, run, run_tensors, explain]. prepare and run take
/// the operation's arguments; prepare accepts None for operands and results. run_tensors takes
/// operands and results alone (RunTensors). explain takes as_json.
void plan_call(ffi::PackedArgs args, ffi::Any* result) {
  translated([&] {
    Reader reader("plan", args);
    const std::string op = reader.text("op");
    const ReadCall read = reader_of("plan", op);
    const std::int64_t expand_bytes = reader.integer("expand_bytes");
    const ffi::PackedArgs arguments = reader.rest();
    Call call = read(arguments, Memory::read);
    call.execution.expand_bytes = expand_bytes;
    const auto planned = std::make_shared<PlannedCall>(call, RunTensors(op, arguments));
    const auto prepare =
        ffi::Function::FromPacked([planned, read](ffi::PackedArgs given, ffi::Any*) {
          translated([&] { planned->prepare(read(given, Memory::read)); });
        });
    const auto run = ffi::Function::FromPacked([planned, read](ffi::PackedArgs given, ffi::Any*) {
      translated([&] { planned->run(read(given, Memory::read)); });
    });
    const auto run_tensors = ffi::Function::FromPacked(
        [planned](ffi::PackedArgs given, ffi::Any*) { translated([&] { planned->run(given); }); });
    const auto explain = ffi::Function::FromTyped([planned](bool as_json) {
      const Explanation explanation = planned->explain();
      return ffi::String(as_json ? to_json(explanation) : to_text(explanation));
    });
    *result = ffi::Array<ffi::Any>{planned->plan().kernel_name,
                                   to_string(planned->plan().backend),
                                   planned->plan().signature,
                                   planned->plan().workspace_bytes,
                                   planned->plan().schedule_bytes,
                                   planned->plan().expanded_bytes,
                                   prepare,
                                   run,
                                   run_tensors,
                                   explain};
  });
}

/// Whether `out` has the last dimension of v and an output dtype (FP8 is for inputs only). The
/// library checks everything else.
bool suits(const Tensor& out, const Tensor& v) {
  if (out.rank == 0 || v.rank == 0) return true;
  return out.size(out.rank - 1) == v.size(v.rank - 1) && out.dtype != DType::e4m3 &&
         out.dtype != DType::e5m2;
}

/// plain_attention(...) -> bool. The caller allocates `out` like q without looking at v. If such a
/// tensor cannot hold the result, the call does nothing and returns false.
void plain_attention_call(ffi::PackedArgs args, ffi::Any* result) {
  translated([&] {
    const Call call = read_plain_attention(args, Memory::read);
    const auto& problem = std::get<AttentionProblem>(call.problem);
    const bool suitable = suits(problem.out, problem.v);
    if (suitable) execute(call);
    *result = suitable;
  });
}

/// spgemm(a, b, ...) -> [stored blocks, fill]. Finds the pattern of the result; fill(values,
/// row_offsets, col_indices, rows, cols) then computes the result into arrays with that many
/// blocks. The operands must live until then.
void spgemm_call(ffi::PackedArgs args, ffi::Any* result) {
  translated([&] {
    const Call call = read_spgemm(args, Memory::read);
    const auto& problem = std::get<SpgemmProblem>(call.problem);
    const auto found =
        std::make_shared<SpgemmPlan>(spgemm_symbolic(problem, on_current_stream(call)));
    const auto fill = ffi::Function::FromPacked([call, found](ffi::PackedArgs out, ffi::Any*) {
      translated([&] {
        const Arguments arrays(signature::spgemm_fill::kSignature, out, Memory::read);
        Execution execution = on_current_stream(call);
        Scratch scratch(device_of(call.problem));
        execution.scratch = scratch.source();
        spgemm_numeric(*found, std::get<SpgemmProblem>(call.problem),
                       arrays.read(signature::spgemm_fill::out), execution);
      });
    });
    *result = ffi::Array<ffi::Any>{found->stored_blocks(), fill};
  });
}

/// pattern(kind, parameters...) -> [rows, cols, stored blocks, fill]; fill(offsets, indices) writes
/// the lists into i64 arrays of rows + 1 and stored blocks entries.
void pattern_call(ffi::PackedArgs args, ffi::Any* result) {
  translated([&] {
    Reader reader("pattern", args);
    const auto made = std::make_shared<Pattern>(read_pattern(reader));
    reader.finish();
    const auto fill = ffi::Function::FromPacked([made](ffi::PackedArgs out, ffi::Any*) {
      translated([&] {
        Reader arrays("pattern", out);
        arrays.write("offsets", made->offsets);
        arrays.write("indices", made->indices);
      });
    });
    *result = ffi::Array<ffi::Any>{made->rows, made->cols, made->stored(), fill};
  });
}

/// read_matrix_market(path) -> [rows, cols, entries, fill]; fill(row, col, value) writes the
/// entries into i64, i64 and f32 arrays of that length.
void read_matrix_market_call(ffi::PackedArgs args, ffi::Any* result) {
  translated([&] {
    Reader reader("read_matrix_market", args);
    const auto coo = std::make_shared<Coo>(read_matrix_market(reader.text("path")));
    reader.finish();
    const auto fill = ffi::Function::FromPacked([coo](ffi::PackedArgs out, ffi::Any*) {
      translated([&] {
        Reader arrays("read_matrix_market", out);
        arrays.write("row", coo->row);
        arrays.write("col", coo->col);
        arrays.write("value", std::vector<float>(coo->value.begin(), coo->value.end()));
      });
    });
    const auto entries = static_cast<std::int64_t>(coo->value.size());
    *result = ffi::Array<ffi::Any>{coo->rows, coo->cols, entries, fill};
  });
}

// Caches of keys and values.

Execution with_threads(const Device& device, std::int64_t threads) {
  Execution execution = on_current_stream(device);
  execution.threads = static_cast<int>(threads);
  return execution;
}

void quantize_call(ffi::PackedArgs packed, ffi::Any*) {
  namespace at = signature::quantize;
  translated([&] {
    const Arguments args(at::kSignature, packed, Memory::read);
    const Tensor x = args.read(at::x);
    quantize(x, args.read(at::out), args.read(at::scale),
             args.read(at::given) ? Scales::given : Scales::computed,
             with_threads(x.device, args.read(at::threads)));
  });
}

void append_call(ffi::PackedArgs packed, ffi::Any*) {
  namespace at = signature::append;
  translated([&] {
    const Arguments args(at::kSignature, packed, Memory::read);
    PagedAppend problem;
    problem.k = args.read(at::k);
    problem.v = args.read(at::v);
    problem.offsets = args.read(at::offsets);
    problem.k_cache = args.read(at::k_cache);
    problem.v_cache = args.read(at::v_cache);
    problem.page_table = args.read(at::page_table);
    problem.lengths = args.read(at::lengths);
    problem.k_scale = args.read(at::k_scale);
    problem.v_scale = args.read(at::v_scale);
    append(problem, with_threads(problem.k.device, args.read(at::threads)));
  });
}

// Lists of block masks.

void list_blocks_call(ffi::PackedArgs packed, ffi::Any*) {
  namespace at = signature::list_blocks;
  translated([&] {
    const Arguments args(at::kSignature, packed, Memory::read);
    const Tensor blocks = args.read(at::blocks);
    list_blocks(blocks, list(args.read(at::counts), args.read(at::indices)),
                on_current_stream(blocks.device));
  });
}

void top_k_blocks_call(ffi::PackedArgs packed, ffi::Any*) {
  namespace at = signature::top_k_blocks;
  translated([&] {
    const Arguments args(at::kSignature, packed, Memory::read);
    const Tensor scores = args.read(at::scores);
    top_k_blocks(scores, args.read(at::k), list(args.read(at::counts), args.read(at::indices)),
                 on_current_stream(scores.device));
  });
}

void transpose_lists_call(ffi::PackedArgs packed, ffi::Any*) {
  namespace at = signature::transpose_lists;
  translated([&] {
    const Arguments args(at::kSignature, packed, Memory::read);
    const BlockList out = list(args.read(at::column_counts), args.read(at::rows));
    transpose_lists(list(args.read(at::counts), args.read(at::indices)),
                    {out, args.read(at::entries)}, on_current_stream(out.counts.device));
  });
}

/// host_view(address, dtype, shape, strides in elements) -> a tensor view of host memory, which the
/// caller keeps alive. It is for NumPy arrays that NumPy cannot export by DLPack: read-only ones,
/// and the dtypes of ml_dtypes.
void host_view_call(ffi::PackedArgs args, ffi::Any* result) {
  struct View {
    DLManagedTensorVersioned managed{};
    std::vector<std::int64_t> shape, strides;
  };
  const auto shape = args[2].cast<ffi::Shape>(), strides = args[3].cast<ffi::Shape>();
  auto view = std::make_unique<View>();
  view->shape.assign(shape.begin(), shape.end());
  view->strides.assign(strides.begin(), strides.end());
  DLTensor& tensor = view->managed.dl_tensor;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address from Python, possibly 0
  tensor.data = reinterpret_cast<void*>(args[0].cast<std::int64_t>());
  tensor.device = {kDLCPU, 0};
  tensor.ndim = static_cast<int>(shape.size());
  tensor.dtype = args[1].cast<DLDataType>();
  tensor.shape = view->shape.data();
  tensor.strides = view->strides.data();
  view->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  view->managed.manager_ctx = view.get();
  view->managed.deleter = [](DLManagedTensorVersioned* self) {
    delete static_cast<View*>(self->manager_ctx);
  };
  *result = ffi::Tensor::FromDLPackVersioned(&view.release()->managed);
}

void register_operation(const Exported& operation) {
  const std::string name = std::string("tessera.") + operation.name;
  ffi::reflection::GlobalDef().def_packed(
      name.c_str(), [operation](ffi::PackedArgs args, ffi::Any*) {
        translated([&] { execute(operation.read(args, Memory::read)); });
      });
}

const bool registered = [] {
  for (const Exported& operation : kOperations) {
    if (operation.read != read_spgemm) register_operation(operation);
  }
  register_operation({"plain_matmul", read_plain_matmul});
  ffi::reflection::GlobalDef()
      .def_packed("tessera.plain_attention", plain_attention_call)
      .def_packed("tessera.spgemm", spgemm_call)
      .def_packed("tessera.pattern", pattern_call)
      .def_packed("tessera.read_matrix_market", read_matrix_market_call)
      .def_packed("tessera.quantize", quantize_call)
      .def_packed("tessera.append", append_call)
      .def_packed("tessera.list_blocks", list_blocks_call)
      .def_packed("tessera.top_k_blocks", top_k_blocks_call)
      .def_packed("tessera.transpose_lists", transpose_lists_call)
      .def_packed("tessera.explain", explain_call)
      .def_packed("tessera.plan", plan_call)
      .def_packed("tessera.host_view", host_view_call)
      .def("tessera.version", [] { return ffi::String(TESSERA_VERSION_STRING); })
      .def("tessera.cublaslt_version", [] { return ffi::String(cublaslt_version()); })
      .def("tessera.cuda_device_count", [] { return cuda_device_count(); });
  return true;
}();

}  // namespace
}  // namespace tessera::python
