#include "engine/request/inbox.h"

#include "absl/strings/str_cat.h"
#include "engine/request/retry.h"

namespace ringfill {

absl::StatusOr<int64_t> Inbox::Reserve() {
  MutexLock lock(&mutex_);
  if (draining_) {
    return WithRetryAfter(absl::UnavailableError("the daemon is shutting down"),
                          kRetryAfterRestart);
  }
  if (queued_ >= max_queued_) {
    return WithRetryAfter(
        absl::ResourceExhaustedError(absl::StrCat(
            "the queue is full: ", queued_, queued_ == 1 ? " request waits" : " requests wait",
            ", the bound is ", max_queued_, "; try again later")),
        kRetrySoon);
  }
  ++living_;
  return queued_++;
}

void Inbox::Put(std::unique_ptr<Generation> generation) {
  MutexLock lock(&mutex_);
  arrivals_.push_back({next_id_++, std::move(generation)});
  arrived_.Signal();
}

void Inbox::BeginDrain() {
  MutexLock lock(&mutex_);
  draining_ = true;
}

bool Inbox::WaitIdle(Instant until) {
  MutexLock lock(&mutex_);
  while (living_ > 0) {
    if (!idle_.WaitUntil(&mutex_, until)) return living_ == 0;
  }
  return true;
}

Inbox::Counts Inbox::counts() const {
  MutexLock lock(&mutex_);
  return {queued_, living_ - queued_, draining_};
}

std::optional<Instant> Inbox::oldest() const {
  MutexLock lock(&mutex_);
  if (arrivals_.empty()) return std::nullopt;
  return arrivals_.front().generation->submitted();
}

bool Inbox::AwaitArrival(const Instant* until) {
  MutexLock lock(&mutex_);
  while (arrivals_.empty() && !stopped()) {
    if (until == nullptr) {
      arrived_.Wait(&mutex_);
    } else if (!arrived_.WaitUntil(&mutex_, *until)) {
      break;
    }
  }
  return !stopped();
}

std::vector<Inbox::Arrival> Inbox::Take() {
  MutexLock lock(&mutex_);
  return std::exchange(arrivals_, {});
}

void Inbox::NoteAdmitted(int64_t count) {
  MutexLock lock(&mutex_);
  queued_ -= count;
}

void Inbox::NoteRequeued(int64_t count) {
  MutexLock lock(&mutex_);
  queued_ += count;
}

void Inbox::NoteEnded(bool was_queued) {
  MutexLock lock(&mutex_);
  if (was_queued) --queued_;
  if (--living_ == 0) idle_.SignalAll();
}

void Inbox::Stop() {
  MutexLock lock(&mutex_);
  draining_ = true;
  stopped_.store(true);
  arrived_.SignalAll();
}

}  // namespace ringfill
