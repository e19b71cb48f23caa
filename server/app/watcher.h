// Runs a check at a fixed period on a thread of its own: readiness and stalled streams.
#pragma once

#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/clock.h"

namespace ringfill {

// Lives as long as the checking should go on; the destructor stops it and waits for the last check.
class Watcher {
 public:
  Watcher(Duration period, std::function<void()> check);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  absl::Notification stop_;
  std::thread thread_;
};

// Readiness is progress age, not process life: an engine that has work and has not moved for longer
// than `limit` is not ready. Not thread-safe.
class Readiness {
 public:
  // `publish` is called with each new answer.
  Readiness(double limit_s, std::function<void(bool)> publish)
      : limit_s_(limit_s), publish_(std::move(publish)) {}
  void Update(double seconds_since_progress);

 private:
  const double limit_s_;
  const std::function<void(bool)> publish_;
  bool ready_ = true;
};

}  // namespace ringfill
