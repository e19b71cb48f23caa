#include "engine/stream/event.h"

#include "base/check.h"

namespace ringfill {
namespace {

// Copies of a status share a counted message, and the thread sanitizer does not see the counting
// inside the packaged library: what goes to other threads is a copy that shares nothing. Payloads
// are not kept.
absl::Status Unshared(const absl::Status& status) {
  return absl::Status(status.code(), status.message());
}

}  // namespace

absl::Status HostEvent::Await(Instant deadline) {
  MutexLock lock(&mutex_);
  while (!done_) {
    if (!completed_.WaitUntil(&mutex_, deadline) && !done_) {
      return absl::DeadlineExceededError("queued work did not finish in time");
    }
  }
  return Unshared(status_);
}

bool HostEvent::done() const {
  MutexLock lock(&mutex_);
  return done_;
}

void HostEvent::Complete(absl::Status status) {
  MutexLock lock(&mutex_);
  RF_CHECK(!done_);
  done_ = true;
  status_ = Unshared(status);
  completed_.SignalAll();
}

}  // namespace ringfill
