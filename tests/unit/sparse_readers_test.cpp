// Readers of valid, hostile, truncated and damaged files.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/pattern.hpp>

#include "tests/support/random.hpp"
#include "tests/unit/error_text.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names
using tessera::testing::contains;
using tessera::testing::error_text;
using Reader = Coo (*)(const std::string&);

// A file of the given contents, deleted with the object.
struct File {
  std::string path;
  explicit File(const std::string& text)
      : path(::testing::TempDir() + "tessera_reader_" + std::to_string(getpid())) {
    std::ofstream(path, std::ios::binary) << text;
  }
  ~File() { std::remove(path.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
};

Coo read(Reader reader, const std::string& text) { return reader(File(text).path); }
std::string refusal(Reader reader, const std::string& text) {
  const File file(text);
  const std::string message = error_text([&] { reader(file.path); }, ErrorCode::io);
  EXPECT_EQ(message.rfind(file.path + ":", 0), 0u) << message;
  return message;
}

using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;
const std::string kBanner = "%%MatrixMarket matrix coordinate ";

TEST(MatrixMarket, RealGeneral) {
  const Coo coo = read(read_matrix_market, kBanner +
                                               "real general\n% a comment\n\n 3 4\t3 \n"
                                               "1 1 0.5\n% another\n3 4 -2e-3\n\n3 1 +7\n\n");
  EXPECT_EQ(coo.rows, 3);
  EXPECT_EQ(coo.cols, 4);
  EXPECT_EQ(coo.row, (Ints{0, 2, 2}));
  EXPECT_EQ(coo.col, (Ints{0, 3, 0}));
  EXPECT_EQ(coo.value, (Doubles{0.5, -2e-3, 7.0}));
}

TEST(MatrixMarket, PatternAndIntegerAndAnyCase) {
  const Coo ones = read(read_matrix_market,
                        "%%MatrixMarket MATRIX Coordinate Pattern GENERAL\r\n2 2 2\r\n1 2\r\n2 1");
  EXPECT_EQ(ones.value, (Doubles{1.0, 1.0}));
  EXPECT_EQ(ones.col, (Ints{1, 0}));
  const Coo whole = read(read_matrix_market, kBanner + "integer general\n1 1 1\n1 1 -12\n");
  EXPECT_EQ(whole.value, (Doubles{-12.0}));
}

TEST(MatrixMarket, SymmetriesAreMirrored) {
  const Coo coo = read(read_matrix_market, kBanner + "real symmetric\n3 3 2\n2 2 5\n3 1 4\n");
  EXPECT_EQ(coo.row, (Ints{1, 2, 0}));
  EXPECT_EQ(coo.col, (Ints{1, 0, 2}));
  EXPECT_EQ(coo.value, (Doubles{5.0, 4.0, 4.0}));
  const Coo skew = read(read_matrix_market, kBanner + "real skew-symmetric\n3 3 1\n3 1 4\n");
  EXPECT_EQ(skew.value, (Doubles{4.0, -4.0}));
}

TEST(MatrixMarket, EmptyMatrices) {
  const Coo coo = read(read_matrix_market, kBanner + "real general\n0 5 0\n");
  EXPECT_EQ(coo.rows, 0);
  EXPECT_EQ(coo.cols, 5);
  EXPECT_TRUE(coo.row.empty());
  EXPECT_EQ(read(read_matrix_market, kBanner + "real general\n5 5 0").rows, 5);
}

TEST(MatrixMarket, RefusesByNameAndLine) {
  const auto text = [](const std::string& contents) {
    return refusal(read_matrix_market, contents);
  };
  const std::string real = kBanner + "real general\n", square = "2 2 1\n";
  EXPECT_PRED2(contains, text(""), "banner");
  EXPECT_PRED2(contains, text("2 2 1\n1 1 1\n"), ":1: expected the banner");
  EXPECT_PRED2(contains, text(kBanner + "complex general\n" + square), "got \"complex\"");
  EXPECT_PRED2(contains, text(kBanner + "real hermitian\n" + square), "got \"hermitian\"");
  EXPECT_PRED2(contains, text("%%MatrixMarket matrix array real general\n"), "got \"array\"");
  EXPECT_PRED2(contains, text("%%MatrixMarket vector coordinate real general\n"), "\"vector\"");
  EXPECT_PRED2(contains, text("%%MatrixMarket matrix coordinate real\n"), "symmetry");
  EXPECT_PRED2(contains, text(real), ":1: expected the sizes");
  EXPECT_PRED2(contains, text(real + "2 2\n1 1 1\n"), "number of entries");
  EXPECT_PRED2(contains, text(real + "2 2 1 1\n1 1 1\n"), ":2: expected the end of the line");
  EXPECT_PRED2(contains, text(real + "-2 2 1\n1 1 1\n"), "number of rows");
  EXPECT_PRED2(contains, text(real + "2 x 1\n1 1 1\n"), "got \"x\"");
  EXPECT_PRED2(contains, text(real + "2 2 -1\n1 1 1\n"), "number of entries");
  EXPECT_PRED2(contains, text(real + "2 2 99999999999999999999\n1 1 1\n"), "number of entries");
  EXPECT_PRED2(contains, text(real + "2 2 1000000000000\n1 1 1\n"), "that the file can hold");
  EXPECT_PRED2(contains, text(real + "2 2 9223372036854775807\n1 1 1\n"), "that the file can hold");
  EXPECT_PRED2(contains, text(real + "2 2 2\n1 1 1000000\n"), ":3: expected 2 entries");
  EXPECT_PRED2(contains, text(real + "2 2 1\n1 1 1\n2 2 2\n"), ":4: expected the end of the file");
  EXPECT_PRED2(contains, text(real + square + "3 1 1\n"), ":3: expected the row from 1 to 2");
  EXPECT_PRED2(contains, text(real + square + "0 1 1\n"), "the row");
  EXPECT_PRED2(contains, text(real + square + "1 3 1\n"), "the column");
  EXPECT_PRED2(contains, text(real + square + "1 1\n"), "the value");
  EXPECT_PRED2(contains, text(real + square + "1 1 one\n"), "got \"one\"");
  EXPECT_PRED2(contains, text(real + square + "1 1 1.5x\n"), "got \"1.5x\"");
  EXPECT_PRED2(contains, text(real + square + "1 1 nan\n"), "finite");
  EXPECT_PRED2(contains, text(real + square + "1 1 1e999\n"), "finite");
  EXPECT_PRED2(contains, text(real + square + "1 1 1 0\n"), "end of the line");
  EXPECT_PRED2(contains, text(real + square + "1.0 1 1\n"), "whole number");
  EXPECT_PRED2(contains, text(real + square + "+-1 1 1\n"), "whole number");
  EXPECT_PRED2(contains, text(kBanner + "integer general\n" + square + "1 1 2.5\n"), "whole");
  EXPECT_PRED2(contains, text(kBanner + "pattern general\n" + square + "1 1 2.5\n"), "end of the");
  EXPECT_PRED2(contains, text(kBanner + "real symmetric\n2 3 1\n1 1 1\n"), "square");
  EXPECT_PRED2(contains, text(kBanner + "real symmetric\n" + square + "1 2 1\n"), "diagonal");
  EXPECT_PRED2(contains, text(kBanner + "real skew-symmetric\n" + square + "1 1 0\n"), "diagonal");
  EXPECT_PRED2(contains, text(real + square + std::string("1 \0 1\n", 6)), "got \"?\"");
  EXPECT_PRED2(contains, text(real + std::string(100000, '7') + "\n"), "7777...\"");
}

TEST(Smtx, OffsetsAndColumns) {
  const Coo coo = read(read_smtx, "3, 5, 4\n0 2 2 4 \n4 0 1 3 \n");
  EXPECT_EQ(coo.rows, 3);
  EXPECT_EQ(coo.cols, 5);
  EXPECT_EQ(coo.row, (Ints{0, 0, 2, 2}));
  EXPECT_EQ(coo.col, (Ints{4, 0, 1, 3}));
  EXPECT_EQ(coo.value, (Doubles{1.0, 1.0, 1.0, 1.0}));
  EXPECT_EQ(read(read_smtx, "2,5,0\n0 0 0").rows, 2);
  EXPECT_EQ(read(read_smtx, "0, 7, 0\n0\n\n").cols, 7);
}

TEST(Smtx, RefusesByLine) {
  const auto text = [](const std::string& contents) { return refusal(read_smtx, contents); };
  EXPECT_PRED2(contains, text(""), "empty file");
  EXPECT_PRED2(contains, text("3, 5\n0 0 0 0\n"), "number of nonzeros");
  EXPECT_PRED2(contains, text("3,,5\n0 0 0 0\n"), "number of columns");
  EXPECT_PRED2(contains, text("3, 5, 1, 1\n0 0 0 1\n1\n"), "end of the line");
  EXPECT_PRED2(contains, text("-3, 5, 1\n"), "number of rows");
  EXPECT_PRED2(contains, text("three, 5, 1\n"), "got \"three\"");
  EXPECT_PRED2(contains, text("9223372036854775806, 5, 1\n0 1\n"), "that the file can hold");
  EXPECT_PRED2(contains, text("1, 5, 9223372036854775806\n0 1\n"), "that the file can hold");
  EXPECT_PRED2(contains, text("1000000, 5, 1000000\n0 1\n1\n"), "that the file can hold");
  EXPECT_PRED2(contains, text("2, 5, 2\n1 1 2\n0 1\n"), ":2: expected the first offset");
  EXPECT_PRED2(contains, text("2, 5, 2\n0 2 1\n0 1\n"), "expected a row offset from 2 to 2, got");
  EXPECT_PRED2(contains, text("2, 5, 2\n0 3 3\n0 1\n"), ":2: expected a row offset");
  EXPECT_PRED2(contains, text("2, 5, 2\n0 1 1\n0 1\n"), "end at the 2 nonzeros");
  EXPECT_PRED2(contains, text("2, 5, 2\n0 1 2\n0 5\n"), ":3: expected a column from 0 to 4");
  EXPECT_PRED2(contains, text("2, 5, 2\n0 1 2\n0 -1\n"), "a column");
  EXPECT_PRED2(contains, text("2, 5, 2\n00 01 02\n0\n"), "a column");
  EXPECT_PRED2(contains, text("2, 5, 2\n0 1 2\n0 1 1\n"), "got more");
}

TEST(Readers, RefusePathsThatAreNoFiles) {
  for (const Reader reader : {Reader{read_matrix_market}, Reader{read_smtx}}) {
    const std::string folder = ::testing::TempDir();
    EXPECT_PRED2(contains, error_text([&] { reader(folder); }, ErrorCode::io), folder);
    EXPECT_PRED2(contains, error_text([&] { reader("/no/such/file"); }, ErrorCode::io),
                 "/no/such/file");
    EXPECT_PRED2(contains, error_text([&] { reader("/dev/zero"); }, ErrorCode::io), "/dev/zero");
  }
}

// Truncated or changed at any byte, a file gives a valid matrix or an Error(io).
void expect_robust(Reader reader, const std::string& good) {
  const auto attempt = [&](const std::string& text) {
    try {
      const Coo coo = read(reader, text);
      EXPECT_LE(coo.row.size(), text.size());
      EXPECT_EQ(coo.row.size(), coo.value.size());
      if (coo.rows < 1000) pattern_of(coo, 1, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
    }
  };
  for (std::size_t length = 0; length <= good.size(); ++length) attempt(good.substr(0, length));
  generate::Random random(41);
  const std::string letters("0123456789 -+.,%e\n\r\0x", 21);
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (std::int64_t change = random.between(1, 3); change > 0; --change) {
      const auto at =
          static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(text.size()) - 1));
      text[at] = letters[static_cast<std::size_t>(random.between(0, 20))];
    }
    attempt(text);
  }
}

TEST(Readers, SurviveDamagedFiles) {
  expect_robust(read_matrix_market, kBanner + "real symmetric\n4 4 3\n1 1 2.5\n4 2 -1\n3 3 1e3\n");
  expect_robust(read_smtx, "3, 5, 4\n0 2 2 4\n4 0 1 3\n");
}

TEST(Readers, TriplesBecomePatterns) {
  const Coo coo = read(read_smtx, "4, 4, 3\n0 1 1 2 3\n3 0 1\n");
  EXPECT_EQ(pattern_of(coo, 2, 2), (Pattern{2, 2, {0, 1, 2}, {1, 0}}));
}

}  // namespace
