#include "engine/compute/cpu/thread_team.h"

#include "base/check.h"
#include "base/cpu_pause.h"

namespace ringfill {
ThreadTeam::ThreadTeam(int threads, int spin_rounds) : spin_rounds_(spin_rounds) {
  RF_CHECK(threads >= 1);
  for (int t = 1; t < threads; ++t) {
    helpers_.emplace_back([this, t] { HelperLoop(t); });
  }
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true);
  {
    MutexLock lock(&mutex_);
    generation_.fetch_add(1);
    job_published_.SignalAll();
  }
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadTeam::ParallelFor(int64_t n, Function fn) {
  if (helpers_.empty() || n <= 1) {
    for (int64_t i = 0; i < n; ++i) fn(0, i);
    return;
  }
  fn_ = &fn;
  count_ = n;
  next_.store(0, std::memory_order_relaxed);
  working_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
  {
    MutexLock lock(&mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    job_published_.SignalAll();
  }
  TakePart(0);
  for (int i = 0; i < spin_rounds_; ++i) {
    if (working_.load(std::memory_order_acquire) == 0) return;
    CpuPause();
  }
  MutexLock lock(&mutex_);
  while (working_.load(std::memory_order_acquire) != 0) job_finished_.Wait(&mutex_);
}

void ThreadTeam::TakePart(int thread) {
  const Function& fn = *fn_;
  const int64_t n = count_;
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < n;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    fn(thread, i);
  }
}

uint64_t ThreadTeam::AwaitJob(uint64_t seen) {
  for (int i = 0; i < spin_rounds_; ++i) {
    const uint64_t now = generation_.load(std::memory_order_acquire);
    if (now != seen) return now;
    CpuPause();
  }
  MutexLock lock(&mutex_);
  while (generation_.load(std::memory_order_acquire) == seen) job_published_.Wait(&mutex_);
  return generation_.load(std::memory_order_acquire);
}

void ThreadTeam::HelperLoop(int thread) {
  uint64_t seen = 0;
  while (true) {
    seen = AwaitJob(seen);
    if (stop_.load()) return;
    TakePart(thread);
    // The count falls under the mutex only when this was the last helper: the owner may sleep on
    // it.
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      MutexLock lock(&mutex_);
      job_finished_.Signal();
    }
  }
}

}  // namespace ringfill
