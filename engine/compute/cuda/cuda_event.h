// Events that GPUs complete, so that devices and transports of one process order their work among
// themselves without the host: whoever is to run behind an Event asks it for its CUDA event.
//
// Lint keeps CUDA's types to engine/compute/cuda and engine/comm/nccl.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "engine/stream/event.h"

namespace ringfill {

// A second base of the Events that have a CUDA event behind them: what CudaStream::Record gives,
// and transfers over NCCL.
class CudaBacked {
 public:
  virtual ~CudaBacked() = default;
  // Recorded already: cudaStreamWaitEvent on any device's stream comes behind the work. Null while
  // nothing has been recorded (the work is not on a GPU's stream yet): wait on the host. Valid as
  // long as this object. Any thread may call it.
  virtual cudaEvent_t cuda_event() const = 0;
};

// The CUDA event behind `event`, null when it has none (now).
inline cudaEvent_t CudaEventOf(const EventPtr& event) {
  const auto* backed = dynamic_cast<const CudaBacked*>(event.get());
  return backed == nullptr ? nullptr : backed->cuda_event();
}

// Owns a CUDA event of the device that is current when it is made.
class CudaEventHandle {
 public:
  enum class Timing { kOff, kOn };

  CudaEventHandle() = default;
  CudaEventHandle(CudaEventHandle&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)) {}
  CudaEventHandle& operator=(CudaEventHandle&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  // Work that was ordered behind it stays so.
  ~CudaEventHandle() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }

  static absl::StatusOr<CudaEventHandle> Make(Timing timing);
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// The host waits for a recorded event: OK when it is reached, DEADLINE_EXCEEDED, or the error of
// the device. Looks again and again, at first without a pause, so that a deadline holds whatever
// the device does.
absl::Status AwaitCudaEvent(cudaEvent_t event, Instant deadline);

}  // namespace ringfill
