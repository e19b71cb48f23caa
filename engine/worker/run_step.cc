#include "engine/worker/run_step.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "engine/compute/slices.h"
#include "engine/decode/replicated_pass.h"
#include "engine/prefill/prefill_pass.h"

namespace ringfill {
namespace {

size_t Index(int64_t i) { return static_cast<size_t>(i); }

// One rank's part of the step.
class Step {
 public:
  Step(Rank& rank, const StepPlan& plan, const StepControl& control)
      : rank_(rank), plan_(plan), control_(control), transfers_(rank, result_) {}

  RankStepResult Run() {
    result_.status = RunPasses();
    if (!result_.status.ok()) {
      // Peers that wait for this rank must learn at once, and so must its own queue.
      rank_.comm().Abort(result_.status);
      rank_.device().Abort(result_.status);
    }
    const EventPtr last = rank_.stream().Record();
    // Its failure is known, or follows from the abort.
    last->Await(rank_.Deadline()).IgnoreError();
    const absl::Status moved = transfers_.Finish();
    if (result_.status.ok() && !moved.ok()) {
      result_.status = moved;
      rank_.comm().Abort(moved);
      rank_.device().Abort(moved);
    }
    if (!result_.status.ok() && last->done()) rank_.device().Recover();
    result_.work = rank_.device().TakeCounters();
    result_.memory = rank_.Memory();
    if (rank_.device().trace().enabled()) result_.trace = rank_.device().trace().Take();
    return std::move(result_);
  }

 private:
  absl::Status RunPasses();
  absl::Status ShareHidden();
  absl::Status ComputeLogits();
  void TakeTimes(double& busy_s, double& wait_s) {
    const StreamTimes times = rank_.stream().TakeTimes();
    busy_s += times.busy_s;
    wait_s += times.wait_s + transfers_.TakeHostWait();
  }

  Rank& rank_;
  const StepPlan& plan_;
  const StepControl& control_;
  RankStepResult result_;
  StepTransfers transfers_;
  std::optional<PrefillPass> prefill_;
  std::optional<ReplicatedPass> replicated_;
  std::vector<float> logit_rows_;  // [rows][width]
};

absl::Status Step::RunPasses() {
  RF_CHECK(plan_.ranks == rank_.ranks());
  rank_.BeginStep(plan_);
  if (!plan_.freed.empty() && !plan_.freed[Index(rank_.index())].empty()) {
    rank_.device().PoisonPages(plan_.freed[Index(rank_.index())]);
  }
  const bool sharded =
      std::any_of(plan_.chunks.begin(), plan_.chunks.end(),
                  [](const PrefillChunk& chunk) { return chunk.mode != TokenMode::kReplicated; });
  if (sharded) {
    prefill_.emplace(rank_, plan_, control_, transfers_, result_);
    RF_RETURN_IF_ERROR(prefill_->Run());
    RF_RETURN_IF_ERROR(ShareHidden());
    TakeTimes(result_.prefill_busy_s, result_.prefill_wait_s);
  }
  if (ReplicatedPass::Needed(plan_)) {
    replicated_.emplace(rank_, plan_, control_, transfers_, result_);
    RF_RETURN_IF_ERROR(replicated_->Run());
    TakeTimes(result_.decode_busy_s, result_.decode_wait_s);
  }
  RF_RETURN_IF_ERROR(ComputeLogits());
  if (plan_.decodes.empty()) {
    TakeTimes(result_.prefill_busy_s, result_.prefill_wait_s);
  } else {
    TakeTimes(result_.decode_busy_s, result_.decode_wait_s);
  }
  return absl::OkStatus();
}

// Gives every rank the hidden rows that only the rank which computes them has.
absl::Status Step::ShareHidden() {
  std::vector<float>& rows = prefill_->hidden();
  const std::vector<int>& owners = prefill_->hidden_ranks();
  if (rank_.ranks() == 1 || owners.empty()) return absl::OkStatus();
  const size_t width = Index(rank_.model().width);
  std::vector<float> all(rows.size() * Index(rank_.ranks()));
  const absl::Status status = transfers_.GatherOnHost(std::as_bytes(std::span(rows)),
                                                      std::as_writable_bytes(std::span(all)));
  if (!status.ok()) {
    rank_.comm().Abort(status);
    return status;
  }
  for (size_t i = 0; i < owners.size(); ++i) {
    std::copy_n(all.data() + Index(owners[i]) * rows.size() + i * width, width,
                rows.data() + i * width);
  }
  return absl::OkStatus();
}

absl::Status Step::ComputeLogits() {
  const size_t width = Index(rank_.model().width);
  size_t shared = 0;
  for (size_t c = 0; c < plan_.chunks.size(); ++c) {
    const PrefillChunk& chunk = plan_.chunks[c];
    if (!chunk.wants_logits || ((result_.stopped_mask >> c) & 1)) continue;
    const float* row = chunk.mode == TokenMode::kReplicated
                           ? replicated_->ChunkHidden(static_cast<int>(c))
                           : prefill_->hidden().data() + width * shared++;
    logit_rows_.insert(logit_rows_.end(), row, row + width);
  }
  for (size_t d = 0; d < plan_.decodes.size(); ++d) {
    const float* row = replicated_->DecodeHidden(static_cast<int>(d));
    logit_rows_.insert(logit_rows_.end(), row, row + width);
  }
  const Slice slice = SliceOf(rank_.model().vocab, 1, rank_.index(), rank_.ranks());
  result_.vocab_begin = slice.begin;
  result_.vocab_end = slice.end;
  const auto rows = static_cast<int64_t>(logit_rows_.size() / width);
  if (rows == 0) return absl::OkStatus();
  result_.logits.resize(Index(rows * (result_.vocab_end - result_.vocab_begin)));
  rank_.device().Logits(logit_rows_.data(), rows, result_.vocab_begin, result_.vocab_end,
                        result_.logits.data());
  return rank_.stream().Synchronize(rank_.Deadline());
}

}  // namespace

RankStepResult RunStep(Rank& rank, const StepPlan& plan, const StepControl& control) {
  return Step(rank, plan, control).Run();
}

}  // namespace ringfill
