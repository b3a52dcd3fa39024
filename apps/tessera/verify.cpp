#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <tessera/tessera.hpp>

#include "apps/tessera/command.hpp"
#include "apps/tessera/interrupt.hpp"
#include "apps/tessera/options.hpp"
#include "apps/tessera/progress.hpp"
#include "apps/tessera/table.hpp"
#include "tests/support/solve.hpp"

namespace tessera::tool {

namespace {

struct Options {
  std::string op;
  double seconds = 20;
  std::int64_t count = 0;
  std::uint64_t seed = 1;
  int threads = 0;
  bool json = false;
};

/// What one random problem showed.
struct Outcome {
  oracle::Comparison comparison;
  std::string problem;
};

using Check = std::function<Outcome(std::uint64_t seed, const Execution&)>;

// The generator's name for a problem, and its shapes in words.
template <class Case>
std::string describe(const Case& c) {
  try {
    return c.text + ", " + explain(c.problem, device_facts({})).problem;
  } catch (const Error&) {
    return c.text;  // the run will say what is wrong
  }
}

// Runs a generated problem and looks at its results, then at the memory around them.
template <class Case, class Run, class Compare>
Outcome examine(Case& c, Run run, Compare compare) {
  Outcome outcome;
  c.memory.arm();
  try {
    run();
    outcome.comparison = compare();
    const std::string damage = c.memory.damage();
    if (!damage.empty()) {
      outcome.comparison.ok = false;
      outcome.comparison.message += (outcome.comparison.message.empty() ? "" : "; ") + damage;
    }
  } catch (const Error& error) {
    outcome.comparison.ok = false;
    outcome.comparison.message = std::string("refused: ") + error.what();
  }
  if (!outcome.comparison.ok) outcome.problem = describe(c);
  return outcome;
}

template <class AnyCase>
Outcome examine(AnyCase& c, const Execution& execution) {
  return examine(
      c, [&] { generate::solve(c.problem, execution); }, [&] { return generate::check(c); });
}

Outcome check_spgemm(std::uint64_t seed, const Execution& execution) {
  const auto c = generate::spgemm_case(seed);
  const Pattern expected = oracle::spgemm_pattern(c->problem);
  const DType dtype = c->problem.a.sparse.values.dtype;
  const BsrMatrix out =
      generate::output_for(*c, expected, dtype, seed % 2 == 0 ? DType::i32 : DType::i64);
  return examine(
      *c,
      [&] {
        const SpgemmPlan plan = spgemm_symbolic(c->problem, execution);
        if (plan.stored_blocks() != expected.stored())
          throw Error(ErrorCode::invalid_argument,
                      "spgemm_symbolic found " + std::to_string(plan.stored_blocks()) +
                          " blocks instead of " + std::to_string(expected.stored()));
        spgemm_numeric(plan, c->problem, out, execution);
      },
      [&] {
        oracle::Comparison found = oracle::check(c->problem, out, c->former_values());
        if (pattern_of(out) != expected) {
          found.ok = false;
          found.message = "another pattern than the product has";
        }
        return found;
      });
}

const std::vector<std::pair<std::string, Check>>& checks() {
  auto product = [](generate::ProductOptions options) {
    return [options](std::uint64_t seed, const Execution& execution) {
      return examine(*generate::matmul_case(seed, options), execution);
    };
  };
  auto grouped = [](std::uint64_t seed, const Execution& execution) {
    generate::ProductOptions options;
    options.grouped = seed % 2 == 0 ? GroupAxis::rows : GroupAxis::inner;
    if (options.grouped == GroupAxis::inner) options.sparse_a = options.sparse_b = false;
    return examine(*generate::matmul_case(seed, options), execution);
  };
  auto of = [](auto make) {
    return [make](std::uint64_t seed, const Execution& execution) {
      return examine(*make(seed), execution);
    };
  };
  static const std::vector<std::pair<std::string, Check>> all{
      {"matmul", product({.sparse_a = false, .sparse_b = false})},
      {"bsr_matmul", product({.sparse_a = true})},
      {"grouped_matmul", grouped},
      {"sddmm", of([](std::uint64_t seed) { return generate::sddmm_case(seed); })},
      {"spgemm", check_spgemm},
      {"attention", of([](std::uint64_t seed) { return generate::attention_case(seed); })},
      {"attention_backward", of([](std::uint64_t seed) { return generate::backward_case(seed); })},
      {"merge_states", of(generate::merge_case)}};
  return all;
}

struct Tally {
  std::int64_t problems = 0, wrong = 0;
  double worst_ratio = 0;  // of error to budget
};

struct Failure {
  std::string op, problem, message, repeat;
};

struct Report {
  std::map<std::string, Tally> tallies;
  std::optional<Failure> first;
  bool interrupted = false;
};

using Checks = std::vector<std::pair<std::string, Check>>;

Checks chosen_checks(const Options& options) {
  Checks chosen;
  for (const auto& entry : checks())
    if (options.op.empty() || entry.first == options.op) chosen.push_back(entry);
  return chosen;
}

void add(Report& report, const std::string& op, std::uint64_t seed, const Outcome& outcome) {
  Tally& tally = report.tallies[op];
  ++tally.problems;
  tally.worst_ratio = std::max(tally.worst_ratio, outcome.comparison.worst_ratio);
  if (outcome.comparison.ok) return;
  ++tally.wrong;
  if (!report.first)
    report.first = {op, outcome.problem, outcome.comparison.message,
                    "tessera verify " + op + " --seed " + std::to_string(seed) + " --count 1"};
}

Report verify(const Options& options) {
  const Checks chosen = chosen_checks(options);
  Execution execution;
  execution.threads = options.threads;
  Report report;
  const InterruptGuard guard;
  Progress progress;
  progress.step("random problems of " + (chosen.size() == 1
                                             ? chosen.front().first
                                             : std::to_string(chosen.size()) + " operations"));
  std::int64_t done = 0;
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0;; ++i) {
    const double elapsed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double share = options.count > 0
                             ? static_cast<double>(i) / static_cast<double>(options.count)
                             : elapsed / options.seconds;
    if (i > 0 && share >= 1) return report;
    progress.update(share,
                    std::to_string(done) + " problems" + (report.first ? ", some wrong" : ""));
    for (const auto& [op, check] : chosen) {
      if (interrupted()) {
        report.interrupted = true;
        return report;
      }
      add(report, op, options.seed + i, check(options.seed + i, execution));
      ++done;
    }
  }
}

void print_json(const Report& report) {
  nlohmann::ordered_json json{{"ok", !report.first},
                              {"operations", nlohmann::ordered_json::object()}};
  for (const auto& [op, tally] : report.tallies)
    json["operations"][op] = {{"problems", tally.problems},
                              {"wrong", tally.wrong},
                              {"worst_error_over_budget", tally.worst_ratio}};
  if (report.first)
    json["first_failure"] = {{"operation", report.first->op},
                             {"problem", report.first->problem},
                             {"message", report.first->message},
                             {"repeat", report.first->repeat}};
  if (report.interrupted) json["interrupted"] = true;
  std::cout << json.dump(2) << '\n';
}

void print_text(const Report& report) {
  Table table({{"operation"},
               {"problems", Table::Align::right},
               {"wrong", Table::Align::right},
               {"worst error / allowed", Table::Align::right}});
  for (const auto& [op, tally] : report.tallies)
    table.add({op, std::to_string(tally.problems), std::to_string(tally.wrong),
               brief(tally.worst_ratio)});
  std::cout
      << table.text()
      << "\nUp to 1 is right. Rounding a result to its type may use all that is allowed, so a\n"
         "ratio close to 1 is usual where most of the error is that rounding.\n";
  if (report.first)
    std::cout << "\nfirst failure: " << report.first->op << ": " << report.first->problem << '\n'
              << report.first->message << "\nrepeat it: " << report.first->repeat << '\n';
}

}  // namespace

Command add_verify(CLI::App& app) {
  auto options = std::make_shared<Options>();
  std::vector<std::string> names;
  for (const auto& entry : checks()) names.push_back(entry.first);
  CLI::App* parser =
      app.add_subcommand("verify", "Random problems against a double-precision oracle");
  parser->add_option("OP", options->op, "only one of: " + CLI::detail::join(names, ", "))
      ->check(one_of(names));
  CLI::Option* seconds = parser->add_option("--seconds", options->seconds, "how long [20]")
                             ->check(number_between(0, 1e6));
  parser->add_option("--count", options->count, "so many problems of each, instead of a time")
      ->check(positive_integer())
      ->excludes(seconds);
  parser->add_option("--seed", options->seed, "the first problem's seed; the next is one more [1]")
      ->check(non_negative_integer());
  parser->add_option("--threads", options->threads, "threads [one a core]")
      ->check(integer_between(1, 4096));
  parser->add_flag("--json", options->json, "print JSON");
  set_footer(
      *parser,
      "  tessera verify --seconds 60\n"
      "  tessera verify attention --seed 1234 --count 1\n"
      "Code 1: a result is wrong; the first one is shown, with how to repeat it. Ctrl-C ends\n"
      "the run with what was found so far.");
  return {parser, [options] {
            const Report report = verify(*options);
            options->json ? print_json(report) : print_text(report);
            if (report.interrupted) std::cerr << "tessera: verify: interrupted\n";
            return static_cast<int>(report.first         ? kCheckFailed
                                    : report.interrupted ? kInterrupted
                                                         : kFine);
          }};
}

}  // namespace tessera::tool
