// The leader: one thread that takes requests from the inbox, lets the scheduler plan each step, has
// the workers execute it, and gives every request its events. When a step fails it forms the ring
// anew and lets the requests go on.
#pragma once

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "engine/cost/measured_chooser.h"
#include "engine/engine_metrics.h"
#include "engine/engine_options.h"
#include "engine/engine_status.h"
#include "engine/replay/plan_recorder.h"
#include "engine/request/generation.h"
#include "engine/request/inbox.h"
#include "engine/request/request_span.h"
#include "engine/schedule/scheduler.h"
#include "engine/worker/workers.h"

namespace ringfill {

// What the leader works with; all of it outlives the leader.
struct LeaderParts {
  const EngineOptions& options;  // settled
  const Model& model;
  const Clock& clock;
  EngineMetrics& metrics;
  Inbox& inbox;
  Scheduler& scheduler;
  MeasuredChooser* measured;  // null: ways are chosen without a cost model
  Workers& workers;
  PlanRecorder* recorder;  // null: steps are not recorded
};

class Leader {
 public:
  explicit Leader(const LeaderParts& parts);
  // Cancels what is still there (FailedEvent, CANCELLED).
  ~Leader();

  // Thread-safe.
  EngineStatus Status() const;
  // Thread-safe. For `seconds`, records what every rank does; empty when nothing ran.
  void RequestTrace(bool on) { trace_wanted_.store(on); }
  std::vector<std::vector<TraceSpan>> TakeTrace();
  std::vector<RequestSpan> TakeRequestSpans();
  // The phase that every request is in, with `now` as its end.
  std::vector<RequestSpan> OpenRequestSpans(Instant now) const;
  // Sets the gauges that move while a step runs: the queue, ages. Thread-safe.
  void RefreshGauges() const;
  // The time without work does not count as standing still. Both thread-safe.
  void NoteProgress();
  void NoteStepEnd();

 private:
  static constexpr int64_t kNobody = std::numeric_limits<int64_t>::max();

  using Active = std::map<SequenceId, std::unique_ptr<Generation>>;

  void Loop();
  void TakeInbox();
  // Of a request that the scheduler has not seen.
  void EndUnqueued(SequenceId id, const absl::Status& status);
  void EndStale();
  void AdmitQueued();
  void NoteOldestQueued();
  void UpdatePauses();
  void EndStarved();
  void LetNewcomersIn();
  bool ShouldStop(const Generation& generation) const;
  void Finish(SequenceId id);
  void Fail(SequenceId id, absl::Status status);
  void Forget(SequenceId id);
  void Publish();

  // leader_step.cc
  void Execute(StepPlan plan);
  void ReportLayer(const StepPlan& plan, int layers_done);
  void FailNonFinite(const StepPlan& plan, const std::vector<RankStepResult>& results);
  // Of the timeline: the request's phase from `at` on, in which the one before has ended.
  void EnterPhase(SequenceId id, const Generation& generation, RequestPhase phase, Instant at);
  // The last phase has ended.
  void LeavePhase(SequenceId id, const Generation& generation, Instant at);
  void NoteNonFinite(NonFiniteStage stage, const nlohmann::json& fields);
  void KeepSpans(const std::vector<RankStepResult>& results);
  void NotePrediction(const StepPlan& plan, double seconds);
  void NoteImbalance(const std::vector<RankStepResult>& results);
  void AccountStep(const StepPlan& plan, const std::vector<RankStepResult>& results,
                   double seconds);
  void TakeScores(const StepPlan& plan, const std::vector<RankStepResult>& results);
  // `plan`: what was executed and committed.
  void HandlePrefilled(const StepPlan& plan);
  void HandleLogits(const StepPlan& plan, const std::vector<RankStepResult>& results);
  void HandleToken(SequenceId id, std::span<const float> logits);
  void RepairAfter(const StepPlan& plan, const absl::Status& why);
  // Requests whose steps have failed too often.
  void EndCostly(const StepPlan& plan, const absl::Status& why);
  // Forms the ring of a new epoch and moves every sequence over.
  absl::Status FormRing();
  // Requests that end, and new ones, while the ring forms; false when the daemon stops.
  bool ServeWhileForming();
  // Says which ranks have figures and weights that are not their own.
  void NoteStrangers(const std::vector<int>& from) const;
  // The weights of the new ranks; the old ones are forgotten.
  std::vector<double> WeightsOf(const std::vector<int>& from);
  void EndAll(const absl::Status& status);
  // For what the ring that is left can never hold.
  static absl::Status NeverFits();

  const LeaderParts p_;
  const double attention_share_;  // see Generation::NoteProgress

  // The leader's own.
  Active active_;
  uint64_t epoch_ = 1;
  bool ring_formed_ = true;
  int failures_in_a_row_ = 0;
  std::vector<double> weights_;  // [ranks] of this epoch; empty: even
  std::optional<Instant> newcomers_since_;
  bool tracing_ = false;
  double drift_ = 1;  // measured over predicted seconds of steps, a moving average
  bool drift_reported_ = false;
  double work_most_ = 0,
         work_mean_ = 0;  // operations of the busiest rank and of the mean, all steps
  std::vector<RankStatus> rank_totals_;

  std::atomic<bool> trace_wanted_{false};
  std::atomic<int64_t> progress_ns_{0};      // clock time of the last progress
  std::atomic<int64_t> step_ns_{0};          // likewise of a step's end, or a moment without work
  std::atomic<int64_t> queued_ns_{kNobody};  // when the oldest came that was never admitted

  mutable Mutex mutex_;
  EngineStatus status_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<TraceSpan>> spans_ ABSL_GUARDED_BY(mutex_);  // [ranks]
  std::vector<RequestSpan> request_spans_ ABSL_GUARDED_BY(mutex_);
  std::map<SequenceId, RequestSpan> open_phases_ ABSL_GUARDED_BY(mutex_);  // their ends not set

  std::thread thread_;  // last
};

}  // namespace ringfill
