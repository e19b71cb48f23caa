#include "engine/compute/cuda/cuda_event.h"

#include <algorithm>
#include <thread>

#include "engine/compute/cuda/cuda_api.h"

namespace ringfill {
namespace {

// A decode step waits for less than this.
constexpr Duration kSpin = std::chrono::microseconds(50);
constexpr Duration kFirstPause = std::chrono::microseconds(20);
constexpr Duration kLongestPause = std::chrono::microseconds(200);

}  // namespace

absl::StatusOr<CudaEventHandle> CudaEventHandle::Make(Timing timing) {
  CudaEventHandle made;
  const unsigned flags = timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming;
  RF_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&made.event_, flags), "making a CUDA event", -1));
  return made;
}

absl::Status AwaitCudaEvent(cudaEvent_t event, Instant deadline) {
  const Instant start = Clock::Real().Now();
  Duration pause = kFirstPause;
  for (;;) {
    const cudaError_t state = QueryEvent(event);
    if (state != cudaErrorNotReady) return CudaStatus(state, "waiting for a CUDA event", -1);
    const Instant now = Clock::Real().Now();
    if (now >= deadline) return absl::DeadlineExceededError("queued work did not finish in time");
    if (now - start < kSpin) continue;
    std::this_thread::sleep_for(std::min(pause, deadline - now));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace ringfill
