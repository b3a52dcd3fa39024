#include <algorithm>
#include <iostream>
#include <memory>
#include <tessera/device.hpp>
#include <tessera/plan.hpp>

#include "apps/tessera/command.hpp"
#include "apps/tessera/shapes.hpp"

namespace tessera::tool {

namespace {

struct Options {
  std::string op, device = "here", backend, kernel;
  ShapeOptions shapes;
  bool json = false;
};

void add_shape_options(CLI::App& parser, ShapeOptions& s) {
  const auto size = CLI::NonNegativeNumber;
  const auto positive = CLI::PositiveNumber;
  const std::vector<std::string> floats{"f32", "f16", "bf16"};

  const std::string both = "All operations";
  parser.add_option("--dtype", s.dtype, "element type of the inputs: f32, f16, bf16 [bf16]")
      ->check(CLI::IsMember(floats))
      ->group(both);
  parser.add_option("--out-dtype", s.out_dtype, "element type of the result [that of the inputs]")
      ->check(CLI::IsMember(floats))
      ->group(both);
  parser.add_option("--batch", s.batch, "independent problems [1]")->check(size)->group(both);
  parser
      .add_option("--density", s.density,
                  "share of blocks stored, 0 to 1 [0.1; attention: no block mask]")
      ->check(number_between(0, 1))
      ->group(both);

  const std::string product = "matmul, bsr_matmul, sddmm, spgemm";
  parser.add_option("--m", s.m, "rows of the result [4096]")->check(size)->group(product);
  parser.add_option("--n", s.n, "columns of the result [4096]")->check(size)->group(product);
  parser.add_option("--k", s.k, "inner dimension [4096]")->check(size)->group(product);
  parser.add_option("--block", s.block, "rows of a block [64]")->check(positive)->group(product);
  parser.add_option("--block-cols", s.block_cols, "columns of a block [those of --block]")
      ->check(positive)
      ->group(product);
  parser.add_option("--sparse", s.sparse, "bsr_matmul: which operand is sparse: a, b, both [a]")
      ->check(CLI::IsMember({"a", "b", "both"}))
      ->group(product);
  parser.add_flag("--transpose-a", s.transpose_a, "A is stored transposed")->group(product);
  parser.add_flag("--transpose-b", s.transpose_b, "B is stored transposed")->group(product);

  const std::string attention = "attention, attention_backward, merge_states";
  parser.add_option("--heads", s.heads, "query heads [16]")->check(size)->group(attention);
  parser.add_option("--kv-heads", s.kv_heads, "key and value heads [--heads]")
      ->check(positive)
      ->group(attention);
  parser.add_option("--q-length", s.q_length, "queries [4096]")->check(size)->group(attention);
  parser.add_option("--kv-length", s.kv_length, "keys [--q-length]")
      ->check(positive)
      ->group(attention);
  parser.add_option("--dim", s.dim, "length of a query [128]")->check(positive)->group(attention);
  parser.add_option("--dim-v", s.dim_v, "length of a value [--dim]")
      ->check(positive)
      ->group(attention);
  parser.add_flag("--causal", s.causal, "no key after its query")->group(attention);
  parser.add_option("--window-left", s.window_left, "keys this far before the query are seen")
      ->check(size)
      ->group(attention);
  parser.add_option("--window-right", s.window_right, "and this far after it")
      ->check(size)
      ->group(attention);
  parser.add_option("--softcap", s.softcap, "cap of the scores [off]")
      ->check(size)
      ->group(attention);
  parser.add_flag("--lse", s.lse, "also write the log-sum-exp")->group(attention);
  parser.add_flag("--sinks", s.sinks, "a learnable logit a head")->group(attention);
  parser.add_option("--page", s.page, "keys in pages of this size [contiguous]")
      ->check(positive)
      ->group(attention);
  parser.add_option("--block-q", s.block_q, "block mask: queries a block [64]")
      ->check(positive)
      ->group(attention);
  parser.add_option("--block-kv", s.block_kv, "block mask: keys a block [64]")
      ->check(positive)
      ->group(attention);
  parser.add_option("--parts", s.parts, "merge_states: partial results [2]")
      ->check(CLI::Range(1, 1024))
      ->group(attention);
}

DeviceFacts facts_for(const std::string& name) {
  if (name != "here") return device_preset(name);
  const bool gpu = cuda_device_count() > 0;
  return device_facts({gpu ? DeviceKind::cuda : DeviceKind::cpu, 0});
}

int run_explain(const Options& options) {
  const DeviceFacts facts = facts_for(options.device);
  Execution execution;
  if (!options.backend.empty()) execution.backend = parse_backend(options.backend);
  execution.kernel = options.kernel;
  const AnyProblem problem = make_problem(options.op, options.shapes, facts.kind);
  const Explanation explanation = explain(problem, facts, execution);
  std::string text = options.json ? to_json(explanation) : to_text(explanation);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::cout << text << '\n';
  return explanation.supported ? kFine : kUnsupported;
}

}  // namespace

Command add_explain(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* parser =
      app.add_subcommand("explain", "Which kernel would run a problem, which would not, and why");
  parser->add_option("OP", options->op, "one of: " + CLI::detail::join(op_names(), ", "))
      ->required()
      ->check(CLI::IsMember(op_names()));
  parser->add_option("--device", options->device,
                     "here, or a preset: " + CLI::detail::join(device_presets(), ", ") + " [here]");
  parser->add_option("--backend", options->backend, "only this one: cpu, sm80, sm90");
  parser->add_option("--kernel", options->kernel, "only this one, by its name");
  parser->add_flag("--json", options->json, "print JSON");
  add_shape_options(*parser, options->shapes);
  set_footer(
      *parser,
      "  tessera explain attention --heads 32 --kv-heads 8 --q-length 8192 --causal --device "
      "h100\n"
      "  tessera explain attention --block-q 128 --block-kv 128 --density 0.125\n"
      "  tessera explain bsr_matmul --m 8192 --n 1024 --k 8192 --block 32 --density 0.05\n"
      "No data and no device is needed. Code 3: no kernel takes the problem there.");
  return {parser, [options] { return run_explain(*options); }};
}

}  // namespace tessera::tool
