#include "engine/stream/event.h"

#include "base/check.h"

namespace ringfill {

absl::Status HostEvent::Await(Instant deadline) {
  MutexLock lock(&mutex_);
  while (!done_) {
    if (!completed_.WaitUntil(&mutex_, deadline) && !done_) {
      return absl::DeadlineExceededError("queued work did not finish in time");
    }
  }
  return status_;
}

bool HostEvent::done() const {
  MutexLock lock(&mutex_);
  return done_;
}

void HostEvent::Complete(absl::Status status) {
  MutexLock lock(&mutex_);
  RF_CHECK(!done_);
  done_ = true;
  status_ = std::move(status);
  completed_.SignalAll();
}

}  // namespace ringfill
