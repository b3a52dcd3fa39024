#include "src/ffi/problems.hpp"

#include <array>
#include <optional>
#include <string>
#include <utility>

#include <tessera/error.hpp>

#include <generated/signatures.hpp>

#include "src/ffi/arguments.hpp"

namespace tessera::python {
namespace {

using tvm::ffi::PackedArgs;

/// Views [batch, heads, length, dim] as [batch, length, heads, dim]; also packed and paged tensors.
void swap_heads(Tensor& tensor) {
  if (tensor && tensor.rank >= 3) tensor = swap_dims(tensor, tensor.rank - 3, tensor.rank - 2);
}

/// Reads the options that forward and backward share.
void read_options(const Arguments& args, const AttentionOptionsArguments& at,
                  AttentionProblem& problem) {
  problem.scale = args.read(at.scale);
  problem.softcap = args.read(at.softcap);
  problem.causal = args.read(at.causal);
  problem.window_left = args.read(at.window_left);
  problem.window_right = args.read(at.window_right);
  problem.q_offsets = args.read(at.q_offsets);
  problem.kv_offsets = args.read(at.kv_offsets);
  problem.kv_begin = args.read(at.kv_begin);
  problem.kv_end = args.read(at.kv_end);
  problem.q_position = args.read(at.q_position);
  problem.kv_position = args.read(at.kv_position);
  problem.page_table = args.read(at.page_table);
  problem.max_q_length = args.read(at.max_q_length);
  problem.max_kv_length = args.read(at.max_kv_length);
  problem.batch_invariant = args.read(at.batch_invariant);
  problem.sinks = args.read(at.sinks);
  problem.k_scale = args.read(at.k_scale);
  problem.v_scale = args.read(at.v_scale);
  problem.q_scale = args.read(at.q_scale);
  problem.mask = args.read(at.mask);
}

struct AttentionTensors {
  const TensorArgument &q, &k, &v, &out, &lse;
  const FlagArgument& bhld;
};

void read_tensors(const Arguments& args, const AttentionTensors& at, AttentionProblem& problem) {
  problem.q = args.read(at.q);
  problem.k = args.read(at.k);
  problem.v = args.read(at.v);
  problem.out = args.read(at.out);
  problem.lse = args.read(at.lse);
  if (args.read(at.bhld)) {
    for (Tensor* tensor : {&problem.q, &problem.k, &problem.v, &problem.out}) swap_heads(*tensor);
  }
}

/// The enumerator with that name among the first `count`. Throws if there is none.
template <class Enum>
Enum parse(const Place& place, const std::string& name, int count) {
  std::string known;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    if (name == to_string(value)) return value;
    known += (i ? ", " : "") + std::string(to_string(value));
  }
  throw Error(ErrorCode::invalid_argument, std::string(place.op) + ": " + place.name +
                                               ": expected one of " + known + ", got '" + name +
                                               "'");
}

Activation read_activation(const Arguments& args, const Signature& signature,
                           const TextArgument& argument) {
  constexpr int kActivations = static_cast<int>(Activation::silu) + 1;
  return parse<Activation>({signature.op, argument.name}, args.read(argument), kActivations);
}

}  // namespace

Call read_attention(const PackedArgs& packed, Memory memory) {
  namespace at = signature::attention;
  const Arguments args(at::kSignature, packed, memory);
  Call call;
  auto& problem = call.problem.emplace<AttentionProblem>();
  read_tensors(args, {at::q, at::k, at::v, at::out, at::lse, at::options.bhld}, problem);
  read_options(args, at::options, problem);
  call.execution = args.read(at::options.execution);
  return call;
}

Call read_plain_attention(const PackedArgs& packed, Memory memory) {
  namespace at = signature::plain_attention;
  const Arguments args(at::kSignature, packed, memory);
  Call call;
  auto& problem = call.problem.emplace<AttentionProblem>();
  read_tensors(args, {at::q, at::k, at::v, at::out, at::lse, at::bhld}, problem);
  problem.scale = args.read(at::scale);
  problem.causal = args.read(at::causal);
  return call;
}

Call read_attention_backward(const PackedArgs& packed, Memory memory) {
  namespace at = signature::attention_backward;
  const Arguments args(at::kSignature, packed, memory);
  Call call;
  auto& problem = call.problem.emplace<AttentionBackwardProblem>();
  AttentionProblem& forward = problem.forward;
  read_tensors(args, {at::q, at::k, at::v, at::out, at::lse, at::options.bhld}, forward);
  problem.dout = args.read(at::dout);
  problem.dlse = args.read(at::dlse);
  problem.dq = args.read(at::dq);
  problem.dk = args.read(at::dk);
  problem.dv = args.read(at::dv);
  problem.dsinks = args.read(at::dsinks);
  read_options(args, at::options, forward);
  problem.deterministic = args.read(at::options.deterministic);
  if (args.read(at::options.bhld)) {
    for (Tensor* tensor : {&problem.dout, &problem.dq, &problem.dk, &problem.dv})
      swap_heads(*tensor);
  }
  call.execution = args.read(at::options.execution);
  return call;
}

Call read_merge_states(const PackedArgs& packed, Memory memory) {
  namespace at = signature::merge_states;
  const Arguments args(at::kSignature, packed, memory);
  Call call;
  auto& problem = call.problem.emplace<MergeStatesProblem>();
  problem.outs = args.read(at::outs);
  problem.lses = args.read(at::lses);
  problem.out = args.read(at::out);
  problem.lse = args.read(at::lse);
  problem.sinks = args.read(at::sinks);
  if (args.read(at::bhld)) {
    swap_heads(problem.out);
    for (Tensor& out : problem.outs) swap_heads(out);
  }
  call.execution = args.read(at::execution);
  return call;
}

Call read_matmul(const PackedArgs& packed, Memory memory) {
  namespace at = signature::matmul;
  const Arguments args(at::kSignature, packed, memory);
  Call call;
  auto& problem = call.problem.emplace<MatmulProblem>();
  problem.a = args.read(at::a);
  problem.b = args.read(at::b);
  problem.out = args.read(at::out);
  problem.epilogue.c = args.read(at::c);
  problem.epilogue.bias = args.read(at::bias);
  problem.group_offsets = args.read(at::group_offsets);
  problem.epilogue.alpha = args.read(at::alpha);
  problem.epilogue.beta = args.read(at::beta);
  problem.epilogue.bias_axis = args.read(at::bias_rows) ? BiasAxis::row : BiasAxis::column;
  problem.epilogue.activation = read_activation(args, at::kSignature, at::activation);
  problem.group_axis = args.read(at::group_inner) ? GroupAxis::inner : GroupAxis::rows;
  call.execution = args.read(at::execution);
  return call;
}

Call read_plain_matmul(const PackedArgs& packed, Memory memory) {
  namespace at = signature::plain_matmul;
  const Arguments args(at::kSignature, packed, memory);
  Call call;
  auto& problem = call.problem.emplace<MatmulProblem>();
  problem.a.dense = args.read(at::a);
  problem.b.dense = args.read(at::b);
  problem.a.transposed = args.read(at::a_transposed);
  problem.b.transposed = args.read(at::b_transposed);
  problem.out = args.read(at::out);
  return call;
}

Call read_linear(const PackedArgs& packed, Memory memory) {
  namespace at = signature::linear;
  const Arguments args(at::kSignature, packed, memory);
  Call call;
  auto& problem = call.problem.emplace<MatmulProblem>();
  problem.a = args.read_rows(at::x);
  problem.a.scale = args.read_rows(at::x_scale);
  problem.b = transpose(args.read(at::weight));
  problem.out = args.read_rows(at::out);
  problem.epilogue.bias = args.read(at::bias);
  problem.epilogue.activation = read_activation(args, at::kSignature, at::activation);
  call.execution = args.read(at::execution);
  return call;
}

Call read_sddmm(const PackedArgs& packed, Memory memory) {
  namespace at = signature::sddmm;
  const Arguments args(at::kSignature, packed, memory);
  Call call;
  auto& problem = call.problem.emplace<SddmmProblem>();
  problem.a = args.read(at::a);
  problem.b = args.read(at::b);
  problem.out.values = args.read(at::out);
  problem.out.row_offsets = args.read(at::pattern.row_offsets);
  problem.out.col_indices = args.read(at::pattern.col_indices);
  problem.out.rows = args.read(at::pattern.rows);
  problem.out.cols = args.read(at::pattern.cols);
  problem.alpha = args.read(at::alpha);
  problem.beta = args.read(at::beta);
  call.execution = args.read(at::execution);
  return call;
}

Call read_spgemm(const PackedArgs& packed, Memory memory) {
  namespace at = signature::spgemm;
  const Arguments args(at::kSignature, packed, memory);
  Call call;
  auto& problem = call.problem.emplace<SpgemmProblem>();
  problem.a = args.read(at::a);
  problem.b = args.read(at::b);
  problem.alpha = args.read(at::alpha);
  problem.beta = args.read(at::beta);
  call.execution = args.read(at::execution);
  return call;
}

RunTensors::RunTensors(const std::string& op, const PackedArgs& planned) : linear_(op == "linear") {
  namespace at = signature::attention;
  if (op == "attention")
    bhld_ = Arguments(at::kSignature, planned, Memory::ignored).read(at::options.bhld);
}

AnyProblem RunTensors::read(const PackedArgs& packed, const AnyProblem& planned,
                            const MatmulProblem* prepared) const {
  AnyProblem problem = planned;
  if (auto* const product = std::get_if<MatmulProblem>(&problem)) {
    read(packed, prepared, *product);
  } else if (auto* const attention = std::get_if<AttentionProblem>(&problem)) {
    read(packed, *attention);
  } else {
    throw Error(ErrorCode::unsupported, "run: plan: expected one of attention, matmul or linear");
  }
  return problem;
}

void RunTensors::read(const PackedArgs& packed, const MatmulProblem* prepared,
                      MatmulProblem& problem) const {
  namespace at = signature::matmul;
  const Signature& op = linear_ ? signature::linear::kSignature : at::kSignature;
  int next = 0;
  const auto take = [&](const TensorArgument& argument, bool rows = false) {
    const Place place{op.op, argument.name};
    if (next >= packed.size()) fail("TypeError", place, "missing");
    return (rows ? to_rows : to_tensor)(place, packed[next++], argument.dtypes, Memory::read);
  };
  const auto take_operand = [&](Operand& operand, const Operand* known, const auto& argument,
                                bool rows = false) {
    if (!operand.is_sparse()) {
      operand.dense = take(argument.values, rows);
    } else if (known) {
      operand = *known;
    } else {
      operand.sparse.values = take(argument.values);
      operand.sparse.row_offsets = take(argument.row_offsets);
      operand.sparse.col_indices = take(argument.col_indices);
    }
  };
  take_operand(problem.a, prepared ? &prepared->a : nullptr, at::a, linear_);
  take_operand(problem.b, prepared ? &prepared->b : nullptr, at::b);
  problem.out = take(at::out, linear_);
  if (next != packed.size())
    fail("TypeError", {op.op, "arguments"},
         "expected " + std::to_string(next) + ", got " + std::to_string(packed.size()));
}

void RunTensors::read(const PackedArgs& packed, AttentionProblem& problem) const {
  namespace at = signature::attention;
  constexpr int kTensors = 5;
  if (packed.size() != kTensors)
    fail("TypeError", {at::kSignature.op, "arguments"},
         "expected 5, got " + std::to_string(packed.size()));
  const std::pair<Tensor*, const TensorArgument*> tensors[kTensors] = {{&problem.q, &at::q},
                                                                       {&problem.k, &at::k},
                                                                       {&problem.v, &at::v},
                                                                       {&problem.out, &at::out},
                                                                       {&problem.lse, &at::lse}};
  for (int i = 0; i < kTensors; ++i) {
    const auto& [tensor, argument] = tensors[i];
    *tensor =
        to_tensor({at::kSignature.op, argument->name}, packed[i], argument->dtypes, Memory::read);
  }
  if (bhld_)
    for (Tensor* tensor : {&problem.q, &problem.k, &problem.v, &problem.out}) swap_heads(*tensor);
}

Pattern read_pattern(Reader& args) {
  const std::string kind = args.text("kind");
  const auto seed = [&] { return static_cast<std::uint64_t>(args.integer("seed")); };
  const auto sizes = [&](const char* name) {
    return std::array{args.integer(name), args.integer(name), args.integer(name)};
  };
  // The sizes of these patterns follow from other arguments.
  if (kind == "sliding_tile") {
    const auto volume = sizes("volume"), neighbourhood = sizes("neighbourhood");
    return patterns::sliding_tile(volume, neighbourhood, args.integer("blocks"));
  }
  if (kind == "mesh") {
    const auto nodes = sizes("nodes");
    const std::int64_t unknowns = args.integer("unknowns");
    return patterns::mesh(nodes, unknowns, args.integer("block"));
  }
  const std::int64_t rows = args.integer("rows"), cols = args.integer("cols");
  if (kind == "random") {
    const double density = args.number("density");
    return patterns::random(rows, cols, density, seed());
  }
  if (kind == "banded") return patterns::banded(rows, cols, args.integer("half_width"));
  if (kind == "bigbird") {
    const std::int64_t half_width = args.integer("half_width"), global = args.integer("globals");
    const std::int64_t random = args.integer("random");
    return patterns::bigbird(rows, cols, half_width, global, random, seed());
  }
  if (kind == "block_diagonal") {
    const std::int64_t groups = args.integer("groups");
    const double zipf = args.number("zipf");
    return patterns::block_diagonal(rows, cols, groups, zipf, seed());
  }
  if (kind == "butterfly") return patterns::butterfly(rows, cols, args.integer("levels"));
  if (kind == "power_law") {
    const double density = args.number("density"), exponent = args.number("exponent");
    return patterns::power_law(rows, cols, density, exponent, seed());
  }
  if (kind == "power_law_graph") {
    const double density = args.number("density"), exponent = args.number("exponent");
    return patterns::power_law_graph(rows, cols, density, exponent, seed());
  }
  if (kind == "n_of_m") {
    const std::int64_t n = args.integer("n"), m = args.integer("m");
    return patterns::n_of_m(rows, cols, n, m, seed());
  }
  if (kind == "vertical_slash") {
    const std::int64_t verticals = args.integer("verticals"), slashes = args.integer("slashes");
    const bool causal = args.flag("causal");
    return patterns::vertical_slash(rows, cols, verticals, slashes, causal, seed());
  }
  if (kind == "heavy_hitters") {
    const std::int64_t k = args.integer("k");
    const bool causal = args.flag("causal");
    return patterns::heavy_hitters(rows, cols, k, causal, seed());
  }
  throw Error(ErrorCode::invalid_argument, "pattern: kind: no generator is called '" + kind + "'");
}

}  // namespace tessera::python
