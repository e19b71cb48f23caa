// The compute threads of one rank: the rank's own thread and its helpers, sharing loops.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "base/mutex.h"

namespace ringfill {

// Owned by one thread, which alone calls ParallelFor and takes part as thread 0. Helpers wait for
// work by a bounded spin, then asleep.
class ThreadTeam {
 public:
  // `spin_rounds` bounds the spin; 0 where threads outnumber cores.
  ThreadTeam(int threads, int spin_rounds);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  // Runs fn(thread, i) for every i in [0, n), handed out one by one in ascending order, and returns
  // when all are done. `thread` in [0, size()) names the running thread, for scratch.
  void ParallelFor(int64_t n, absl::FunctionRef<void(int thread, int64_t i)> fn);

 private:
  using Function = absl::FunctionRef<void(int thread, int64_t i)>;

  void HelperLoop(int thread);
  // Waits until `generation_` differs from `seen`; returns the new one.
  uint64_t AwaitJob(uint64_t seen);
  void TakePart(int thread);

  const int spin_rounds_;
  std::vector<std::thread> helpers_;

  // The current job: written by the owner before it publishes a generation, read by helpers after.
  const Function* fn_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};

  std::atomic<uint64_t> generation_{0};
  std::atomic<int> working_{0};  // helpers that have not finished the current job
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  CondVar job_published_;
  CondVar job_finished_;
};

}  // namespace ringfill
