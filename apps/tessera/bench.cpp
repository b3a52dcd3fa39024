#include "apps/tessera/bench.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <iostream>
#include <memory>
#include <tessera/device.hpp>
#include <tessera/version.hpp>

#include "apps/tessera/command.hpp"
#include "apps/tessera/coprocess.hpp"
#include "apps/tessera/interrupt.hpp"
#include "apps/tessera/options.hpp"
#include "apps/tessera/output.hpp"
#include "apps/tessera/places.hpp"
#include "apps/tessera/progress.hpp"
#include "apps/tessera/table.hpp"

namespace tessera::tool {

namespace {

struct Options {
  std::vector<std::string> cases;
  std::string filter, json, python;
  double seconds = 6;
  int threads = 0;
  bool list = false;
  std::int64_t memory_probe = 0;
};

std::vector<BenchCase> all_cases() {
  std::vector<BenchCase> cases = product_cases();
  for (BenchCase& one : attention_cases()) cases.push_back(std::move(one));
  return cases;
}

std::vector<BenchCase> chosen_cases(const Options& options) {
  std::vector<BenchCase> cases = all_cases();
  std::vector<std::string> names;
  for (const BenchCase& one : cases) names.push_back(one.name);
  auto known = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const std::string& name : options.cases)
    if (!known(name))
      throw UsageError(
          "bench: CASES: " + name + " is not a case" +
          (did_you_mean(name, names).empty() ? "; --list shows them" : did_you_mean(name, names)));
  if (known(options.json))
    throw UsageError("bench: --json: " + options.json +
                     " is a case; name the cases before --json, or write --json=" + options.json);
  std::erase_if(cases, [&](const BenchCase& one) {
    const bool named =
        options.cases.empty() ||
        std::find(options.cases.begin(), options.cases.end(), one.name) != options.cases.end();
    return !named || one.name.find(options.filter) == std::string::npos;
  });
  if (cases.empty()) throw UsageError("bench: no case is left by CASES and --filter");
  return cases;
}

// The first line that a program prints, or nothing.
std::string first_line(const std::vector<std::string>& command) {
  try {
    return Coprocess(command).receive(5);
  } catch (const std::exception&) {
    return {};
  }
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json timing_json(const Timing& time, double flops) {
  return {{"ms", time.ms},
          {"spread", time.spread},
          {"runs", time.runs},
          {"tflops", time.ms > 0 ? gflops(flops, time) / 1e3 : 0}};
}

Json case_json(const std::string& name, const CaseResult& result) {
  Json ours = timing_json(result.ours, result.useful_flops);
  ours["row"] = result.row;
  ours["predicted_ms"] = result.predicted_ms;
  Json peers = Json::object();
  for (const Peer& peer : result.peers) {
    if (!peer.unavailable.empty()) {
      peers[peer.name] = {{"unavailable", peer.unavailable}};
      continue;
    }
    peers[peer.name] = timing_json(peer.time, peer.flops);
    peers[peer.name]["version"] = text_or_null(peer.version);
  }
  return {{"name", name},
          {"op", result.op},
          {"params", result.params},
          {"state", "burst"},
          {"useful_flops", result.useful_flops},
          {"bytes", result.bytes},
          {"ours", ours},
          {"peers", peers},
          {"max_error", nullptr},
          {"error_budget", nullptr},
          {"ratio_of", result.ratio_of},
          {"ratio", result.ratio ? Json(*result.ratio) : Json()},
          {result.at_least ? "at_least" : "at_most", result.must},
          {"ok", result.ratio ? Json(!result.missed()) : Json()}};
}

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string cpu_name(const DeviceFacts& cpu) {
  const std::string model = cpu_model();
  return model.empty() ? cpu.name : model;
}

Json result_file(const DeviceFacts& cpu, int threads, Json cases) {
  // Of the tree that the program was built in, if it still lies there.
  const std::string folder = source_tree_of(own_path().parent_path()).string();
  const std::string commit = folder.empty()
                                 ? ""
                                 : first_line({"git", "-C", folder, "describe", "--always",
                                               "--dirty", "--abbrev=40", "--exclude", "*"});
  return {{"schema", 1},
          {"date", now()},
          {"gpu", nullptr},
          {"cpu", {{"name", cpu_name(cpu)}, {"simd", cpu.simd}, {"threads", threads}}},
          {"toolkit", nullptr},
          {"version", TESSERA_VERSION_STRING},
          {"commit", text_or_null(commit)},
          {"ceilings", Json::object()},
          {"tests", Json::array()},
          {"cases", std::move(cases)}};
}

std::string time_text(const Timing& time) {
  return ms_text(time.ms) + " ±" + fixed(time.spread * 50, 0) + "%";
}

Table empty_table() {
  return Table({{"case"},
                {"ours", Table::Align::right},
                {"GFLOP/s", Table::Align::right},
                {"peer"},
                {"its time", Table::Align::right},
                {"GFLOP/s", Table::Align::right},
                {"ratio", Table::Align::right},
                {"must", Table::Align::right},
                {"ok"}});
}

void add_row(Table& table, const std::string& name, const CaseResult& result) {
  const auto peer = std::find_if(result.peers.begin(), result.peers.end(),
                                 [](const Peer& one) { return one.unavailable.empty(); });
  const bool any = peer != result.peers.end();
  table.add({name, time_text(result.ours), brief(gflops(result.useful_flops, result.ours)),
             any ? peer->name : "-", any ? time_text(peer->time) : "-",
             any ? brief(gflops(peer->flops, peer->time)) : "-",
             result.ratio ? fixed(*result.ratio, 2) : "-",
             (result.at_least ? "≥ " : "≤ ") + fixed(result.must, 1),
             !result.ratio     ? "-"
             : result.missed() ? "MISSED"
                               : "ok"});
}

// What each ratio is of, and who the peers were.
std::string notes(const std::vector<BenchCase>& cases, const std::vector<CaseResult>& results) {
  std::vector<std::string> lines;
  auto add = [&](const std::string& line) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  };
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::string names;
    for (std::size_t j = 0; j < results.size(); ++j)
      if (results[j].ratio_of == results[i].ratio_of)
        names += (names.empty() ? "" : ", ") + cases[j].name;
    add("ratio of " + names + ": " + results[i].ratio_of);
  }
  for (const CaseResult& result : results)
    for (const Peer& peer : result.peers)
      if (!peer.unavailable.empty())
        add(peer.name + " is missing: " + peer.unavailable);
      else if (!peer.version.empty())
        add(peer.name + ": " + peer.version);
  return CLI::detail::join(lines, "\n");
}

void print_or_write(const std::string& path, const Json& json) {
  const std::string text = json.dump(2) + "\n";
  if (path == "-")
    std::cout << text;
  else
    write_file(path, text);
}

int list_cases(const Options& options) {
  const std::vector<BenchCase> cases = chosen_cases(options);
  if (!options.json.empty()) {
    Json list = Json::array();
    for (const BenchCase& one : cases) list.push_back({{"name", one.name}, {"what", one.what}});
    print_or_write(options.json, list);
    return kFine;
  }
  Table table({{"case"}, {"what"}});
  for (const BenchCase& one : cases) table.add({one.name, one.what});
  std::cout << table.text();
  return kFine;
}

// Before anything is measured.
void check_options(const Options& options) {
  if (!options.json.empty() && options.json != "-") check_writable("bench: --json", options.json);
  if (options.python.empty() || options.list) return;
  try {
    Coprocess({options.python, "-c", ""});
  } catch (const std::runtime_error& error) {
    throw UsageError(std::string("bench: --python: ") + error.what());
  }
}

// Nothing where Ctrl-C came before the case was done.
std::optional<CaseResult> measure(const BenchCase& one, const BenchSettings& settings) {
  try {
    check_interrupt();
    return one.measure(settings);
  } catch (const std::exception&) {  // Ctrl-C also ends the programs that peers run in
    if (!interrupted()) throw;
    return std::nullopt;
  }
}

std::vector<CaseResult> measure_all(const std::vector<BenchCase>& cases,
                                    const BenchSettings& settings) {
  const InterruptGuard guard;
  Progress progress;
  std::vector<CaseResult> results;
  for (const BenchCase& one : cases) {
    progress.step("[" + std::to_string(results.size() + 1) + "/" + std::to_string(cases.size()) +
                  "] " + one.name + ": " + one.what);
    std::optional<CaseResult> result = measure(one, settings);
    if (!result) break;
    results.push_back(std::move(*result));
  }
  return results;
}

void print_text(const std::string& machine, const std::vector<BenchCase>& cases,
                const std::vector<CaseResult>& results) {
  Table table = empty_table();
  for (std::size_t i = 0; i < results.size(); ++i) add_row(table, cases[i].name, results[i]);
  std::cout << machine << "; medians of alternating runs, ± half the distance of the quartiles\n\n"
            << table.text() << '\n'
            << notes(cases, results) << '\n';
}

int run_bench(const Options& options) {
  const DeviceFacts cpu = device_facts({});
  const int threads = options.threads ? options.threads : std::max(1, cpu.units);
  if (options.memory_probe > 0) return run_memory_probe(options.memory_probe, threads);
  check_options(options);
  if (options.list) return list_cases(options);
  const std::vector<BenchCase> cases = chosen_cases(options);

  BenchSettings settings;
  settings.execution.threads = threads;
  settings.threads = threads;
  settings.seconds = options.seconds;
  settings.python = options.python.empty() ? find_python() : options.python;
  const std::vector<CaseResult> results = measure_all(cases, settings);
  const bool stopped = results.size() < cases.size();

  Json json_cases = Json::array();
  for (std::size_t i = 0; i < results.size(); ++i)
    json_cases.push_back(case_json(cases[i].name, results[i]));
  Json file = result_file(cpu, threads, std::move(json_cases));
  if (stopped) file["interrupted"] = true;
  if (options.json != "-" && !results.empty())
    print_text(cpu_name(cpu) + ", " + cpu.simd + ", " + std::to_string(threads) + " threads", cases,
               results);
  // A file of former results is not replaced by one without any.
  if (options.json == "-" || (!options.json.empty() && !results.empty()))
    print_or_write(options.json, file);
  if (stopped) {
    std::cerr << "tessera: bench: interrupted after " << results.size() << " of " << cases.size()
              << " cases\n";
    return kInterrupted;
  }
  const bool ok = std::none_of(results.begin(), results.end(),
                               [](const CaseResult& result) { return result.missed(); });
  return ok ? kFine : kCheckFailed;
}

}  // namespace

void set_plan(CaseResult& result, const AnyProblem& problem, const Execution& execution) {
  const Explanation explanation = explain(problem, device_facts({}), execution);
  result.row = explanation.plan.kernel_name;
  result.predicted_ms = explanation.plan.predicted_ms;
  result.bytes = explanation.bytes;
}

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* parser = app.add_subcommand("bench", "Measure this machine against named peers");
  parser->add_option("CASES", options->cases, "which cases [all]; --list shows them");
  parser->add_flag("--list", options->list, "list the cases and leave");
  parser->add_option("--filter", options->filter, "only cases whose name contains this");
  parser
      ->add_option("--json", options->json,
                   "write the results as JSON into a file; alone or with -: to standard output")
      ->expected(0, 1)
      ->default_str("-")
      ->type_name("[FILE]");
  parser->add_option("--seconds", options->seconds, "time for a case [6]")
      ->check(number_between(0, 3600));
  parser->add_option("--threads", options->threads, "threads, ours and the peers' [one a core]")
      ->check(integer_between(1, 4096));
  parser->add_option("--python", options->python,
                     "a Python with torch [TESSERA_PYTHON, else the tree's .venv, else python3]");
  parser->add_option("--memory-probe", options->memory_probe)->group("");
  set_footer(
      *parser,
      "  tessera bench\n"
      "  tessera bench matmul attention --json results.json\n"
      "  tessera bench --filter bsr --seconds 2\n"
      "  tessera bench attention --python ~/torch/bin/python3\n"
      "  tessera bench ceilings --help\n"
      "Code 1: a ratio missed what it must reach. A missing peer is no failure. Ctrl-C keeps\n"
      "the cases that are done.");
  return {parser, [options] { return run_bench(*options); }};
}

}  // namespace tessera::tool
