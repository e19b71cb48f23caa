// SIGTERM and SIGINT as values, with no work in signal handlers.
#pragma once

#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"

namespace ringfill {

// Create it before any other thread, so that all threads inherit the blocked signals; one a
// process. SIGPIPE is ignored from then on.
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
