// The abort that the ends of one process share.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/status.h"

namespace ringfill {

// Thread-safe. Its lock comes before those that a `wake` takes: whoever holds one of these may call
// aborted() alone.
class NcclAbort {
 public:
  // `wake` is called when the group is aborted, until Leave(key) has returned.
  void Join(const void* key, std::function<void()> wake) {
    MutexLock lock(&mutex_);
    ends_.push_back({key, std::move(wake)});
  }
  // An end whose GPU does not rest by then never does.
  void Leave(const void* key) {
    MutexLock lock(&mutex_);
    one_hangs_ |= std::any_of(ends_.begin(), ends_.end(),
                              [key](const End& end) { return end.key == key && !end.rests; });
    std::erase_if(ends_, [key](const End& end) { return end.key == key; });
    rest_.SignalAll();
  }

  // Whether other ends than this are in.
  bool Shared(const void* key) const {
    MutexLock lock(&mutex_);
    return std::any_of(ends_.begin(), ends_.end(), [key](const End& e) { return e.key != key; });
  }

  // The first one counts. REQUIRES: !status.ok().
  void Abort(const absl::Status& status) {
    RF_CHECK(!status.ok());
    MutexLock lock(&mutex_);
    if (aborted_) return;
    // Shares nothing with the caller's copy: see HostEvent.
    status_ = absl::Status(status.code(), status.message());
    aborted_ = true;
    for (const End& end : ends_) end.wake();
  }
  bool aborted() const { return aborted_; }
  // OK while not aborted.
  absl::Status status() const {
    MutexLock lock(&mutex_);
    return absl::Status(status_.code(), status_.message());
  }

  // The end's GPU does nothing of the group's any more. Waits for the same of all ends that are in:
  // their kernels use each other's buffers. False at `until`, or when one never rests.
  bool Rest(const void* key, Instant until) {
    MutexLock lock(&mutex_);
    for (End& end : ends_) end.rests |= end.key == key;
    rest_.SignalAll();
    while (!one_hangs_ && !AllRest() && rest_.WaitUntil(&mutex_, until)) {
    }
    return !one_hangs_ && AllRest();
  }

 private:
  struct End {
    const void* key;
    std::function<void()> wake;
    bool rests = false;
  };
  bool AllRest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::all_of(ends_.begin(), ends_.end(), [](const End& end) { return end.rests; });
  }

  mutable Mutex mutex_;
  CondVar rest_;
  std::vector<End> ends_ ABSL_GUARDED_BY(mutex_);
  bool one_hangs_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> aborted_{false};
};

}  // namespace ringfill
