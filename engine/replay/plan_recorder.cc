#include "engine/replay/plan_recorder.h"

#include "base/log.h"
#include "engine/schedule/plan_codec.h"

namespace ringfill {
namespace {

size_t BytesOf(const std::vector<RankStepResult>& results) {
  size_t bytes = 0;
  for (const RankStepResult& result : results) {
    bytes += sizeof(result) + result.logits.size() * sizeof(float) +
             result.scores.size() * sizeof(ScoredToken);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlanRecorder>> PlanRecorder::Start(
    const PlanRecorderOptions& options, const PlanLogHeader& header) {
  RF_ASSIGN_OR_RETURN(auto writer, PlanLogWriter::Create(options.path, options.max_bytes, header));
  return std::unique_ptr<PlanRecorder>(new PlanRecorder(options, header.vocab, std::move(writer)));
}

PlanRecorder::PlanRecorder(const PlanRecorderOptions& options, int64_t vocab,
                           std::unique_ptr<PlanLogWriter> writer)
    : options_(options), vocab_(vocab), writer_(std::move(writer)), thread_([this] { Loop(); }) {}

PlanRecorder::~PlanRecorder() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.Signal();
  }
  thread_.join();
}

bool PlanRecorder::Over() {
  MutexLock lock(&mutex_);
  return behind_ || ended_;
}

void PlanRecorder::AddPlan(const StepPlan& plan) {
  if (Over()) return;
  std::string record = EncodePlanRecord(EncodePlan(plan));
  const size_t bytes = record.size();
  Add(std::move(record), bytes);
}

void PlanRecorder::AddResults(const StepRows& rows, std::vector<RankStepResult> results) {
  const size_t bytes = BytesOf(results);
  Add(Results{rows, std::move(results)}, bytes);
}

void PlanRecorder::AddFailed(uint64_t step) {
  OutcomeRecord outcome;
  outcome.step = step;
  outcome.failed = true;
  Add(EncodeLogRecord(outcome), 0);
}

void PlanRecorder::AddRing(uint64_t epoch, const std::vector<int>& from) {
  Add(EncodeLogRecord(RingRecord{epoch, {from.begin(), from.end()}}), 0);
}

void PlanRecorder::Add(Item item, size_t bytes) {
  MutexLock lock(&mutex_);
  behind_ = behind_ || waiting_bytes_ + bytes > options_.max_waiting_bytes;
  // A log with a gap could not be replayed.
  if (behind_ || ended_) return changed_.Signal();
  waiting_bytes_ += bytes;
  waiting_.emplace_back(std::move(item), bytes);
  changed_.Signal();
}

void PlanRecorder::Loop() {
  for (;;) {
    std::pair<Item, size_t> next;
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && !closing_ && !behind_) changed_.Wait(&mutex_);
      if (waiting_.empty()) break;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Write(next.first);
    MutexLock lock(&mutex_);
    waiting_bytes_ -= next.second;
  }
  bool behind;
  {
    MutexLock lock(&mutex_);
    behind = behind_;
  }
  if (writer_->ended()) return;
  const PlanLogEnd why = behind ? PlanLogEnd::kBehind : PlanLogEnd::kStopped;
  if (behind) {
    Log(LogLevel::kWarning, "the plan log ends",
        {{"path", options_.path}, {"why", PlanLogEndText(why)}});
  }
  if (const absl::Status ended = writer_->End(why); !ended.ok()) {
    Log(LogLevel::kWarning, "the plan log ends without its end record",
        {{"path", options_.path}, {"why", std::string(ended.message())}});
  }
}

void PlanRecorder::Write(const Item& item) {
  if (writer_->ended()) return;
  absl::Status status;
  if (const auto* results = std::get_if<Results>(&item)) {
    status = writer_->Append(EncodeLogRecord(OutcomeOf(results->rows, results->of_ranks, vocab_)));
  } else {
    status = writer_->Append(std::get<std::string>(item));
  }
  if (!writer_->ended()) return;
  {
    MutexLock lock(&mutex_);
    ended_ = true;
  }
  Log(LogLevel::kWarning, "the plan log ends",
      {{"path", options_.path},
       {"why", status.ok() ? std::string(PlanLogEndText(PlanLogEnd::kFull))
                           : std::string(status.message())}});
}

}  // namespace ringfill
