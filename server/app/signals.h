// SIGTERM, SIGINT and SIGHUP as values, with no work in signal handlers; signals that nobody needs.
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/notification.h"
#include "base/mutex.h"

namespace ringfill {

// What a write cannot do, because its reader is gone (SIGPIPE) or a file has reached the size that
// the process may write (SIGXFSZ), is an error of that write and ends no process from then on.
void IgnoreWriteSignals();

// Create it before any other thread, so that all threads inherit the blocked signals; one a
// process.
class StopSignals {
 public:
  // A signal that comes before Started ends the process at once, with `early_exit_code`: nothing is
  // served yet, and workers end with their leader's connection.
  // `on_hangup`: SIGHUP ends nothing; after Started and before the first of the others this is
  // called for it, from a thread that has nothing else to do. Empty: SIGHUP does what it always
  // did.
  explicit StopSignals(std::optional<int> early_exit_code = std::nullopt,
                       std::function<void()> on_hangup = {});
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on signals are for those who wait for them.
  void Started();

  // Waits for the first signal; returns its number.
  int WaitFirst();
  // True once a second one has come. A third ends the process at once, whatever it is stuck in.
  bool second() const { return second_.HasBeenNotified(); }

 private:
  void Watch();
  void NoteFirst(int number);
  void NoteHangup();

  const std::function<void()> on_hangup_;
  Mutex mutex_;
  std::optional<int> early_exit_code_ ABSL_GUARDED_BY(mutex_);
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  int first_signal_ = 0;  // written before first_ is notified
  absl::Notification first_;
  absl::Notification second_;
  std::thread thread_;
};

}  // namespace ringfill
