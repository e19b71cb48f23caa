// A program started as a child: in a process group of its own, so that a signal to the terminal's
// group spares it; killed when its object goes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/status.h"

namespace ringfill {

struct ChildExit {
  bool by_signal = false;
  int number = 0;  // the signal or the exit code
  // "was killed by signal 9 (Killed)", "exited with code 3".
  std::string Describe() const;
};

// Thread-safe.
class ChildProcess {
 public:
  // The child reads `input` from this descriptor, to its end.
  static constexpr int kInputFd = 3;
  static constexpr size_t kMaxInputBytes = 4096;

  // `command`: the program's path, then its arguments. The child inherits standard error and the
  // environment, no other descriptor, and no blocked signal. `on_exit` is called once, by a thread
  // of the object's. UNAVAILABLE when it cannot be started.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::vector<std::string>& command, std::span<const std::byte> input,
      std::function<void()> on_exit);
  // Kills it and waits for its end.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Nothing happens when it has ended.
  void Kill(int signal);
  std::optional<ChildExit> exit() const;
  // The exit, waiting for it; nothing when it has not ended in time.
  std::optional<ChildExit> AwaitExit(Instant deadline) const;

 private:
  ChildProcess(pid_t pid, std::function<void()> on_exit);
  void Wait();

  const pid_t pid_;
  const std::function<void()> on_exit_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::optional<ChildExit> exit_ ABSL_GUARDED_BY(mutex_);
  std::thread waiter_;
};

}  // namespace ringfill
