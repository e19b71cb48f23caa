#include "engine/compute/cuda/cuda_stream.h"

#include <algorithm>
#include <utility>

#include "base/aligned_buffer.h"
#include "engine/compute/cuda/cuda_api.h"

namespace ringfill {
namespace {

// A wait on the host looks this often whether the stream has failed meanwhile.
constexpr Duration kHostWaitSlice = std::chrono::milliseconds(10);
// Of Clear: whatever held up the GPU has been given up by then.
constexpr Duration kDrainLimit = std::chrono::seconds(30);

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Make(int device, TraceBuffer* trace) {
  RF_RETURN_IF_CUDA_ERROR(device, cudaSetDevice(device));
  cudaStream_t stream = nullptr;
  RF_RETURN_IF_CUDA_ERROR(device, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return std::unique_ptr<CudaStream>(new CudaStream(device, stream, trace));
}

CudaStream::CudaStream(int device, cudaStream_t stream, TraceBuffer* trace)
    : device_(device),
      stream_(stream),
      trace_(trace),
      marks_(std::make_shared<StreamMarks>(device, trace)) {}

CudaStream::~CudaStream() {
  Stop();
  // What was freed since.
  IgnoreCuda(cudaStreamSynchronize(stream_));
  IgnoreCuda(cudaStreamDestroy(stream_));
}

void CudaStream::Stop() {
  marks_->Fail(absl::CancelledError("the stream has ended"));
  {
    MutexLock lock(&held_mutex_);
    stop_ = true;
    held_changed_.SignalAll();
  }
  if (holder_.joinable()) holder_.join();
  IgnoreCuda(cudaSetDevice(device_));
  IgnoreCuda(cudaStreamSynchronize(stream_));
  marks_->Poll();
  marks_->End();
}

void CudaStream::Submit(std::function<void()> job) {
  {
    MutexLock lock(&held_mutex_);
    if (holding_) {
      held_.push_back(std::move(job));
      held_changed_.Signal();
      return;
    }
  }
  IgnoreCuda(cudaSetDevice(device_));
  job();
}

void CudaStream::Hold(std::function<void()> job) {
  MutexLock lock(&held_mutex_);
  holding_ = true;
  held_.push_back(std::move(job));
  held_changed_.Signal();
  if (!holder_.joinable()) holder_ = std::thread([this] { HoldLoop(); });
}

void CudaStream::HoldLoop() {
  IgnoreCuda(cudaSetDevice(device_));
  for (;;) {
    std::function<void()> job;
    {
      MutexLock lock(&held_mutex_);
      if (held_.empty()) holding_ = false;
      while (!stop_ && held_.empty()) held_changed_.Wait(&held_mutex_);
      if (held_.empty()) return;
      job = std::move(held_.front());
      held_.pop_front();
    }
    job();
  }
}

void CudaStream::Enqueue(const OpLabel& label, Work work) {
  Submit([this, label, work = std::move(work)] { Launch(label, work); });
}

void CudaStream::Launch(const OpLabel& label, const Work& work) {
  if (!marks_->status().ok()) return;
  if (segment_.begin == nullptr) segment_.begin = RecordTimed();
  const bool traced = trace_ != nullptr && trace_->enabled();
  StreamSegment::Operation operation{label, traced ? RecordTimed() : nullptr, nullptr};
  const absl::Status status = work(stream_);
  if (!status.ok()) marks_->Fail(status);
  if (!traced) return;
  operation.end = RecordTimed();
  segment_.operations.push_back(std::move(operation));
}

std::byte* CudaStream::Pinned(size_t bytes) {
  absl::StatusOr<PinnedPiece> piece = pinned_.Take(bytes);
  if (!piece.ok()) {
    marks_->Fail(piece.status());
    auto plain = std::make_shared<AlignedBuffer>(std::max<size_t>(bytes, 1));
    piece = PinnedPiece(plain, plain->data());
  }
  segment_.pinned.push_back(*std::move(piece));
  return segment_.pinned.back().get();
}

bool CudaStream::DeviceLost() const {
  const cudaError_t set = cudaSetDevice(device_);
  IgnoreCuda(set);
  // An error that work has run into comes back from every call.
  const cudaError_t state = set == cudaSuccess ? QueryStream(stream_) : set;
  return state != cudaSuccess && state != cudaErrorNotReady;
}

void CudaStream::Then(std::function<absl::Status()> fn) { segment_.then.push_back(std::move(fn)); }

std::shared_ptr<CudaEventHandle> CudaStream::RecordTimed() {
  absl::StatusOr<std::shared_ptr<CudaEventHandle>> event = marks_->TakeEvent();
  if (!event.ok()) {
    marks_->Fail(event.status());
    return nullptr;
  }
  const absl::Status status =
      CudaStatus(cudaEventRecord((*event)->get(), stream_), "cudaEventRecord", device_);
  if (!status.ok()) {
    marks_->Fail(status);
    return nullptr;
  }
  return *std::move(event);
}

void CudaStream::Mark(std::shared_ptr<MarkedEvent> event) {
  segment_.end = RecordTimed();
  segment_.event = std::move(event);
  marks_->Push(std::exchange(segment_, {}));
}

EventPtr CudaStream::Record() {
  auto event = std::make_shared<MarkedEvent>(marks_, !marks_->status().ok());
  Submit([this, event] { Mark(event); });
  return event;
}

void CudaStream::WaitFor(EventPtr event, Instant deadline) {
  if (event == nullptr) return;
  Submit([this, event = std::move(event), deadline] {
    if (!marks_->status().ok()) return;
    if (const cudaEvent_t cuda_event = CudaEventOf(event); cuda_event != nullptr) {
      WaitOnDevice(event, cuda_event, deadline);
    } else if (event->done() || OnHolder()) {
      AwaitOnHost(event, deadline);
    } else {
      Hold([this, event, deadline] { AwaitOnHost(event, deadline); });
    }
  });
}

void CudaStream::AwaitOnHost(const EventPtr& event, Instant deadline) {
  const Instant begin = Clock::Real().Now();
  absl::Status status;
  for (;;) {
    if (!marks_->status().ok()) return;
    const Instant until = std::min(deadline, Clock::Real().Now() + kHostWaitSlice);
    status = event->Await(until);
    if (event->done() || until >= deadline) break;
  }
  if (event->done()) status = event->Await(deadline);
  marks_->AddWait(Seconds(Clock::Real().Now() - begin));
  if (!status.ok()) marks_->Fail(status);
}

void CudaStream::WaitOnDevice(const EventPtr& event, cudaEvent_t cuda_event, Instant deadline) {
  Mark(nullptr);
  std::shared_ptr<CudaEventHandle> from = RecordTimed();
  const absl::Status status =
      CudaStatus(cudaStreamWaitEvent(stream_, cuda_event, 0), "cudaStreamWaitEvent", device_);
  if (!status.ok()) return marks_->Fail(status);
  segment_.wait_from = std::move(from);
  segment_.begin = RecordTimed();
  segment_.waited = event;
  segment_.wait_deadline = deadline;
}

absl::Status CudaStream::Synchronize(Instant deadline) {
  RF_RETURN_IF_ERROR(Record()->Await(deadline));
  return status();
}

void CudaStream::Clear() {
  const EventPtr last = Record();
  last->Await(Clock::Real().Now() + kDrainLimit).IgnoreError();
  // A stream that is still held up stays failed.
  if (last->done()) marks_->Clear();
}

}  // namespace ringfill
