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

// Thread-safe.
class NcclAbort {
 public:
  // `wake` is called when the group is aborted, until Leave(key) has returned.
  void Join(const void* key, std::function<void()> wake) {
    MutexLock lock(&mutex_);
    ends_.emplace_back(key, std::move(wake));
  }
  void Leave(const void* key) {
    MutexLock lock(&mutex_);
    std::erase_if(ends_, [key](const auto& end) { return end.first == key; });
  }

  // Whether other ends than this are in.
  bool Shared(const void* key) const {
    MutexLock lock(&mutex_);
    return std::any_of(ends_.begin(), ends_.end(),
                       [key](const auto& end) { return end.first != key; });
  }

  // The first one counts. REQUIRES: !status.ok(), the caller holds no lock that a `wake` takes.
  void Abort(const absl::Status& status) {
    RF_CHECK(!status.ok());
    MutexLock lock(&mutex_);
    if (aborted_) return;
    // Shares nothing with the caller's copy: see HostEvent.
    status_ = absl::Status(status.code(), status.message());
    aborted_ = true;
    for (const auto& end : ends_) end.second();
  }
  bool aborted() const { return aborted_; }
  // OK while not aborted.
  absl::Status status() const {
    MutexLock lock(&mutex_);
    return absl::Status(status_.code(), status_.message());
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<const void*, std::function<void()>>> ends_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> aborted_{false};
};

}  // namespace ringfill
