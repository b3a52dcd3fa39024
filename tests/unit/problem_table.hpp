#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/error_text.hpp"

namespace tessera::testing {

/// One change to a valid problem, and parts of the expected error; none if the problem stays valid.
template <class Problem>
struct ProblemCase {
  std::string name;
  std::function<void(Problem&)> change;
  std::vector<std::string> says{};
};

/// Makes a fresh problem for each case, changes and checks it.
template <class Make, class Problem, class Check>
void expect_cases(const Make& make, const std::vector<ProblemCase<Problem>>& cases,
                  const Check& check) {
  for (const ProblemCase<Problem>& one : cases) {
    SCOPED_TRACE(one.name);
    Problem problem = make();
    one.change(problem);
    if (one.says.empty()) {
      EXPECT_NO_THROW(check(problem));
      continue;
    }
    const std::string text = error_text([&] { check(problem); });
    for (const std::string& part : one.says) EXPECT_PRED2(contains, text, part);
  }
}

}  // namespace tessera::testing
