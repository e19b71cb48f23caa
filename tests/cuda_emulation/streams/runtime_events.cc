// Events and captures: the part of the runtime that orders streams among each other.
#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/cuda_emulation/streams/runtime.h"

namespace ringfill::cuda_emulation {
namespace {

class RecordTask final : public Task {
 public:
  explicit RecordTask(std::shared_ptr<Mark> mark) : mark_(std::move(mark)) {}
  Outcome Run() override {
    mark_->Set();
    return {};
  }
  void Drop() override { mark_->Set(); }
  const char* name() const override { return "an event record"; }

 private:
  const std::shared_ptr<Mark> mark_;
};

class WaitTask final : public Task {
 public:
  explicit WaitTask(std::shared_ptr<const Mark> mark) : mark_(std::move(mark)) {}
  bool Poll() override { return mark_->done.load(std::memory_order_acquire); }
  Outcome Run() override { return {}; }
  const char* name() const override { return "an event wait"; }

 private:
  const std::shared_ptr<const Mark> mark_;
};

uint64_t ThisThread() { return std::hash<std::thread::id>()(std::this_thread::get_id()); }

}  // namespace

bool Runtime::Known(cudaEvent_t event) {
  return std::any_of(events_.begin(), events_.end(),
                     [event](const auto& e) { return e.get() == event; });
}

cudaEvent_t Runtime::CreateEvent(int device, bool timing) {
  MutexLock lock(&mutex_);
  auto event = std::make_unique<CUevent_st>();
  event->device = device;
  event->timing = timing;
  events_.push_back(std::move(event));
  return events_.back().get();
}

cudaError_t Runtime::DestroyEvent(cudaEvent_t event) {
  MutexLock lock(&mutex_);
  if (!Known(event)) return cudaErrorInvalidResourceHandle;
  std::erase_if(events_, [event](const auto& e) { return e.get() == event; });
  return cudaSuccess;
}

cudaError_t Runtime::RecordEvent(cudaEvent_t event, cudaStream_t handle) {
  MutexLock lock(&mutex_);
  CUstream_st* stream = Find(handle);
  if (stream == nullptr || !Known(event) || event->device != stream->device) {
    return cudaErrorInvalidResourceHandle;
  }
  if (stream->capture != nullptr) {
    event->capture = stream->capture;
    event->captured_nodes = stream->captured_tail;
    event->mark = nullptr;
    return cudaSuccess;
  }
  event->capture = nullptr;
  auto mark = std::make_shared<Mark>();
  event->mark = mark;
  const cudaError_t error =
      EnqueueLocked(*stream, [mark] { return std::make_unique<RecordTask>(mark); });
  if (error != cudaSuccess) mark->Set();
  return error;
}

cudaError_t Runtime::WaitEvent(cudaStream_t handle, cudaEvent_t event) {
  MutexLock lock(&mutex_);
  CUstream_st* stream = Find(handle);
  if (stream == nullptr || !Known(event)) return cudaErrorInvalidResourceHandle;
  if (event->capture != nullptr) {
    if (stream->capture == nullptr) {
      if (!stream->queue.empty()) return cudaErrorStreamCaptureIsolation;
      stream->capture = event->capture;
      stream->captured_tail.clear();
      stream->capture->streams.push_back(stream);
    } else if (stream->capture != event->capture) {
      stream->capture->invalid = event->capture->invalid = true;
      return cudaErrorStreamCaptureMerge;
    }
    for (size_t node : event->captured_nodes) stream->captured_tail.push_back(node);
    return cudaSuccess;
  }
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (event->mark == nullptr) return cudaSuccess;
  const std::shared_ptr<const Mark> mark = event->mark;
  return EnqueueLocked(*stream, [mark] { return std::make_unique<WaitTask>(mark); });
}

cudaError_t Runtime::SynchronizeEvent(cudaEvent_t event) {
  MutexLock lock(&mutex_);
  if (!Known(event)) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = CheckNotCapturingLocked()) return error;
  const int device = event->device;
  const std::shared_ptr<const Mark> mark = event->mark;
  if (mark != nullptr) WorkUntilLocked([mark] { return mark->done.load(); });
  DeviceMemory::Get().Trim(device);
  return At(device).error;
}

cudaError_t Runtime::QueryEvent(cudaEvent_t event) {
  MutexLock lock(&mutex_);
  if (!Known(event)) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = CheckNotCapturingLocked()) return error;
  const int device = event->device;
  const std::shared_ptr<const Mark> mark = event->mark;
  if (mark == nullptr) return At(device).error;
  if (!mark->done.load()) WorkALittle();
  if (At(device).error != cudaSuccess) return At(device).error;
  return mark->done.load() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t Runtime::ElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  MutexLock lock(&mutex_);
  if (!Known(start) || !Known(end) || !start->timing || !end->timing || start->mark == nullptr ||
      end->mark == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!start->mark->done.load() || !end->mark->done.load()) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(end->mark->when - start->mark->when).count();
  return cudaSuccess;
}

// ---- capture

cudaError_t Runtime::BeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  MutexLock lock(&mutex_);
  CUstream_st* stream = Find(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (handle == nullptr) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture != nullptr) return cudaErrorIllegalState;
  if (At(stream->device).error != cudaSuccess) return At(stream->device).error;
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = ThisThread();
  capture->streams.push_back(stream);
  capture->graph.device = stream->device;
  stream->capture = capture;
  stream->captured_tail.clear();
  captures_.push_back(std::move(capture));
  return cudaSuccess;
}

cudaError_t Runtime::AddNode(CUstream_st& stream, const TaskFactory& make) {
  Capture& capture = *stream.capture;
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  capture.graph.nodes.push_back({make, stream.captured_tail});
  stream.captured_tail = {capture.graph.nodes.size() - 1};
  return cudaSuccess;
}

void Runtime::Forget(Capture& capture) {
  for (cudaStream_t stream : capture.streams) {
    stream->capture = nullptr;
    stream->captured_tail.clear();
  }
  std::erase_if(captures_, [&capture](const auto& c) { return c.get() == &capture; });
}

cudaError_t Runtime::EndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  MutexLock lock(&mutex_);
  CUstream_st* stream = Find(handle);
  *graph = nullptr;
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
  // Work of the streams that joined must lie before the origin's last node.
  std::vector<bool> before(capture->graph.nodes.size(), false);
  for (size_t node : stream->captured_tail) before[node] = true;
  for (size_t i = before.size(); i-- > 0;) {
    if (!before[i]) continue;
    for (size_t node : capture->graph.nodes[i].after) before[node] = true;
  }
  const bool joined = std::all_of(before.begin(), before.end(), [](bool b) { return b; });
  const bool invalid = capture->invalid;
  Forget(*capture);
  if (invalid) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{capture->graph};
  return cudaSuccess;
}

cudaStreamCaptureStatus Runtime::CaptureStatus(cudaStream_t handle) {
  MutexLock lock(&mutex_);
  const CUstream_st* stream = Find(handle);
  if (stream == nullptr || stream->capture == nullptr) return cudaStreamCaptureStatusNone;
  return stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
}

cudaError_t Runtime::CheckNotCapturing() {
  MutexLock lock(&mutex_);
  return CheckNotCapturingLocked();
}

cudaError_t Runtime::CheckNotCapturingLocked() {
  for (const auto& capture : captures_) {
    const bool forbids =
        capture->mode == cudaStreamCaptureModeGlobal ||
        (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread == ThisThread());
    if (!forbids) continue;
    capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

cudaError_t Runtime::LaunchGraph(cudaGraphExec_t graph, cudaStream_t stream) {
  Count(&Counters::graph_launches);
  const uint64_t seed = DrawSeed();
  return Enqueue(stream,
                 [what = graph->graph, seed] { return std::make_unique<GraphTask>(what, seed); });
}

}  // namespace ringfill::cuda_emulation
