#include "engine/worker/worker_group.h"

#include "base/check.h"
#include "engine/comm/local.h"
#include "engine/decode/decode_pass.h"
#include "engine/decode/logits.h"
#include "engine/prefill/prefill_pass.h"

namespace ringfill {
namespace {

absl::Status RunPasses(Rank& rank, const StepPlan& plan, const StepControl& control,
                       RankStepResult& result) {
  std::vector<float> hidden;
  if (!plan.chunks.empty()) {
    PrefillPass pass(rank, plan, control, result);
    RF_RETURN_IF_ERROR(pass.Run());
    hidden = pass.last_hidden();
    std::vector<int> homes;
    for (size_t c = 0; c < plan.chunks.size(); ++c) {
      if (plan.chunks[c].wants_logits && !((result.stopped_mask >> c) & 1)) {
        homes.push_back(rank.placement.Home(plan.chunks[c].end - 1));
      }
    }
    const Instant start = rank.context.clock->Now();
    RF_RETURN_IF_ERROR(ShareRows(rank, homes, hidden));
    result.prefill_wait_s += Seconds(rank.context.clock->Now() - start);
  }
  if (!plan.decodes.empty()) {
    DecodePass pass(rank, plan, result);
    RF_RETURN_IF_ERROR(pass.Run());
    hidden.insert(hidden.end(), pass.hidden().begin(), pass.hidden().end());
  }
  if (hidden.empty()) return absl::OkStatus();
  const Instant start = rank.context.clock->Now();
  ComputeLogits(rank, hidden, result);
  const double seconds = Seconds(rank.context.clock->Now() - start);
  (plan.decodes.empty() ? result.prefill_busy_s : result.decode_busy_s) += seconds;
  return absl::OkStatus();
}

}  // namespace

WorkerGroup::WorkerGroup(const ForwardContext& context, const Placement& placement,
                         const WorkerGroupOptions& options)
    : context_(context), fault_(options.fault) {
  for (int r = 0; r < options.ranks; ++r) {
    ranks_.push_back(std::make_unique<Rank>(context, placement, options.pages_per_rank,
                                            options.threads_per_rank, options.spin_rounds));
  }
  Reform();
  for (int r = 0; r < options.ranks; ++r) {
    threads_.emplace_back([this, r] { RankLoop(r); });
  }
}

WorkerGroup::~WorkerGroup() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    step_published_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkerGroup::Reform() {
  communicators_.clear();
  communicators_ = MakeLocalGroup(static_cast<int>(ranks_.size()), *context_.clock);
  for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r]->comm = communicators_[r].get();
  context_.weights->Reset();
}

void WorkerGroup::Poison(const BlockTable& freed) {
  for (size_t r = 0; r < freed.size(); ++r) {
    for (PageId page : freed[r]) ranks_[r]->pool.Poison(page);
  }
}

std::vector<RankStepResult> WorkerGroup::Run(const StepPlan& plan, const StepControl& control) {
  std::vector<RankStepResult> results(ranks_.size());
  MutexLock lock(&mutex_);
  plan_ = &plan;
  control_ = &control;
  results_ = &results;
  running_ = static_cast<int>(ranks_.size());
  ++generation_;
  step_published_.SignalAll();
  while (running_ > 0) step_finished_.Wait(&mutex_);
  return results;
}

void WorkerGroup::RankLoop(int index) {
  Rank& rank = *ranks_[static_cast<size_t>(index)];
  uint64_t seen = 0;
  while (true) {
    const StepPlan* plan;
    const StepControl* control;
    RankStepResult* result;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && generation_ == seen) step_published_.Wait(&mutex_);
      if (stop_) return;
      seen = generation_;
      plan = plan_;
      control = control_;
      result = &(*results_)[static_cast<size_t>(index)];
    }
    rank.peer_timeout = PeerTimeout(context_, *plan);
    if (fault_) result->status = fault_(index, plan->step);
    if (result->status.ok()) result->status = RunPasses(rank, *plan, *control, *result);
    if (!result->status.ok()) {
      // Peers that wait for this rank must learn at once.
      rank.comm->Abort(result->status);
      context_.weights->Abort(result->status);
    }
    MutexLock lock(&mutex_);
    if (--running_ == 0) step_finished_.Signal();
  }
}

}  // namespace ringfill
