// Writes a plan log on a thread of its own, so that the leader only hands over: digests and disk
// are that thread's. A log that cannot go on ends with one warning; serving does not depend on it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/replay/outcome.h"
#include "engine/replay/plan_log.h"
#include "engine/worker/step_result.h"

namespace ringfill {

struct PlanRecorderOptions {
  std::string path;
  int64_t max_bytes = int64_t{1} << 30;          // of the file
  size_t max_waiting_bytes = size_t{256} << 20;  // more than the disk is behind: the log ends
};

// Used by the leader.
class PlanRecorder {
 public:
  // Errors: as PlanLogWriter::Create.
  static absl::StatusOr<std::unique_ptr<PlanRecorder>> Start(const PlanRecorderOptions& options,
                                                             const PlanLogHeader& header);
  // Writes what waits, and the end.
  ~PlanRecorder();

  // Before the step runs: the log of a daemon that dies in it shows which it was.
  void AddPlan(const StepPlan& plan);
  // After it: what the ranks gave. `results` agree with each other.
  void AddResults(const StepRows& rows, std::vector<RankStepResult> results);
  void AddFailed(uint64_t step);
  void AddRing(uint64_t epoch, const std::vector<int>& from);

 private:
  struct Results {
    StepRows rows;
    std::vector<RankStepResult> of_ranks;
  };
  // An encoded record, or results to make one of.
  using Item = std::variant<std::string, Results>;

  PlanRecorder(const PlanRecorderOptions& options, int64_t vocab,
               std::unique_ptr<PlanLogWriter> writer);
  void Add(Item item, size_t bytes);
  void Loop();
  void Write(const Item& item);
  bool Over();  // nothing is taken any more

  const PlanRecorderOptions options_;
  const int64_t vocab_;
  const std::unique_ptr<PlanLogWriter> writer_;  // the thread's

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<Item, size_t>> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool behind_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // full or failed
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ringfill
