// A communication lane: jobs run in order on a thread of its own.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace ringfill {

// Post is called by one thread at a time. The thread starts with the first job.
class Lane {
 public:
  Lane() = default;
  // Runs what is queued, then returns.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void Post(std::function<void()> job);

 private:
  void Run();

  Mutex mutex_;
  CondVar work_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ringfill
