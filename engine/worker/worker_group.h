// The ranks of one engine: a thread each, which execute step plans together. Workers never
// schedule.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/worker/rank.h"

namespace ringfill {

// For tests of failure: asked by each rank before each step; a status that is not OK fails the
// rank.
using StepFault = std::function<absl::Status(int rank, uint64_t step)>;

struct WorkerGroupOptions {
  int ranks = 1;
  int threads_per_rank = 1;
  int spin_rounds = 0;
  int64_t pages_per_rank = 0;
  StepFault fault;
};

// Used by one thread, the leader.
class WorkerGroup {
 public:
  WorkerGroup(const ForwardContext& context, const Placement& placement,
              const WorkerGroupOptions& options);
  ~WorkerGroup();

  // Runs one step on every rank and returns each rank's result, indexed by rank. When a rank fails,
  // all do, and the next step needs Reform() first.
  std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control);

  // Forms a new ring after a failed step: a new epoch's communicators.
  void Reform();

  // Overwrites freed pages, so that reading one shows. REQUIRES: no step is running.
  void Poison(const BlockTable& freed);

 private:
  void RankLoop(int index);

  const ForwardContext& context_;
  const StepFault fault_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Rank>> ranks_;

  Mutex mutex_;
  CondVar step_published_;
  CondVar step_finished_;
  const StepPlan* plan_ ABSL_GUARDED_BY(mutex_) = nullptr;
  const StepControl* control_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<RankStepResult>* results_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;  // last: started when everything above is ready
};

}  // namespace ringfill
