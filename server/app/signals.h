// SIGTERM and SIGINT as values, with no work in signal handlers; signals that nobody needs.
#pragma once

#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"

namespace ringfill {

// What a write cannot do, because its reader is gone (SIGPIPE) or a file has reached the size that
// the process may write (SIGXFSZ), is an error of that write and ends no process from then on.
void IgnoreWriteSignals();

// Create it before any other thread, so that all threads inherit the blocked signals; one a
// process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for the first signal; returns its number.
  int WaitFirst();
  // True once a second one has come.
  bool second() const { return second_.HasBeenNotified(); }

 private:
  void Watch();

  int signal_fd_ = -1;
  int stop_fd_ = -1;
  int first_signal_ = 0;  // written before first_ is notified
  absl::Notification first_;
  absl::Notification second_;
  std::thread thread_;
};

}  // namespace ringfill
