#include "apps/tessera/coprocess.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "apps/tessera/interrupt.hpp"

extern char** environ;

namespace tessera::tool {

Coprocess::Coprocess(const std::vector<std::string>& command) {
  // A socket instead of two pipes: writing to one whose reader has died is an error, not a signal.
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::runtime_error(std::string("socketpair: ") + std::strerror(errno));
  socket_ = ends[0];
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const int failure =
      posix_spawnp(&process_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failure != 0) {
    close(socket_);
    throw std::runtime_error("cannot start " + command[0] + ": " + std::strerror(failure));
  }
}

Coprocess::~Coprocess() {
  // The end of its input tells a well-behaved program to leave; one that does not is ended.
  shutdown(socket_, SHUT_WR);
  for (int i = 0; i < 50; ++i) {
    if (waitpid(process_, nullptr, WNOHANG) != 0) {
      close(socket_);
      return;
    }
    usleep(20'000);
  }
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  close(socket_);
}

void Coprocess::send(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::send(socket_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::runtime_error("the program ended");
    done += static_cast<std::size_t>(count);
  }
}

std::string Coprocess::receive(double timeout_seconds) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_seconds);
  for (;;) {
    const std::size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    check_interrupt();
    if (left <= 0) throw std::runtime_error("no answer in time");
    pollfd waiting{socket_, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(left)) <= 0) continue;
    std::array<char, 4096> buffer{};
    const ssize_t count = recv(socket_, buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw std::runtime_error("the program ended without an answer");
    received_.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace tessera::tool
