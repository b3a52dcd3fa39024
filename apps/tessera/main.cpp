#include "apps/tessera/command.hpp"

#include <iostream>
#include <new>
#include <tessera/error.hpp>
#include <tessera/version.hpp>
#include <vector>

#include "apps/tessera/options.hpp"
#include "apps/tessera/output.hpp"

namespace tessera::tool {

void set_footer(CLI::App& parser, const std::string& examples) {
  parser.footer("Examples:\n" + examples +
                "\nExit codes: 0 fine, 1 a check failed, 2 bad usage or input, "
                "3 unsupported here,\n130 interrupted.");
}

namespace {

int complain(const std::string& message, int code) {
  std::cerr << "tessera: " << message << '\n';
  return code;
}

int exit_code_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::invalid_argument:
    case ErrorCode::io:
      return kBadInput;
    default:
      return kUnsupported;
  }
}

// Some messages of CLI11 have several lines; scripts expect one.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

Command add_version(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("version", "Print the version, like --version");
  return {parser, [] {
            std::cout << TESSERA_VERSION_STRING << '\n';
            return static_cast<int>(kFine);
          }};
}

int run(int argc, char** argv) {
  if (const auto code = run_python_command(argc, argv)) return *code;
  CLI::App app{
      "Block-sparse attention and matrix products: inspect devices and kernels, explain which "
      "kernel would run, and measure."};
  app.name("tessera");
  app.set_version_flag("--version", TESSERA_VERSION_STRING);
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(34);
  const std::vector<Command> commands{add_info(app), add_explain(app), add_demo(app),
                                      add_pattern(app), add_version(app)};
  add_python_commands(app);
  set_footer(app,
             "  tessera info\n"
             "  tessera explain attention --q-length 8192 --heads 16 --device h100\n"
             "  tessera demo\n"
             "Each subcommand has its own --help, with examples.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    return complain(explain_leftovers(app), kBadInput);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    return complain(one_line(error.what()), kBadInput);
  }
  for (const Command& command : commands)
    if (command.parser->parsed()) return command.run();
  return complain("a subcommand is required; tessera --help lists them", kBadInput);
}

int run_or_complain(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return complain(one_line(error.what()), exit_code_of(error));
  } catch (const UsageError& error) {
    return complain(one_line(error.what()), kBadInput);
  } catch (const std::bad_alloc&) {
    return complain("not enough memory for this problem", kUnsupported);
  } catch (const std::exception& error) {
    return complain(one_line(error.what()), kCheckFailed);
  }
}

}  // namespace
}  // namespace tessera::tool

int main(int argc, char** argv) {
  using namespace tessera::tool;
  const int code = run_or_complain(argc, argv);
  const std::string failure = output_failure();
  if (failure.empty()) return code;
  complain("cannot write to standard output: " + failure, kBadInput);
  return code == kFine ? kBadInput : code;
}
