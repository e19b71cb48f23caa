// A queue of work on one GPU. What is queued goes to the GPU at once and runs there in order; the
// host learns what became of it when it awaits or looks at an event behind it.
//
// Waits. An event with a CUDA event behind it (CudaBacked: of another device or of NCCL) is waited
// for by the GPU, without the host. Any other event is waited for by a thread of the stream: until
// it has come, whatever is queued is held back in that thread's list, so that the caller is not
// held up and no function blocks inside the driver, where it could block other streams as well.
// A deadline is kept by whoever awaits something behind the wait: a GPU cannot give up by itself.
//
// Failure. Work that fails when it is queued, a wait that fails, and what is found out behind the
// work (Then) fail the stream; what is queued from then on is dropped. Work that is on the GPU
// already runs to its end all the same, on whatever came: it stays inside its buffers, and nothing
// of it is told to the host (Then is skipped), since each event behind fails.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/compute/cuda/stream_marks.h"
#include "engine/stream/op_label.h"
#include "engine/stream/stream.h"
#include "engine/stream/trace.h"

namespace ringfill {

// Used by one host thread, except Fail and status. Events outlive it: those that are not done end
// with CANCELLED.
class CudaStream final : public Stream {
 public:
  // `trace` may be null; must outlive the stream.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Make(int device, TraceBuffer* trace);
  ~CudaStream() override;

  int device() const { return device_; }
  cudaStream_t get() const { return stream_; }

  // `work` queues on the stream it is given, with the device current; on the caller's thread or the
  // stream's own. It shares whatever it reads.
  using Work = std::function<absl::Status(cudaStream_t)>;
  void Enqueue(const OpLabel& label, Work work);

  // Pins memory for Pinned, so that steps do not: see PinnedPool::Add. REQUIRES: nothing is queued.
  absl::Status KeepPinned(size_t bytes, int blocks) { return pinned_.Add(bytes, blocks); }

  // Drops what is held back and waits for what is on the GPU, before what it uses goes. Nothing is
  // queued afterwards but what frees memory.
  void Stop();

  // ---- for work alone
  // Pinned host memory for copies in either direction, aligned to 64 bytes, until all that is
  // queued by now has run and its Thens are through. When there is none (a lost device pins
  // nothing) the stream fails, and plain memory serves until that shows.
  std::byte* Pinned(size_t bytes);
  // Runs on some host thread when all that is queued by now has run and has not failed, before any
  // event behind is done; an error fails the stream. Queues nothing.
  void Then(std::function<absl::Status()> fn);

  // The first failure stays. Any thread may call it. REQUIRES: !status.ok().
  void Fail(const absl::Status& status) { marks_->Fail(status); }
  // Asks the device: true when it fails every call.
  bool DeviceLost() const;

  EventPtr Record() override;
  void WaitFor(EventPtr event, Instant deadline) override;
  absl::Status Synchronize(Instant deadline) override;
  absl::Status status() const override { return marks_->status(); }
  // Waits for what is still on the GPU.
  void Clear() override;
  StreamTimes TakeTimes() override { return marks_->TakeTimes(); }

 private:
  CudaStream(int device, cudaStream_t stream, TraceBuffer* trace);

  // Runs `job` now, or behind those that are held back.
  void Submit(std::function<void()> job);
  void Hold(std::function<void()> job);
  void HoldLoop();
  // Asked inside a job.
  bool OnHolder() const { return std::this_thread::get_id() == holder_.get_id(); }
  void AwaitOnHost(const EventPtr& event, Instant deadline);

  void Launch(const OpLabel& label, const Work& work);
  void WaitOnDevice(const EventPtr& event, cudaEvent_t cuda_event, Instant deadline);
  // Ends the segment at hand; `event` may be null.
  void Mark(std::shared_ptr<MarkedEvent> event);
  std::shared_ptr<CudaEventHandle> RecordTimed();

  const int device_;
  const cudaStream_t stream_;
  TraceBuffer* const trace_;
  const std::shared_ptr<StreamMarks> marks_;
  // Used by whoever queues.
  PinnedPool pinned_;
  StreamSegment segment_;

  Mutex held_mutex_;
  CondVar held_changed_;
  std::deque<std::function<void()>> held_ ABSL_GUARDED_BY(held_mutex_);
  bool holding_ ABSL_GUARDED_BY(held_mutex_) = false;  // some are held, or one runs
  bool stop_ ABSL_GUARDED_BY(held_mutex_) = false;
  std::thread holder_;  // started when first needed
};

}  // namespace ringfill
