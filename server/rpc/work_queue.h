// A few threads and a bounded queue of closures: keeps long work off the threads that serve gRPC.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ringfill {

// Thread-safe. The destructor runs what is queued, then joins.
class WorkQueue {
 public:
  WorkQueue(int threads, size_t capacity);
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False, and `work` is dropped, when `capacity` closures wait already.
  [[nodiscard]] bool TryPost(std::function<void()> work);

 private:
  void Run();

  const size_t capacity_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace ringfill
