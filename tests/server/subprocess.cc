#include "tests/server/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"

extern char** environ;

namespace ringfill {

Subprocess::Subprocess(const std::vector<std::string>& command) {
  int pipe_ends[2];
  RF_CHECK(pipe2(pipe_ends, O_CLOEXEC) == 0);
  out_ = pipe_ends[0];
  err_ = memfd_create("errors", MFD_CLOEXEC);
  RF_CHECK(err_ >= 0);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err_, STDERR_FILENO);
  RF_CHECK(posix_spawn(&pid_, words[0], &actions, nullptr, words.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
}

Subprocess::~Subprocess() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  close(out_);
  close(err_);
}

std::string Subprocess::ReadLine() {
  size_t end;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    char bytes[4096];
    const ssize_t n = read(out_, bytes, sizeof(bytes));
    if (n <= 0) return std::exchange(buffer_, "");
    buffer_.append(bytes, static_cast<size_t>(n));
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

void Subprocess::Signal(int signal) { kill(pid_, signal); }

int Subprocess::Wait() {
  char bytes[4096];
  for (ssize_t n; (n = read(out_, bytes, sizeof(bytes))) > 0;) {
    buffer_.append(bytes, static_cast<size_t>(n));
  }
  int status = 0;
  RF_CHECK(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string Subprocess::Errors() const {
  struct stat state;
  RF_CHECK(fstat(err_, &state) == 0);
  std::string text(static_cast<size_t>(state.st_size), '\0');
  RF_CHECK(pread(err_, text.data(), text.size(), 0) == state.st_size);
  return text;
}

}  // namespace ringfill
