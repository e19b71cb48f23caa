#include "engine/worker/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/comm/tcp/socket.h"

extern char** environ;

namespace ringfill {
namespace {

// What posix_spawn is told; freed at its end.
struct SpawnSetup {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  explicit SpawnSetup(int input) {
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, input, ChildProcess::kInputFd);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&files, ChildProcess::kInputFd + 1);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
};

}  // namespace

std::string ChildExit::Describe() const {
  if (!by_signal) return absl::StrCat("exited with code ", number);
  return absl::StrCat("was killed by signal ", number, " (", strsignal(number),
                      number == SIGKILL ? "; the system's log says if memory ran out)" : ")");
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& command, std::span<const std::byte> input,
    std::function<void()> on_exit) {
  RF_CHECK(!command.empty() && input.size() <= kMaxInputBytes);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
  }
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  // Fits the pipe, so nobody waits.
  RF_CHECK(write(write_end.get(), input.data(), input.size()) ==
           static_cast<ssize_t>(input.size()));
  write_end.Close();
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const SpawnSetup setup(read_end.get());
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, words[0], &setup.files, &setup.attributes, words.data(), environ);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot start ", command[0], ": ", std::strerror(error)));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, std::move(on_exit)));
}

ChildProcess::ChildProcess(pid_t pid, std::function<void()> on_exit)
    : pid_(pid), on_exit_(std::move(on_exit)), waiter_([this] { Wait(); }) {}

ChildProcess::~ChildProcess() {
  Kill(SIGKILL);
  waiter_.join();
}

void ChildProcess::Kill(int signal) {
  MutexLock lock(&mutex_);
  if (!exit_.has_value()) kill(pid_, signal);
}

std::optional<ChildExit> ChildProcess::exit() const {
  MutexLock lock(&mutex_);
  return exit_;
}

std::optional<ChildExit> ChildProcess::AwaitExit(Instant deadline) const {
  MutexLock lock(&mutex_);
  while (!exit_.has_value() && changed_.WaitUntil(&mutex_, deadline)) {
  }
  return exit_;
}

void ChildProcess::Wait() {
  siginfo_t info = {};
  // Left a zombie until Kill knows that it has ended: its number is not given to another process.
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  {
    MutexLock lock(&mutex_);
    exit_ = ChildExit{info.si_code != CLD_EXITED, info.si_status};
    changed_.SignalAll();
  }
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  on_exit_();
}

}  // namespace ringfill
