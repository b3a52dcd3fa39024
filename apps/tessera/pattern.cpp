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
};

const std::vector<std::string> kGenerators{
    "random",         "banded",        "causal",       "bigbird", "block_diagonal",
    "butterfly",      "power_law",     "n_of_m",       "mesh",    "power_law_graph",
    "vertical_slash", "heavy_hitters", "sliding_tile",
};

bool is_generator(const std::string& name) {
  return std::find(kGenerators.begin(), kGenerators.end(), name) != kGenerators.end();
}

// A pattern takes eight bytes a row, and each one a block: sizes that nobody has memory for are
// refused before anything is made.
void check_size(const std::string& where, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kMost = std::int64_t{1} << 26;
  if (rows > kMost || cols > kMost)
    throw UsageError("pattern: " + where + ": " + std::to_string(rows) + " x " +
                     std::to_string(cols) +
                     " blocks are too many, at most 2^26 a side are accepted");
}

void check_generated(const std::string& where, double rows, double cols) {
  constexpr double kMostBlocks = 1 << 28;
  if (rows * cols > kMostBlocks)
    throw UsageError("pattern: " + where + ": at most 2^28 blocks are accepted");
}

// Generators that say themselves how large their patterns are.
Pattern generate_volume(const Options& o) {
  double cells = 1;
  for (const std::int64_t size : o.volume) cells *= static_cast<double>(size);
  if (o.source == "sliding_tile") {
    const double rows = cells * static_cast<double>(o.tile_blocks);
    check_generated("--volume, --tile-blocks", rows, rows);
    return patterns::sliding_tile(o.volume, o.neighbourhood, o.tile_blocks);
  }
  constexpr double kMostNodes = 1 << 24;
  if (cells > kMostNodes)
    throw UsageError("pattern: --volume: at most 2^24 nodes of a mesh are accepted");
  const double rows = cells * static_cast<double>(o.unknowns) / static_cast<double>(o.block);
  check_generated("--volume, --unknowns, --block", rows, rows);
  return patterns::mesh(o.volume, o.unknowns, o.block);
}

Pattern generate(const Options& o) {
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
                     CLI::detail::join(kGenerators, ", "));
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
  Table table({{"pattern"}, {"", Table::Align::right}});
  table.add({"block rows x columns", std::to_string(s.rows) + " x " + std::to_string(s.cols)});
  table.add({"stored blocks", std::to_string(s.stored)});
  table.add({"density", brief(s.density * 100) + "%"});
  table.add({"fewest blocks in a row", std::to_string(s.shortest_row)});
  table.add({"mean blocks in a row", brief(s.mean_row)});
  table.add({"most blocks in a row", std::to_string(s.longest_row)});
  table.add({"most over mean", brief(s.imbalance)});
  table.add({"empty rows", std::to_string(s.empty_rows)});
  table.add({"empty columns", std::to_string(s.empty_cols)});
  table.add({"shared with the next row", brief(s.neighbour_overlap * 100) + "%"});
  return table.text();
}

void write_picture(const std::string& path, const Picture& picture) {
  const std::string kind = std::filesystem::path(path).extension().string();
  if (kind == ".svg") return write_file(path, to_svg(picture, true));
  if (kind == ".png") return write_file(path, to_png(picture));
  throw UsageError("pattern: --output: expected a name that ends in .svg or .png, got " + path);
}

int run_pattern(const Options& o) {
  const Pattern pattern = is_generator(o.source) ? generate(o) : load(o);
  const PatternStatistics figures = statistics(pattern);
  if (!o.output.empty()) {
    const std::string name = std::filesystem::path(o.source).filename().string();
    write_picture(o.output, pattern_and_rows_figure(pattern, figures, name));
  }
  if (o.json) {
    // A file's name may hold any bytes; JSON holds UTF-8.
    using Handler = nlohmann::ordered_json::error_handler_t;
    std::cout << to_json(o, figures).dump(2, ' ', false, Handler::replace) << '\n';
    return kFine;
  }
  if (o.preview) std::cout << terminal_preview(pattern) << '\n';
  std::cout << to_text(figures);
  if (!o.output.empty()) std::cout << "\nwrote " << o.output << '\n';
  return kFine;
}

void add_structured_options(CLI::App& parser, Options& o, const std::string& group) {
  const auto size = CLI::NonNegativeNumber;
  const auto count = CLI::PositiveNumber;
  parser.add_option("--n", o.n, "n_of_m: blocks stored [2]")->check(size)->group(group);
  parser.add_option("--m", o.m, "n_of_m: of each so many [8]")->check(count)->group(group);
  parser.add_option("--verticals", o.verticals, "vertical_slash: columns [4]")
      ->check(size)
      ->group(group);
  parser.add_option("--slashes", o.slashes, "vertical_slash: diagonals [4]")
      ->check(size)
      ->group(group);
  parser.add_option("--k", o.k, "heavy_hitters: blocks a row [8]")->check(size)->group(group);
  parser.add_flag("!--not-causal", o.causal, "vertical_slash, heavy_hitters: beyond the diagonal")
      ->group(group);
  const auto three = [&](const char* name, std::array<std::int64_t, 3>& sizes, const char* what) {
    parser.add_option(name, sizes, what)->delimiter(',')->check(count)->group(group);
  };
  three("--volume", o.volume, "sliding_tile: tiles, mesh: nodes, as frames,height,width [4,4,4]");
  three("--neighbourhood", o.neighbourhood, "sliding_tile: tiles that a tile sees [3,3,3]");
  parser.add_option("--tile-blocks", o.tile_blocks, "sliding_tile: blocks of a tile [1]")
      ->check(count)
      ->group(group);
  parser.add_option("--unknowns", o.unknowns, "mesh: of each node [1]")->check(count)->group(group);
}

}  // namespace

Command add_pattern(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* parser = app.add_subcommand("pattern", "Figures and a picture of a sparsity pattern");
  const auto size = CLI::NonNegativeNumber;
  parser
      ->add_option("SOURCE", o->source,
                   "a .mtx or .smtx file, or a generator: " + CLI::detail::join(kGenerators, ", "))
      ->required();
  parser->add_option("-o,--output", o->output, "also draw it into this .svg or .png file");
  parser->add_flag("--json", o->json, "print JSON");
  parser->add_flag("!--no-preview", o->preview, "no picture in the terminal");
  const std::string file = "Files", made = "Generators (sizes count blocks)";
  parser
      ->add_option("--block", o->block,
                   "group the elements, or a mesh's unknowns, into blocks of so many rows [1]")
      ->check(CLI::PositiveNumber)
      ->group(file);
  parser->add_option("--block-cols", o->block_cols, "and so many columns [those of --block]")
      ->check(CLI::PositiveNumber)
      ->group(file);
  parser->add_option("--rows", o->rows, "block rows [64]")->check(size)->group(made);
  parser->add_option("--cols", o->cols, "block columns [--rows]")->check(size)->group(made);
  parser
      ->add_option("--density", o->density,
                   "random, power_law, power_law_graph: share stored [0.1]")
      ->check(number_between(0, 1))
      ->group(made);
  parser->add_option("--half-width", o->half_width, "banded, bigbird [2]")
      ->check(size)
      ->group(made);
  parser->add_option("--global", o->global, "bigbird: whole rows and columns [1]")
      ->check(size)
      ->group(made);
  parser->add_option("--random", o->random, "bigbird: more blocks a row [2]")
      ->check(size)
      ->group(made);
  parser->add_option("--groups", o->groups, "block_diagonal [8]")
      ->check(CLI::PositiveNumber)
      ->group(made);
  parser->add_option("--zipf", o->zipf, "block_diagonal: uneven groups by this exponent [0]")
      ->check(size)
      ->group(made);
  parser->add_option("--levels", o->levels, "butterfly [4]")->check(size)->group(made);
  parser->add_option("--exponent", o->exponent, "power_law, power_law_graph [1]")
      ->check(size)
      ->group(made);
  parser->add_option("--seed", o->seed, "of what is drawn at random [1]")->check(size)->group(made);
  add_structured_options(*parser, *o, made);
  set_footer(*parser,
             "  tessera pattern bigbird --rows 128 --half-width 1 --random 3\n"
             "  tessera pattern mesh --volume 8,8,8 --unknowns 3 --block 16\n"
             "  tessera pattern weights.smtx --block 16 --output weights.svg\n"
             "  tessera pattern power_law --rows 1024 --density 0.02 --json");
  return {parser, [o] { return run_pattern(*o); }};
}

}  // namespace tessera::tool
