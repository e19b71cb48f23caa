#include "tests/cli/child.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/check.h"

namespace ringfill::cli {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

int MemoryFile(const std::string& contents) {
  const int fd = memfd_create("child", MFD_CLOEXEC);
  RF_CHECK(fd >= 0);
  RF_CHECK(write(fd, contents.data(), contents.size()) == static_cast<ssize_t>(contents.size()));
  RF_CHECK(lseek(fd, 0, SEEK_SET) == 0);
  return fd;
}

std::string Contents(int fd) {
  const off_t size = lseek(fd, 0, SEEK_END);
  std::string text(static_cast<size_t>(size), '\0');
  RF_CHECK(pread(fd, text.data(), text.size(), 0) == size);
  return text;
}

}  // namespace

Child::Child(const std::string& program, const std::vector<std::string>& arguments,
             const std::string& input, const std::vector<std::string>& environment)
    : in_(MemoryFile(input)), out_(MemoryFile("")), err_(MemoryFile("")) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in_, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out_, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err_, STDERR_FILENO);
  RF_CHECK(posix_spawn(&pid_, program.c_str(), &actions, nullptr, Pointers(words).data(),
                       Pointers(variables).data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
}

Child::~Child() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  close(in_);
  close(out_);
  close(err_);
}

void Child::Signal(int signal) { kill(pid_, signal); }

bool Child::WaitForOut(const std::string& text) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (Contents(out_) != text) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

ChildResult Child::Wait() {
  int status = 0;
  RF_CHECK(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = Contents(out_),
          .err = Contents(err_)};
}

}  // namespace ringfill::cli
