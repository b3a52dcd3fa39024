#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/pattern.hpp>

#include "src/sparse/support.hpp"
#include "src/sparse/text_file.hpp"

namespace tessera {
namespace {

using sparse::TextFile;

enum class Field { real, integer, pattern };
enum class Symmetry { general, symmetric, skew_symmetric };

struct Banner {
  Field field;
  Symmetry symmetry;
};

// The index of the banner's next word among the accepted ones, ignoring case.
int choose(TextFile& file, const char* what, const std::vector<std::string>& accepted) {
  std::string word(file.field());
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string names;
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    if (word == accepted[i]) return static_cast<int>(i);
    names += (i ? ", " : "") + accepted[i];
  }
  constexpr std::size_t kShown = 40;
  file.fail(std::string("banner: ") + what + ": expected " + names + ", got \"" +
            word.substr(0, kShown) + "\"");
}

Banner read_banner(TextFile& file) {
  if (!file.next_line() || file.field() != "%%MatrixMarket") {
    file.fail("expected the banner %%MatrixMarket at the file's beginning");
  }
  choose(file, "object", {"matrix"});
  choose(file, "format", {"coordinate"});
  const auto field = static_cast<Field>(choose(file, "field", {"real", "integer", "pattern"}));
  const auto symmetry =
      static_cast<Symmetry>(choose(file, "symmetry", {"general", "symmetric", "skew-symmetric"}));
  file.end_of_line();
  return {field, symmetry};
}

// Moves to the next line that is neither blank nor a comment.
bool next_data_line(TextFile& file) {
  while (file.next_line()) {
    const auto first = file.line().find_first_not_of(" \t\r");
    if (first != std::string_view::npos && file.line()[first] != '%') return true;
  }
  return false;
}

double read_value(TextFile& file, Field field) {
  if (field == Field::pattern) return 1.0;
  if (field == Field::real) return file.real(file.field(), "the value");
  using Limits = std::numeric_limits<std::int64_t>;
  return static_cast<double>(file.integer(file.field(), "the value", Limits::min(), Limits::max()));
}

void read_entry(TextFile& file, const Banner& banner, Coo& coo) {
  const std::int64_t row = file.integer(file.field(), "the row", 1, coo.rows) - 1;
  const std::int64_t col = file.integer(file.field(), "the column", 1, coo.cols) - 1;
  const double value = read_value(file, banner.field);
  file.end_of_line();
  const auto add = [&](std::int64_t r, std::int64_t c, double v) {
    coo.row.push_back(r);
    coo.col.push_back(c);
    coo.value.push_back(v);
  };
  add(row, col, value);
  if (banner.symmetry == Symmetry::general) return;
  const bool skew = banner.symmetry == Symmetry::skew_symmetric;
  if (row < col || (skew && row == col)) {
    file.fail(std::string("expected an entry below the diagonal") + (skew ? "" : " or on it") +
              ", as the banner's symmetry says, got row " + std::to_string(row + 1) + ", column " +
              std::to_string(col + 1));
  }
  if (row != col) add(col, row, skew ? -value : value);
}

}  // namespace

Coo read_matrix_market(const std::string& path) {
  TextFile file(path);
  const Banner banner = read_banner(file);
  if (!next_data_line(file)) file.fail("expected the sizes, got the end of the file");
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  Coo coo;
  coo.rows = file.integer(file.field(), "the number of rows", 0, kLargest);
  coo.cols = file.integer(file.field(), "the number of columns", 0, kLargest);
  const std::int64_t entries = file.integer(file.field(), "the number of entries", 0, kLargest);
  file.end_of_line();
  if (banner.symmetry != Symmetry::general && coo.rows != coo.cols) {
    file.fail("expected a square matrix, as the banner's symmetry says, got " +
              std::to_string(coo.rows) + " x " + std::to_string(coo.cols));
  }
  constexpr std::int64_t kEntryBytes = 4;  // "1 1\n"; the last line may lack its newline
  if (entries > (file.bytes_left() + 1) / kEntryBytes) {
    file.fail("expected entries that the file can hold, got " + std::to_string(entries) + " in " +
              std::to_string(file.bytes_left()) + " bytes");
  }
  const std::int64_t copies = banner.symmetry == Symmetry::general ? 1 : 2;
  for (std::vector<std::int64_t>* list : {&coo.row, &coo.col}) {
    sparse::reserve(*list, copies * entries, path);
  }
  sparse::reserve(coo.value, copies * entries, path);
  for (std::int64_t e = 0; e < entries; ++e) {
    if (!next_data_line(file)) {
      file.fail("expected " + std::to_string(entries) + " entries, got the end of the file after " +
                std::to_string(e));
    }
    read_entry(file, banner, coo);
  }
  if (next_data_line(file)) {
    file.fail("expected the end of the file after " + std::to_string(entries) +
              " entries, got more");
  }
  return coo;
}

}  // namespace tessera
