#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <tessera/error.hpp>
#include <tessera/pattern.hpp>

#include "apps/tessera/command.hpp"
#include "apps/tessera/figures.hpp"
#include "apps/tessera/options.hpp"
#include "apps/tessera/output.hpp"
#include "apps/tessera/table.hpp"

namespace tessera::tool {

namespace {

struct Options {
  std::string source, output;
  bool json = false, preview = true;
  std::int64_t rows = 64, cols = 0;
  std::int64_t block = 1, block_cols = 0;
  double density = 0.1, exponent = 1.0, zipf = 0.0;
  std::int64_t half_width = 2, global = 1, random = 2, groups = 8, levels = 4;
  std::int64_t n = 2, m = 8, verticals = 4, slashes = 4, k = 8, unknowns = 1, tile_blocks = 1;
  std::array<std::int64_t, 3> volume{4, 4, 4}, neighbourhood{3, 3, 3};
  bool causal = true;
  std::uint64_t seed = 1;
  OptionScopes scopes;
};

const std::vector<std::string> kGenerators{
    "random",         "banded",        "causal",       "bigbird", "block_diagonal",
    "butterfly",      "power_law",     "n_of_m",       "mesh",    "power_law_graph",
    "vertical_slash", "heavy_hitters", "sliding_tile",
};

// The subject name of files, for options that apply to files instead of generators.
const std::string kFile = "files";

bool is_generator(const std::string& name) {
  return std::find(kGenerators.begin(), kGenerators.end(), name) != kGenerators.end();
}

// A pattern takes 8 bytes per row and per stored block: refuses sizes that would not fit in memory
// before anything is allocated.
void check_size(const std::string& where, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kMax = std::int64_t{1} << 26;
  if (rows > kMax || cols > kMax)
    throw UsageError("pattern: " + where + ": expected at most 2^26 block rows and columns, got " +
                     std::to_string(rows) + " x " + std::to_string(cols));
}

void check_generated(const std::string& where, double rows, double cols) {
  constexpr double kMaxBlocks = 1 << 28;
  if (rows * cols > kMaxBlocks)
    throw UsageError("pattern: " + where + ": expected at most 2^28 blocks");
}

// The generators whose patterns have sizes that follow from other options than --rows and --cols.
Pattern generate_volume(const Options& o) {
  double cells = 1;
  for (const std::int64_t size : o.volume) cells *= static_cast<double>(size);
  if (o.source == "sliding_tile") {
    const double rows = cells * static_cast<double>(o.tile_blocks);
    check_generated("--volume, --tile-blocks", rows, rows);
    return patterns::sliding_tile(o.volume, o.neighbourhood, o.tile_blocks);
  }
  constexpr double kMaxNodes = 1 << 24;
  if (cells > kMaxNodes)
    throw UsageError("pattern: --volume: expected at most 2^24 nodes for mesh");
  const double rows = cells * static_cast<double>(o.unknowns) / static_cast<double>(o.block);
  check_generated("--volume, --unknowns, --block", rows, rows);
  return patterns::mesh(o.volume, o.unknowns, o.block);
}

Pattern generate(const Options& o) {
  o.scopes.check("pattern", o.source);
  if (o.source == "sliding_tile" || o.source == "mesh") return generate_volume(o);
  const std::int64_t cols = o.cols ? o.cols : o.rows;
  check_size("--rows, --cols", o.rows, cols);
  check_generated("--rows, --cols", static_cast<double>(o.rows), static_cast<double>(cols));
  if (o.source == "random") return patterns::random(o.rows, cols, o.density, o.seed);
  if (o.source == "banded") return patterns::banded(o.rows, cols, o.half_width);
  if (o.source == "causal") return patterns::causal(o.rows, cols);
  if (o.source == "bigbird")
    return patterns::bigbird(o.rows, cols, o.half_width, o.global, o.random, o.seed);
  if (o.source == "block_diagonal")
    return patterns::block_diagonal(o.rows, cols, o.groups, o.zipf, o.seed);
  if (o.source == "butterfly") return patterns::butterfly(o.rows, cols, o.levels);
  if (o.source == "power_law")
    return patterns::power_law(o.rows, cols, o.density, o.exponent, o.seed);
  if (o.source == "power_law_graph")
    return patterns::power_law_graph(o.rows, cols, o.density, o.exponent, o.seed);
  if (o.source == "n_of_m") return patterns::n_of_m(o.rows, cols, o.n, o.m, o.seed);
  if (o.source == "vertical_slash")
    return patterns::vertical_slash(o.rows, cols, o.verticals, o.slashes, o.causal, o.seed);
  return patterns::heavy_hitters(o.rows, cols, o.k, o.causal, o.seed);
}

Pattern load(const Options& o) {
  const std::string kind = std::filesystem::path(o.source).extension().string();
  if (kind != ".mtx" && kind != ".smtx")
    throw UsageError("pattern: " + o.source + ": expected a .mtx or .smtx file, or a generator: " +
                     CLI::detail::join(kGenerators, ", ") + did_you_mean(o.source, kGenerators));
  o.scopes.check("pattern", kFile);
  const Coo elements = kind == ".mtx" ? read_matrix_market(o.source) : read_smtx(o.source);
  const std::int64_t block_cols = o.block_cols ? o.block_cols : o.block;
  check_size(o.source, elements.rows / o.block, elements.cols / block_cols);
  return pattern_of(elements, o.block, block_cols);
}

nlohmann::ordered_json to_json(const Options& o, const PatternStatistics& s) {
  return {{"source", o.source},
          {"rows", s.rows},
          {"cols", s.cols},
          {"stored", s.stored},
          {"density", s.density},
          {"shortest_row", s.shortest_row},
          {"longest_row", s.longest_row},
          {"mean_row", s.mean_row},
          {"empty_rows", s.empty_rows},
          {"empty_cols", s.empty_cols},
          {"imbalance", s.imbalance},
          {"neighbour_overlap", s.neighbour_overlap},
          {"histogram", {{"edges", s.histogram_edges}, {"counts", s.histogram_counts}}}};
}

std::string to_text(const PatternStatistics& s) {
  Table table({{"pattern"}, {"value", Table::Align::right}});
  table.add({"block rows x columns", std::to_string(s.rows) + " x " + std::to_string(s.cols)});
  table.add({"stored blocks", std::to_string(s.stored)});
  table.add({"density", brief(s.density * 100) + "%"});
  table.add({"min blocks per row", std::to_string(s.shortest_row)});
  table.add({"mean blocks per row", brief(s.mean_row)});
  table.add({"max blocks per row", std::to_string(s.longest_row)});
  table.add({"max / mean", brief(s.imbalance)});
  table.add({"empty rows", std::to_string(s.empty_rows)});
  table.add({"empty columns", std::to_string(s.empty_cols)});
  table.add({"shared with the next row", brief(s.neighbour_overlap * 100) + "%"});
  return table.text();
}

void check_picture(const std::string& path) {
  if (std::filesystem::path(path).extension() != ".svg")
    throw UsageError("pattern: --output: expected a name that ends in .svg, got " + path);
  check_writable("pattern: --output", path);
}

int preview_columns() {
  constexpr int kPreferred = 64;
  const int columns = output_columns();
  return columns > 0 ? std::min(columns, kPreferred) : kPreferred;
}

int run_pattern(const Options& o) {
  if (!o.output.empty()) check_picture(o.output);
  const Pattern pattern = is_generator(o.source) ? generate(o) : load(o);
  const PatternStatistics figures = statistics(pattern);
  if (!o.output.empty()) {
    const std::string name = std::filesystem::path(o.source).filename().string();
    write_file(o.output, to_svg(pattern_and_rows_figure(pattern, figures, name), true));
  }
  if (o.json) {
    // File names may be invalid UTF-8, which JSON does not allow.
    using Handler = nlohmann::ordered_json::error_handler_t;
    std::cout << to_json(o, figures).dump(2, ' ', false, Handler::replace) << '\n';
    return kFine;
  }
  if (o.preview) std::cout << terminal_preview(pattern, preview_columns()) << '\n';
  std::cout << to_text(figures);
  if (!o.output.empty()) std::cout << "\nwrote " << o.output << '\n';
  return kFine;
}

// Adds the options of generators; the help of each option names the generators that it applies to.
class GeneratorParser {
 public:
  GeneratorParser(CLI::App& parser, OptionScopes& scopes) : parser_(parser), scopes_(scopes) {}

  template <class T>
  CLI::Option* option(const char* name, T& value, const std::string& what,
                      const CLI::Validator& check, std::vector<std::string> users) {
    return place(parser_.add_option(name, value)->check(check), what, std::move(users));
  }
  void flag(const char* name, bool& value, const std::string& what,
            std::vector<std::string> users) {
    place(parser_.add_flag(name, value), what, std::move(users));
  }

 private:
  CLI::Option* place(CLI::Option* option, const std::string& what, std::vector<std::string> users) {
    const bool most = users.size() > kGenerators.size() / 2;
    option->description((most ? "" : CLI::detail::join(users, ", ") + ": ") + what)
        ->group(users.front() == kFile ? "Files" : "Generators (sizes count blocks)");
    return scopes_.only(option, std::move(users));
  }

  CLI::App& parser_;
  OptionScopes& scopes_;
};

std::vector<std::string> generators_but(const std::vector<std::string>& others) {
  std::vector<std::string> names = kGenerators;
  std::erase_if(names, [&](const std::string& name) {
    return std::find(others.begin(), others.end(), name) != others.end();
  });
  return names;
}

void add_generator_options(GeneratorParser& parser, Options& o) {
  const CLI::Validator size = non_negative_integer(), count = positive_integer();
  parser.option("--block", o.block,
                "rows of a block, of elements (files) or of unknowns (mesh) [1]", count,
                {kFile, "mesh"});
  parser.option("--block-cols", o.block_cols, "columns of a block [--block]", count, {kFile});
  const auto sized = generators_but({"mesh", "sliding_tile"});
  parser.option("--rows", o.rows, "block rows [64]", size, sized);
  parser.option("--cols", o.cols, "block columns [--rows]", size, sized);
  parser.option("--seed", o.seed, "random seed [1]", size,
                generators_but({"banded", "causal", "butterfly", "mesh", "sliding_tile"}));
  parser.option("--density", o.density, "share of stored blocks, 0 to 1 [0.1]",
                number_between(0, 1), {"random", "power_law", "power_law_graph"});
  parser.option("--half-width", o.half_width, "blocks on each side of the diagonal [2]", size,
                {"banded", "bigbird"});
  parser.option("--global", o.global, "full rows and columns [1]", size, {"bigbird"});
  parser.option("--random", o.random, "random blocks per row [2]", size, {"bigbird"});
  parser.option("--groups", o.groups, "number of groups [8]", count, {"block_diagonal"});
  parser.option("--zipf", o.zipf, "exponent of Zipf's law for the sizes of groups [0: equal]",
                non_negative_number(), {"block_diagonal"});
  parser.option("--levels", o.levels, "number of levels [4]", size, {"butterfly"});
  parser.option("--exponent", o.exponent, "exponent of the power law [1]", non_negative_number(),
                {"power_law", "power_law_graph"});
}

void add_structured_options(GeneratorParser& parser, Options& o) {
  const CLI::Validator size = non_negative_integer(), count = positive_integer();
  parser.option("--n", o.n, "stored blocks of each --m adjacent ones [2]", size, {"n_of_m"});
  parser.option("--m", o.m, "group size [8]", count, {"n_of_m"});
  parser.option("--verticals", o.verticals, "number of columns [4]", size, {"vertical_slash"});
  parser.option("--slashes", o.slashes, "number of diagonals [4]", size, {"vertical_slash"});
  parser.option("--k", o.k, "blocks per row [8]", size, {"heavy_hitters"});
  parser.flag("!--not-causal", o.causal, "also store blocks beyond the diagonal",
              {"vertical_slash", "heavy_hitters"});
  parser
      .option("--volume", o.volume, "numbers of tiles or nodes: frames,height,width [4,4,4]", count,
              {"sliding_tile", "mesh"})
      ->delimiter(',');
  parser
      .option("--neighbourhood", o.neighbourhood, "size of the box that a tile sees [3,3,3]", count,
              {"sliding_tile"})
      ->delimiter(',');
  parser.option("--tile-blocks", o.tile_blocks, "blocks per tile [1]", count, {"sliding_tile"});
  parser.option("--unknowns", o.unknowns, "unknowns per node [1]", count, {"mesh"});
}

}  // namespace

Command add_pattern(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* parser =
      app.add_subcommand("pattern", "Show statistics and a picture of a sparsity pattern");
  parser
      ->add_option("SOURCE", o->source,
                   "a .mtx or .smtx file, or a generator: " + CLI::detail::join(kGenerators, ", "))
      ->required();
  parser->add_option("-o,--output", o->output, "also write a picture to this .svg file");
  parser->add_flag("--json", o->json, "print JSON");
  parser->add_flag("!--no-preview", o->preview, "print no picture in the terminal");
  GeneratorParser options(*parser, o->scopes);
  add_generator_options(options, *o);
  add_structured_options(options, *o);
  set_footer(*parser,
             "  tessera pattern bigbird --rows 128 --half-width 1 --random 3\n"
             "  tessera pattern mesh --volume 8,8,8 --unknowns 3 --block 16\n"
             "  tessera pattern weights.smtx --block 16 --output weights.svg\n"
             "  tessera pattern power_law --rows 1024 --density 0.02 --json");
  return {parser, [o] { return run_pattern(*o); }};
}

}  // namespace tessera::tool
