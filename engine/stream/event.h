// A point on a device's or a transport's timeline that others wait for.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace ringfill {

// Thread-safe. Completes once, with the status of the work it stands for.
class Event {
 public:
  virtual ~Event() = default;
  // The calling host thread waits. OK, the error of the work, or DEADLINE_EXCEEDED.
  virtual absl::Status Await(Instant deadline) = 0;
  virtual bool done() const = 0;
};

using EventPtr = std::shared_ptr<Event>;

// An event that host code completes.
class HostEvent : public Event {
 public:
  absl::Status Await(Instant deadline) override;
  bool done() const override;
  // REQUIRES: not completed before.
  void Complete(absl::Status status);

 private:
  mutable Mutex mutex_;
  CondVar completed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ringfill
