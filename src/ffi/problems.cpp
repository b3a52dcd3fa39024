#include "src/ffi/problems.hpp"

#include <array>
#include <string>
#include <utility>

#include <tessera/error.hpp>

namespace tessera::python {
namespace {

/// [batch, heads, length, dim] read as [batch, length, heads, dim]; packed and paged alike.
void swap_heads(Tensor& tensor) {
  if (tensor && tensor.rank >= 3) tensor = swap_dims(tensor, tensor.rank - 3, tensor.rank - 2);
}

/// What follows the tensors of both directions: how they are laid out and what is computed.
/// Returns whether they came as [batch, heads, length, dim].
bool read_options(Reader& args, AttentionProblem& problem) {
  const bool bhld = args.boolean("bhld");
  if (bhld) {
    for (Tensor* tensor : {&problem.q, &problem.k, &problem.v, &problem.out}) swap_heads(*tensor);
  }
  problem.scale = args.optional_number("scale");
  problem.softcap = static_cast<float>(args.number("softcap"));
  problem.causal = args.boolean("causal");
  problem.window_left = args.optional_integer("window_left");
  problem.window_right = args.optional_integer("window_right");
  problem.q_offsets = args.tensor("q_offsets");
  problem.kv_offsets = args.tensor("kv_offsets");
  problem.kv_begin = args.tensor("kv_begin");
  problem.kv_end = args.tensor("kv_end");
  problem.q_position = args.tensor("q_position");
  problem.kv_position = args.tensor("kv_position");
  problem.page_table = args.tensor("page_table");
  problem.max_q_length = args.integer("max_q_length");
  problem.max_kv_length = args.integer("max_kv_length");
  problem.sinks = args.tensor("sinks");
  problem.mask = args.block_mask();
  return bhld;
}

/// The enumerator of that name, among the first `count`.
template <class Enum>
Enum parse(const char* where, const std::string& name, int count) {
  std::string known;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    if (name == to_string(value)) return value;
    known += (i ? ", " : "") + std::string(to_string(value));
  }
  throw Error(ErrorCode::invalid_argument,
              std::string(where) + ": expected one of " + known + ", got '" + name + "'");
}

constexpr int kActivations = static_cast<int>(Activation::silu) + 1;

}  // namespace

Call read_attention(Reader& args) {
  AttentionProblem problem;
  problem.q = args.tensor("q");
  problem.k = args.tensor("k");
  problem.v = args.tensor("v");
  problem.out = args.tensor("out");
  problem.lse = args.tensor("lse");
  read_options(args, problem);
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Call read_attention_backward(Reader& args) {
  AttentionBackwardProblem problem;
  problem.forward.q = args.tensor("q");
  problem.forward.k = args.tensor("k");
  problem.forward.v = args.tensor("v");
  problem.forward.out = args.tensor("out");
  problem.forward.lse = args.tensor("lse");
  problem.dout = args.tensor("dout");
  problem.dlse = args.tensor("dlse");
  problem.dq = args.tensor("dq");
  problem.dk = args.tensor("dk");
  problem.dv = args.tensor("dv");
  problem.dsinks = args.tensor("dsinks");
  if (read_options(args, problem.forward)) {
    for (Tensor* tensor : {&problem.dout, &problem.dq, &problem.dk, &problem.dv})
      swap_heads(*tensor);
  }
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Call read_merge_states(Reader& args) {
  MergeStatesProblem problem;
  problem.out = args.tensor("out");
  problem.lse = args.tensor("lse");
  problem.sinks = args.tensor("sinks");
  const bool bhld = args.boolean("bhld");
  const std::int64_t parts = args.integer("parts");
  for (std::int64_t i = 0; i < parts; ++i) problem.outs.push_back(args.tensor("outs"));
  for (std::int64_t i = 0; i < parts; ++i) problem.lses.push_back(args.tensor("lses"));
  if (bhld) {
    swap_heads(problem.out);
    for (Tensor& out : problem.outs) swap_heads(out);
  }
  const Execution execution = args.execution();
  args.finish();
  return {std::move(problem), execution};
}

Call read_matmul(Reader& args) {
  MatmulProblem problem;
  problem.a = args.operand("a: ");
  problem.b = args.operand("b: ");
  problem.out = args.tensor("out");
  problem.epilogue.c = args.tensor("c");
  problem.epilogue.bias = args.tensor("bias");
  problem.group_offsets = args.tensor("group_offsets");
  problem.epilogue.alpha = static_cast<float>(args.number("alpha"));
  problem.epilogue.beta = static_cast<float>(args.number("beta"));
  problem.epilogue.bias_axis = args.boolean("bias_rows") ? BiasAxis::row : BiasAxis::column;
  problem.epilogue.activation =
      parse<Activation>("matmul: activation", args.text("activation"), kActivations);
  problem.group_axis = args.boolean("group_inner") ? GroupAxis::inner : GroupAxis::rows;
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Call read_sddmm(Reader& args) {
  SddmmProblem problem;
  problem.a = args.operand("a: ");
  problem.b = args.operand("b: ");
  problem.out = args.bsr("out: ");
  problem.alpha = static_cast<float>(args.number("alpha"));
  problem.beta = static_cast<float>(args.number("beta"));
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Call read_spgemm(Reader& args) {
  SpgemmProblem problem;
  problem.a = args.operand("a: ");
  problem.b = args.operand("b: ");
  problem.alpha = static_cast<float>(args.number("alpha"));
  problem.beta = static_cast<float>(args.number("beta"));
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Pattern read_pattern(Reader& args) {
  const std::string kind = args.text("kind");
  const auto seed = [&] { return static_cast<std::uint64_t>(args.integer("seed")); };
  const auto sizes = [&](const char* name) {
    return std::array{args.integer(name), args.integer(name), args.integer(name)};
  };
  // These follow from their arguments how large they are.
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
    const bool causal = args.boolean("causal");
    return patterns::vertical_slash(rows, cols, verticals, slashes, causal, seed());
  }
  if (kind == "heavy_hitters") {
    const std::int64_t k = args.integer("k");
    const bool causal = args.boolean("causal");
    return patterns::heavy_hitters(rows, cols, k, causal, seed());
  }
  throw Error(ErrorCode::invalid_argument, "pattern: kind: no generator is called '" + kind + "'");
}

}  // namespace tessera::python
