#include "engine/replay/plan_recorder.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/log.h"
#include "base/mutex.h"
#include "engine/schedule/plan_codec.h"

namespace ringfill {

// Lives as long as the later one of the recorder and its thread.
class PlanRecorder::Queue {
 public:
  Queue(const PlanRecorderOptions& options, int64_t vocab, std::unique_ptr<PlanLogWriter> writer)
      : options_(options), vocab_(vocab), writer_(std::move(writer)) {}

  void Add(Item item);
  bool Over();  // nothing is taken any more
  // Nothing is added any more. False when the thread is not done in time: it ends with the write
  // that holds it up.
  bool Close();
  // The thread's work, until Close.
  void Run();

 private:
  static size_t BytesOf(const Item& item);
  void WriteItems();
  void Write(const Item& item);
  void WriteEnd();

  const PlanRecorderOptions options_;
  const int64_t vocab_;
  const std::unique_ptr<PlanLogWriter> writer_;  // the thread's

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // the one that is being written, too
  bool behind_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // full or failed
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;  // by a recorder that did not wait any longer
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

size_t PlanRecorder::Queue::BytesOf(const Item& item) {
  if (const auto* record = std::get_if<std::string>(&item)) return sizeof(item) + record->size();
  size_t bytes = sizeof(item);
  for (const RankStepResult& result : std::get<Results>(item).of_ranks) {
    bytes += sizeof(result) + result.logits.size() * sizeof(float) +
             result.scores.size() * sizeof(ScoredToken);
  }
  return bytes;
}

bool PlanRecorder::Queue::Over() {
  MutexLock lock(&mutex_);
  return behind_ || ended_;
}

void PlanRecorder::Queue::Add(Item item) {
  const size_t bytes = BytesOf(item);
  MutexLock lock(&mutex_);
  behind_ = behind_ || waiting_bytes_ + bytes > options_.max_waiting_bytes;
  changed_.SignalAll();
  // A log with a gap could not be replayed.
  if (behind_ || ended_) return;
  waiting_bytes_ += bytes;
  waiting_.push_back(std::move(item));
}

bool PlanRecorder::Queue::Close() {
  const Instant until = Clock::Real().Now() + options_.close_limit;
  MutexLock lock(&mutex_);
  closing_ = true;
  changed_.SignalAll();
  while (!done_ && changed_.WaitUntil(&mutex_, until)) {
  }
  left_ = !done_;
  if (left_) {
    Log(LogLevel::kWarning, "the plan log is left without its end: its disk does not answer",
        {{"path", options_.path}, {"waiting_bytes", waiting_bytes_}});
  }
  return done_;
}

void PlanRecorder::Queue::Run() {
  WriteItems();
  WriteEnd();
  MutexLock lock(&mutex_);
  done_ = true;
  changed_.SignalAll();
}

void PlanRecorder::Queue::WriteItems() {
  for (;;) {
    Item next;
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && !closing_ && !behind_) changed_.Wait(&mutex_);
      if (waiting_.empty() || left_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const size_t bytes = BytesOf(next);
    Write(next);
    MutexLock lock(&mutex_);
    waiting_bytes_ -= bytes;
  }
}

void PlanRecorder::Queue::Write(const Item& item) {
  if (writer_->ended()) return;
  if (options_.before_write) options_.before_write();
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

void PlanRecorder::Queue::WriteEnd() {
  bool behind;
  {
    MutexLock lock(&mutex_);
    if (left_) return;
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

absl::StatusOr<std::unique_ptr<PlanRecorder>> PlanRecorder::Start(
    const PlanRecorderOptions& options, const PlanLogHeader& header) {
  RF_ASSIGN_OR_RETURN(auto writer, PlanLogWriter::Create(options.path, options.max_bytes, header));
  return std::unique_ptr<PlanRecorder>(
      new PlanRecorder(std::make_shared<Queue>(options, header.vocab, std::move(writer))));
}

PlanRecorder::PlanRecorder(std::shared_ptr<Queue> queue)
    : queue_(std::move(queue)), thread_([queue = queue_] { queue->Run(); }) {}

PlanRecorder::~PlanRecorder() {
  if (queue_->Close()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void PlanRecorder::AddPlan(const StepPlan& plan) {
  if (!queue_->Over()) queue_->Add(EncodePlanRecord(EncodePlan(plan)));
}

void PlanRecorder::AddResults(const StepRows& rows, std::vector<RankStepResult> results) {
  queue_->Add(Results{rows, std::move(results)});
}

void PlanRecorder::AddFailed(uint64_t step) {
  OutcomeRecord outcome;
  outcome.step = step;
  outcome.failed = true;
  queue_->Add(EncodeLogRecord(outcome));
}

void PlanRecorder::AddRing(uint64_t epoch, const std::vector<int>& from) {
  queue_->Add(EncodeLogRecord(RingRecord{epoch, {from.begin(), from.end()}}));
}

}  // namespace ringfill
