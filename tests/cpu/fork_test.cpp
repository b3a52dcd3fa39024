#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "tests/fixtures/expect.hpp"

// A process that is forked after the CPU backend ran on several threads can use the backend too.
namespace tessera {
namespace {

/// The exit status of a forked process that calls `work`; -1 if a signal ended it. SIGALRM ends it
/// after 20 seconds.
template <class Work>
int status_of_child(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    bool done = false;
    try {
      done = work();
    } catch (...) {
      done = false;
    }
    _exit(done ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A lock of AddressSanitizer's allocator that a thread holds at the fork stays locked in the child
// (GCC 12: the child hangs in operator delete).
#if defined(__SANITIZE_ADDRESS__)
#define SKIP_UNDER_ADDRESS_SANITIZER() GTEST_SKIP() << "its allocator does not survive fork"
#else
#define SKIP_UNDER_ADDRESS_SANITIZER() static_cast<void>(0)
#endif

template <class AnyCase>
void repeats_in_children(AnyCase& c) {
  const Execution four{.threads = 4};
  c.memory.arm();
  expect::solve(c.problem, four);
  const std::vector<std::byte> first = c.memory.outputs();
  const auto repeats = [&] {
    c.memory.reset();
    expect::solve(c.problem, four);
    return c.memory.outputs() == first;
  };
  ASSERT_EQ(status_of_child(repeats), 0) << c.text;
  ASSERT_EQ(status_of_child([&] { return repeats() && status_of_child(repeats) == 0; }), 0)
      << c.text;
  EXPECT_TRUE(repeats()) << c.text;
}

TEST(Fork, Matmul) {
  SKIP_UNDER_ADDRESS_SANITIZER();
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    ASSERT_NO_FATAL_FAILURE(repeats_in_children(*generate::matmul_case(seed, {.largest = 600})));
}

TEST(Fork, Attention) {
  SKIP_UNDER_ADDRESS_SANITIZER();
  repeats_in_children(
      *generate::attention_case(5, {.longest = 150, .blocks = {.smallest_block = 8}}));
}

}  // namespace
}  // namespace tessera
