// What a CUDA stream has under way, in segments that end with a mark: an event recorded behind
// them, by which the host sees how far the GPU is. Marks are taken in order by whoever looks or
// waits; then what a segment has for the host becomes known: results, flags, failures, times.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "engine/compute/cuda/cuda_event.h"
#include "engine/compute/cuda/pinned_memory.h"
#include "engine/stream/op_label.h"
#include "engine/stream/stream.h"
#include "engine/stream/trace.h"

namespace ringfill {

class StreamMarks;

// What CudaStream::Record gives.
class MarkedEvent final : public Event, public CudaBacked {
 public:
  // `after_failure`: the stream had failed when it was recorded.
  MarkedEvent(std::shared_ptr<StreamMarks> marks, bool after_failure)
      : marks_(std::move(marks)), after_failure_(after_failure) {}

  // Returns a failure of the stream at once, though the GPU may not be done, unless the event was
  // recorded behind the failure: then it tells that the GPU is done.
  absl::Status Await(Instant deadline) override;
  bool done() const override;
  cudaEvent_t cuda_event() const override;

 private:
  friend class StreamMarks;
  void SetRecorded(std::shared_ptr<CudaEventHandle> handle);
  void Complete(absl::Status status);
  bool IsComplete(absl::Status* status) const;

  const std::shared_ptr<StreamMarks> marks_;
  const bool after_failure_;
  mutable Mutex mutex_;
  std::shared_ptr<CudaEventHandle> handle_ ABSL_GUARDED_BY(mutex_);  // null: not recorded yet
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Work between two marks. All of it optional.
struct StreamSegment {
  struct Operation {
    OpLabel label;
    std::shared_ptr<CudaEventHandle> begin, end;
  };
  EventPtr waited;  // what the GPU waited for first; the stream fails with it
  Instant wait_deadline{};
  std::shared_ptr<CudaEventHandle> wait_from;  // the GPU waited from here to `begin`
  std::shared_ptr<CudaEventHandle> begin;
  std::shared_ptr<CudaEventHandle> end;
  std::vector<Operation> operations;  // while tracing
  std::vector<std::function<absl::Status()>> then;
  std::vector<PinnedPiece> pinned;
  std::shared_ptr<MarkedEvent> event;
};

// Thread-safe. Shared by a stream and its events.
class StreamMarks {
 public:
  StreamMarks(int device, TraceBuffer* trace) : device_(device), trace_(trace) {}

  // Behind all others. `segment.end` has been recorded, or could not be: then it is null.
  void Push(StreamSegment segment);
  // Takes the marks that the GPU has reached. True when none is left.
  bool Poll();
  // Fails the stream when something that it waits for is late.
  void CheckWaits(Instant now);
  void Fail(const absl::Status& status);
  absl::Status status() const;
  void Clear();
  void AddWait(double seconds);
  StreamTimes TakeTimes();
  // The stream has ended: drops what is left, whose events fail with CANCELLED.
  void End();

  // Timed events, used again and again.
  absl::StatusOr<std::shared_ptr<CudaEventHandle>> TakeEvent();

 private:
  // Runs what the segment has for the host, without the lock: events of other streams may be asked.
  void Take(const StreamSegment& segment);
  void TakeSegmentTimes(const StreamSegment& segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int device_;
  TraceBuffer* const trace_;
  mutable Mutex mutex_;
  std::deque<StreamSegment> under_way_ ABSL_GUARDED_BY(mutex_);
  bool taking_ ABSL_GUARDED_BY(mutex_) = false;  // some thread is about the first of them
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  StreamTimes times_ ABSL_GUARDED_BY(mutex_);
  // When the last mark taken was reached.
  std::shared_ptr<CudaEventHandle> last_end_ ABSL_GUARDED_BY(mutex_);
  Instant last_end_at_ ABSL_GUARDED_BY(mutex_){};

  struct FreeEvents {
    Mutex mutex;
    std::vector<std::unique_ptr<CudaEventHandle>> events ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<FreeEvents> free_events_ = std::make_shared<FreeEvents>();
};

}  // namespace ringfill
