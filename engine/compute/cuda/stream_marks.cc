#include "engine/compute/cuda/stream_marks.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/compute/cuda/cuda_api.h"

namespace ringfill {
namespace {

// How long a wait looks again and again before it pauses between looks.
constexpr Duration kSpin = std::chrono::microseconds(50);
constexpr Duration kFirstPause = std::chrono::microseconds(20);
constexpr Duration kLongestPause = std::chrono::microseconds(200);
constexpr size_t kMostFreeEvents = 1024;

// Seconds between two events that the GPU has reached.
double Elapsed(const std::shared_ptr<CudaEventHandle>& from,
               const std::shared_ptr<CudaEventHandle>& to) {
  float ms = 0;
  if (from == nullptr || to == nullptr) return 0;
  IgnoreCuda(cudaEventElapsedTime(&ms, from->get(), to->get()));
  return std::max(0.0, double{ms} * 1e-3);
}

Duration ToDuration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// Copies of a status share their message with a count that sanitizers do not see.
absl::Status Unshared(const absl::Status& status) {
  return absl::Status(status.code(), status.message());
}

}  // namespace

absl::Status MarkedEvent::Await(Instant deadline) {
  const Instant start = Clock::Real().Now();
  Duration pause = kFirstPause;
  absl::Status status;
  while (!IsComplete(&status)) {
    marks_->Poll();
    if (IsComplete(&status)) break;
    const Instant now = Clock::Real().Now();
    marks_->CheckWaits(now);
    if (!after_failure_) {
      status = marks_->status();
      if (!status.ok()) return status;
    }
    if (now >= deadline) return absl::DeadlineExceededError("queued work did not finish in time");
    if (now - start < kSpin) continue;
    std::this_thread::sleep_for(std::min(pause, deadline - now));
    pause = std::min(2 * pause, kLongestPause);
  }
  return status;
}

bool MarkedEvent::done() const {
  absl::Status status;
  if (IsComplete(&status)) return true;
  marks_->Poll();
  return IsComplete(&status);
}

cudaEvent_t MarkedEvent::cuda_event() const {
  MutexLock lock(&mutex_);
  return handle_ == nullptr ? nullptr : handle_->get();
}

void MarkedEvent::SetRecorded(std::shared_ptr<CudaEventHandle> handle) {
  MutexLock lock(&mutex_);
  handle_ = std::move(handle);
}

void MarkedEvent::Complete(absl::Status status) {
  MutexLock lock(&mutex_);
  done_ = true;
  status_ = Unshared(status);
}

bool MarkedEvent::IsComplete(absl::Status* status) const {
  MutexLock lock(&mutex_);
  if (done_) *status = Unshared(status_);
  return done_;
}

void StreamMarks::Push(StreamSegment segment) {
  MutexLock lock(&mutex_);
  if (segment.event != nullptr) segment.event->SetRecorded(segment.end);
  under_way_.push_back(std::move(segment));
}

bool StreamMarks::Poll() {
  for (;;) {
    StreamSegment segment;
    {
      MutexLock lock(&mutex_);
      if (under_way_.empty()) return true;
      if (taking_) return false;
      const auto& end = under_way_.front().end;
      const cudaError_t error = end == nullptr ? cudaErrorUnknown : QueryEvent(end->get());
      if (error == cudaErrorNotReady) return false;
      if (error != cudaSuccess) {
        // The device answers nothing any more.
        status_.Update(CudaStatus(error, "running queued work", device_));
        DropAll();
        return true;
      }
      taking_ = true;
      segment = std::move(under_way_.front());
    }
    Take(segment);
    MutexLock lock(&mutex_);
    TakeSegmentTimes(segment);
    if (segment.event != nullptr) segment.event->Complete(status_);
    if (!under_way_.empty()) under_way_.pop_front();
    taking_ = false;
  }
}

void StreamMarks::Take(const StreamSegment& segment) {
  // Behind a failure there may be nobody left to end the wait but whoever looks here.
  if (segment.waited != nullptr && status().ok()) {
    const absl::Status waited = segment.waited->Await(segment.wait_deadline);
    if (!waited.ok()) Fail(waited);
  }
  for (const auto& fn : segment.then) {
    if (!status().ok()) return;
    const absl::Status done = fn();
    if (!done.ok()) Fail(done);
  }
}

void StreamMarks::TakeSegmentTimes(const StreamSegment& segment) {
  const Instant now = Clock::Real().Now();
  if (last_end_ == nullptr) {
    last_end_at_ = now;
  } else {
    last_end_at_ = std::min(now, last_end_at_ + ToDuration(Elapsed(last_end_, segment.end)));
  }
  last_end_ = segment.end;
  times_.busy_s += Elapsed(segment.begin, segment.end);
  times_.wait_s += Elapsed(segment.wait_from, segment.begin);
  if (trace_ == nullptr || !trace_->enabled()) return;
  for (const StreamSegment::Operation& op : segment.operations) {
    trace_->Add({op.label, TraceLane::kCompute,
                 last_end_at_ - ToDuration(Elapsed(op.begin, segment.end)),
                 last_end_at_ - ToDuration(Elapsed(op.end, segment.end))});
  }
}

void StreamMarks::DropAll() {
  for (StreamSegment& segment : under_way_) {
    if (segment.event != nullptr) segment.event->Complete(status_);
  }
  under_way_.clear();
}

void StreamMarks::CheckWaits(Instant now) {
  std::vector<EventPtr> late;
  {
    MutexLock lock(&mutex_);
    for (const StreamSegment& segment : under_way_) {
      if (segment.waited != nullptr && now >= segment.wait_deadline) late.push_back(segment.waited);
    }
  }
  for (const EventPtr& event : late) {
    if (event->done()) continue;
    Fail(absl::DeadlineExceededError("what a device waits for did not come in time"));
  }
}

void StreamMarks::Fail(const absl::Status& status) {
  MutexLock lock(&mutex_);
  status_.Update(Unshared(status));
}

absl::Status StreamMarks::status() const {
  MutexLock lock(&mutex_);
  return Unshared(status_);
}

void StreamMarks::Clear() {
  MutexLock lock(&mutex_);
  status_ = absl::OkStatus();
}

void StreamMarks::AddWait(double seconds) {
  MutexLock lock(&mutex_);
  times_.wait_s += seconds;
}

StreamTimes StreamMarks::TakeTimes() {
  MutexLock lock(&mutex_);
  return std::exchange(times_, {});
}

void StreamMarks::End() {
  MutexLock lock(&mutex_);
  status_.Update(absl::CancelledError("the stream has ended"));
  DropAll();
}

absl::StatusOr<std::shared_ptr<CudaEventHandle>> StreamMarks::TakeEvent() {
  std::unique_ptr<CudaEventHandle> handle;
  {
    MutexLock lock(&free_events_->mutex);
    if (!free_events_->events.empty()) {
      handle = std::move(free_events_->events.back());
      free_events_->events.pop_back();
    }
  }
  if (handle == nullptr) {
    RF_ASSIGN_OR_RETURN(CudaEventHandle made, CudaEventHandle::Make(CudaEventHandle::Timing::kOn));
    handle = std::make_unique<CudaEventHandle>(std::move(made));
  }
  return std::shared_ptr<CudaEventHandle>(handle.release(),
                                          [free = free_events_](CudaEventHandle* done) {
                                            std::unique_ptr<CudaEventHandle> owned(done);
                                            MutexLock lock(&free->mutex);
                                            if (free->events.size() < kMostFreeEvents)
                                              free->events.push_back(std::move(owned));
                                          });
}

}  // namespace ringfill
