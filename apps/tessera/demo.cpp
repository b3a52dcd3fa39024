#include "apps/tessera/demo.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <tessera/tessera.hpp>

#include "apps/tessera/command.hpp"
#include "apps/tessera/fill.hpp"
#include "apps/tessera/options.hpp"
#include "apps/tessera/output.hpp"
#include "apps/tessera/places.hpp"
#include "apps/tessera/progress.hpp"
#include "apps/tessera/table.hpp"
#include "tests/support/compare.hpp"

namespace tessera::tool {

namespace {

struct Options {
  std::string output = "demo.html", dtype = "bf16";
  std::int64_t length = 0, size = 4096;
  int threads = 0;
  bool json = false;
};

constexpr std::int64_t kHeads = 4, kDim = 64, kBlock = 64;
constexpr int kRounds = 3;
constexpr double kBudgetSeconds = 20;

// Fills a tensor with NaN, so that elements that a run does not write show up.
void poison(HostTensor& tensor) {
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    store_from_float(tensor.view().data, tensor.view().dtype, i,
                     std::numeric_limits<float>::quiet_NaN());
}

// `count` entries of dimension `dim` from `begin` on.
Tensor slice(Tensor view, int dim, std::int64_t begin, std::int64_t count) {
  view.data = static_cast<char*>(view.data) + begin * view.stride(dim) * size_of(view.dtype);
  view.shape[static_cast<std::size_t>(dim)] = count;
  return view;
}

// The block rows to check: the first, a middle one and the last.
std::vector<std::int64_t> sampled(std::int64_t rows) { return {0, rows / 2, rows - 1}; }

void compare(DemoPart& part, const oracle::Comparison& found) {
  const bool first = part.budget == 0;
  if (first || found.max_error * part.budget > part.max_error * found.budget) {
    part.max_error = found.max_error;
    part.budget = found.budget;
  }
  part.ok = (first || part.ok) && found.ok;
  if (!found.ok && part.message.empty()) part.message = found.message;
}

double attention_flops(std::int64_t length) {
  return 4.0 * static_cast<double>(length) * static_cast<double>(length) *
         static_cast<double>(kHeads * kDim);
}

double product_flops(std::int64_t size) {
  return static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) / 2;
}

DemoPart attention_part(std::int64_t length, DType dtype, const Execution& execution,
                        Progress& progress) {
  DemoPart part;
  part.name = "attention";
  part.shape = std::to_string(kHeads) + " heads, " + std::to_string(length) + " tokens, dim " +
               std::to_string(kDim) + ", " + to_string(dtype);
  part.pattern = "BigBird mask, blocks of 64 x 64";
  part.kept = "visible";
  part.blocks = patterns::bigbird(length / kBlock, length / kBlock, 1, 1, 3, 2024);
  const HostBlockMask mask = make_block_mask(part.blocks, kBlock, kBlock);

  const std::vector<std::int64_t> shape{1, length, kHeads, kDim};
  const HostTensor q = normal_tensor(dtype, shape, 1), k = normal_tensor(dtype, shape, 2),
                   v = normal_tensor(dtype, shape, 3);
  HostTensor sparse_out(dtype, shape), dense_out(dtype, shape);
  poison(sparse_out);
  poison(dense_out);
  AttentionProblem dense{.q = q, .k = k, .v = v, .out = dense_out};
  AttentionProblem sparse{.q = q, .k = k, .v = v, .out = sparse_out};
  sparse.mask = mask.view();
  const auto times = interleave({[&] { return time_ms([&] { attention(dense, execution); }); },
                                 [&] { return time_ms([&] { attention(sparse, execution); }); }},
                                {.seconds = 4, .min_rounds = kRounds, .max_rounds = 10});
  part.dense = times[0];
  part.sparse = times[1];

  progress.step("[2/4] attention: checking samples of both results in double precision");
  for (const std::int64_t row : sampled(part.blocks.rows)) {
    AttentionProblem piece = sparse;
    piece.q = slice(sparse.q, 1, row * kBlock, kBlock);
    piece.out = slice(sparse.out, 1, row * kBlock, kBlock);
    piece.mask.full.counts = slice(sparse.mask.full.counts, 2, row, 1);
    piece.mask.full.indices = slice(sparse.mask.full.indices, 2, row, 1);
    compare(part, oracle::check(piece));
    piece = dense;
    piece.q = slice(dense.q, 1, row * kBlock, 4);
    piece.out = slice(dense.out, 1, row * kBlock, 4);
    compare(part, oracle::check(piece));
  }
  return part;
}

// A square matrix of that size, sparse and dense, times a matrix with a quarter of its columns.
DemoPart product_part(std::int64_t size, DType dtype, const Execution& execution,
                      Progress& progress) {
  const std::int64_t cols = size / 4;
  DemoPart part;
  part.name = "BSR product";
  part.shape = std::to_string(size) + " x " + std::to_string(size) + " times " +
               std::to_string(size) + " x " + std::to_string(cols) + ", " + to_string(dtype);
  part.pattern = "random pattern, blocks of 64 x 64";
  part.kept = "stored";
  part.blocks = patterns::random(size / kBlock, size / kBlock, 0.1, 2024);
  HostBsr a = make_bsr(part.blocks, kBlock, kBlock, dtype);
  fill_normal(a.values, 4, 1.0f / 16);  // results have a magnitude of about 1
  HostTensor a_dense(dtype, {size, size});
  bsr_to_dense(a, a_dense);
  const HostTensor b = normal_tensor(dtype, {size, cols}, 5);
  HostTensor sparse_out(dtype, {size, cols}), dense_out(dtype, {size, cols});
  poison(sparse_out);
  poison(dense_out);
  MatmulProblem dense{.a = a_dense, .b = b, .out = dense_out};
  MatmulProblem sparse{.a = a, .b = b, .out = sparse_out};
  const auto times = interleave({[&] { return time_ms([&] { matmul(dense, execution); }); },
                                 [&] { return time_ms([&] { matmul(sparse, execution); }); }},
                                {.seconds = 2, .min_rounds = kRounds, .max_rounds = 10});
  part.dense = times[0];
  part.sparse = times[1];

  progress.step("[4/4] product: checking samples of both results in double precision");
  for (const std::int64_t row : sampled(part.blocks.rows)) {
    const std::int64_t begin = part.blocks.offsets[static_cast<std::size_t>(row)];
    const std::int64_t count = part.blocks.offsets[static_cast<std::size_t>(row) + 1] - begin;
    const std::array<std::int32_t, 2> offsets{0, static_cast<std::int32_t>(count)};
    MatmulProblem piece = sparse;
    piece.a.sparse.values = slice(sparse.a.sparse.values, 0, begin, count);
    piece.a.sparse.col_indices = slice(sparse.a.sparse.col_indices, 0, begin, count);
    piece.a.sparse.row_offsets = tensor(offsets.data(), DType::i32, {2});
    piece.a.sparse.rows = kBlock;
    piece.out = slice(sparse.out, 0, row * kBlock, kBlock);
    compare(part, oracle::check(piece));
    piece = dense;
    piece.a.dense = slice(dense.a.dense, 0, row * kBlock, 4);
    piece.out = slice(dense.out, 0, row * kBlock, 4);
    compare(part, oracle::check(piece));
  }
  return part;
}

double gflops_of_matmul(const Execution& execution) {
  constexpr std::int64_t kSize = 768;
  const HostTensor a = normal_tensor(DType::f32, {kSize, kSize}, 6);
  HostTensor out(DType::f32, {kSize, kSize});
  const MatmulProblem problem{.a = a, .b = a, .out = out};
  // The best of a few runs, as other programs may slow some of them down.
  double ms = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) ms = std::min(ms, time_ms([&] { matmul(problem, execution); }));
  return 2.0 * kSize * kSize * kSize / (ms * 1e6);
}

// Estimates the seconds of the demo: attention runs at a lower rate than a product, and the oracle
// takes about the same time for all lengths.
double estimate_seconds(std::int64_t length, std::int64_t size, double gflops) {
  return (kRounds + 1) * 1.2 * (attention_flops(length) * 1.6 + product_flops(size)) /
             (gflops * 1e9) +
         4;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return text.data();
}

std::string machine_text(const DeviceFacts& facts, int threads) {
  const std::string model = cpu_model();
  return (model.empty() ? "CPU" : model) + " (" + facts.simd + ", " + std::to_string(threads) +
         (threads == 1 ? " thread)" : " threads)");
}

// Names of the GPUs, which the demo does not use.
std::string idle_gpus() {
  const int gpus = cuda_device_count();
  if (gpus == 0) return {};
  return (gpus == 1 ? "" : std::to_string(gpus) + " x ") + device_facts({DeviceKind::cuda, 0}).name;
}

std::vector<std::string> next_steps(bool gpu) {
  std::vector<std::string> steps;
  const bool tree = !source_tree().empty();
  if (gpu)
    steps.push_back(tree ? "make gpu-check ARGS=--quick"
                         : "tessera bench attention --q-length 8192");
  steps.push_back(tree ? "make test" : "tessera verify");
  // In the folder of a clone, the tool is not on PATH.
  const std::string path = std::filesystem::relative(own_path()).string();
  const std::string tool = tree && path.starts_with("build/") ? path : "tessera";
  steps.push_back(tool + " explain attention --q-length 8192 --device h100");
  return steps;
}

void print_text(const DemoResult& result) {
  Table table({{"operation"},
               {"dense", Table::Align::right},
               {"sparse", Table::Align::right},
               {"speed-up", Table::Align::right},
               {"blocks", Table::Align::right},
               {"max error", Table::Align::right},
               {"allowed", Table::Align::right},
               {"check"}});
  for (const DemoPart& part : result.parts)
    table.add({part.name, ms_text(part.dense.ms), ms_text(part.sparse.ms),
               fixed(part.speed_up(), 1) + "x", part.share_text(), brief(part.max_error),
               brief(part.budget), part.ok ? "ok" : "WRONG"});
  std::cout << '\n' << table.text() << '\n';
  for (const DemoPart& part : result.parts) {
    std::cout << part.name << ": " << part.shape << "; " << part.pattern << '\n';
    if (!part.ok) std::cout << part.name << " is wrong: " << part.message << '\n';
  }
}

void print_json(const DemoResult& result, const std::string& page) {
  nlohmann::ordered_json json{{"version", result.version},
                              {"device", result.device},
                              {"backend", result.backend},
                              {"idle_gpus", result.idle_gpus},
                              {"date", result.date},
                              {"page", page},
                              {"parts", nlohmann::ordered_json::array()}};
  for (const DemoPart& part : result.parts)
    json["parts"].push_back({{"operation", part.name},
                             {"shape", part.shape},
                             {"pattern", part.pattern},
                             {"dense_ms", part.dense.ms},
                             {"sparse_ms", part.sparse.ms},
                             {"speed_up", part.speed_up()},
                             {"density", part.blocks.density()},
                             {"max_error", part.max_error},
                             {"error_budget", part.budget},
                             {"ok", part.ok}});
  std::cout << json.dump(2) << '\n';
}

void check_multiple(const std::string& option, std::int64_t value) {
  if (value % kBlock != 0)
    throw UsageError("demo: " + option + ": expected a multiple of 64, got " +
                     std::to_string(value));
}

int run_demo(const Options& options) {
  const DType dtype = parse_dtype(options.dtype);
  check_multiple("--size", options.size);
  const auto folder = std::filesystem::absolute(options.output).parent_path();
  check_writable("demo: --output", options.output);
  Execution execution;
  execution.threads = options.threads;
  const double gflops = gflops_of_matmul(execution);
  std::int64_t length = options.length ? options.length : 8192;
  if (!options.length)
    while (length > 2048 && estimate_seconds(length, options.size, gflops) > kBudgetSeconds)
      length /= 2;
  check_multiple("--length", length);

  DemoResult result;
  const DeviceFacts facts = device_facts({});
  result.version = TESSERA_VERSION_STRING;
  result.device = machine_text(facts, options.threads ? options.threads : facts.units);
  result.backend = to_string(Backend::cpu);
  result.idle_gpus = idle_gpus();
  result.date = today();
  result.next = next_steps(!result.idle_gpus.empty());
  if (!options.json)
    std::cout
        << "tessera " << result.version << " on " << result.device
        << (result.idle_gpus.empty() ? "" : "; not used here: " + result.idle_gpus)
        << "\nTimes attention and a matrix product, each dense and block-sparse, and checks the "
           "results: about "
        << fixed(std::max(1.0, estimate_seconds(length, options.size, gflops)), 0) << " s"
        << std::endl;
  Progress progress;
  progress.step("[1/4] attention: timing " + std::to_string(length) +
                " tokens, dense and block-sparse in turn");
  result.parts.push_back(attention_part(length, dtype, execution, progress));
  progress.step("[3/4] product: timing the dense matrix and the BSR matrix in turn");
  result.parts.push_back(product_part(options.size, dtype, execution, progress));
  progress.clear();

  write_file(options.output, demo_page(result, folder));
  if (options.json) {
    print_json(result, options.output);
  } else {
    print_text(result);
    std::cout << "\nopen " << options.output
              << " in a browser; next: " << CLI::detail::join(result.next, ", or ") << '\n';
  }
  const bool ok = std::all_of(result.parts.begin(), result.parts.end(),
                              [](const DemoPart& part) { return part.ok; });
  return ok ? kFine : kCheckFailed;
}

}  // namespace

std::string DemoPart::share_text() const { return fixed(blocks.density() * 100, 1) + "% " + kept; }

Command add_demo(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* parser = app.add_subcommand(
      "demo", "Time block-sparse attention and a BSR product against dense runs, and check them");
  parser->add_option("-o,--output", options->output, "HTML page to write [demo.html]");
  parser->add_option("--dtype", options->dtype, "element type: f32, f16 or bf16 [bf16]")
      ->check(one_of({"f32", "f16", "bf16"}));
  parser
      ->add_option("--length", options->length,
                   "tokens, a multiple of 64 [8192, fewer on a slow machine]")
      ->check(integer_between(64, 1 << 20));
  parser
      ->add_option("--size", options->size,
                   "rows and columns of the sparse matrix, a multiple of 64 [4096]")
      ->check(integer_between(64, 1 << 16));
  parser->add_option("--threads", options->threads, "threads [one per core]")
      ->check(integer_between(1, 4096));
  parser->add_flag("--json", options->json, "print JSON");
  set_footer(*parser,
             "  tessera demo\n"
             "  tessera demo --dtype f32 --output /tmp/demo.html");
  return {parser, [options] { return run_demo(*options); }};
}

}  // namespace tessera::tool
