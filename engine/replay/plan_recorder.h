// Writes a plan log on a thread of its own, so that the leader only hands over: digests and disk
// are that thread's. A log that cannot go on ends with one warning; serving does not depend on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/replay/outcome.h"
#include "engine/replay/plan_log.h"
#include "engine/worker/step_result.h"

namespace ringfill {

struct PlanRecorderOptions {
  std::string path;
  int64_t max_bytes = int64_t{1} << 30;          // of the file
  size_t max_waiting_bytes = size_t{256} << 20;  // more than the disk is behind: the log ends
  Duration close_limit = std::chrono::seconds(10);
  std::function<void()> before_write = nullptr;  // of each record; tests hold up the disk with it
};

// Used by the leader.
class PlanRecorder {
 public:
  // Errors: as PlanLogWriter::Create.
  static absl::StatusOr<std::unique_ptr<PlanRecorder>> Start(const PlanRecorderOptions& options,
                                                             const PlanLogHeader& header);
  // Writes what waits, and the end. A disk that does not take it within close_limit keeps its
  // thread, and the log has no end.
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

  class Queue;  // between the two threads, and what the recorder's own works with

  explicit PlanRecorder(std::shared_ptr<Queue> queue);

  const std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace ringfill
