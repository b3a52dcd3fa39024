#include <cstdint>
#include <limits>
#include <string>

#include <tessera/pattern.hpp>

#include "src/sparse/support.hpp"
#include "src/sparse/text_file.hpp"

namespace tessera {

Coo read_smtx(const std::string& path) {
  sparse::TextFile file(path);
  if (!file.next_line()) file.fail("expected \"rows, columns, nonzeros\", got an empty file");
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() - 1;
  Coo coo;
  coo.rows = file.integer(file.field(','), "the number of rows", 0, kLargest);
  coo.cols = file.integer(file.field(','), "the number of columns", 0, kLargest);
  const std::int64_t stored = file.integer(file.field(','), "the number of nonzeros", 0, kLargest);
  file.end_of_line();
  // Every offset and column takes at least two bytes, a digit and a blank, except for the last one.
  const std::int64_t numbers = (file.bytes_left() + 1) / 2;
  if (coo.rows >= numbers || stored > numbers - coo.rows - 1) {
    file.fail("expected sizes that the file can hold, got " + std::to_string(coo.rows) +
              " rows and " + std::to_string(stored) + " nonzeros in " +
              std::to_string(file.bytes_left()) + " bytes");
  }
  sparse::reserve(coo.row, stored, path);
  sparse::reserve(coo.col, stored, path);
  std::int64_t before = file.integer(file.field_on_any_line(), "the first offset", 0, 0);
  for (std::int64_t i = 0; i < coo.rows; ++i) {
    const std::int64_t end = file.integer(file.field_on_any_line(), "a row offset", before, stored);
    coo.row.insert(coo.row.end(), static_cast<std::size_t>(end - before), i);
    before = end;
  }
  if (before != stored) {
    file.fail("expected offsets that end at the " + std::to_string(stored) + " nonzeros, got " +
              std::to_string(before));
  }
  for (std::int64_t e = 0; e < stored; ++e) {
    coo.col.push_back(file.integer(file.field_on_any_line(), "a column", 0, coo.cols - 1));
  }
  if (!file.field_on_any_line().empty()) {
    file.fail("expected the end of the file after " + std::to_string(stored) +
              " columns, got more");
  }
  coo.value.assign(static_cast<std::size_t>(stored), 1.0);
  return coo;
}

}  // namespace tessera
