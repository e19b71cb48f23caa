#include "engine/compute/cuda/cuda_event.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"

namespace ringfill {
namespace {

// A decode step waits for less than this.
constexpr Duration kSpin = std::chrono::microseconds(50);
constexpr Duration kFirstPause = std::chrono::microseconds(20);
constexpr Duration kLongestPause = std::chrono::microseconds(200);

absl::Status Failed(const char* what, cudaError_t error) {
  (void)cudaGetLastError();
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"));
}

}  // namespace

absl::StatusOr<CudaEventHandle> CudaEventHandle::Make(Timing timing) {
  CudaEventHandle made;
  const unsigned flags = timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming;
  const cudaError_t error = cudaEventCreateWithFlags(&made.event_, flags);
  if (error != cudaSuccess) return Failed("making a CUDA event", error);
  return made;
}

absl::Status AwaitCudaEvent(cudaEvent_t event, Instant deadline) {
  const Instant start = Clock::Real().Now();
  Duration pause = kFirstPause;
  for (;;) {
    const cudaError_t error = cudaEventQuery(event);
    if (error == cudaSuccess) return absl::OkStatus();
    if (error != cudaErrorNotReady) return Failed("waiting for a CUDA event", error);
    (void)cudaGetLastError();
    const Instant now = Clock::Real().Now();
    if (now >= deadline) return absl::DeadlineExceededError("queued work did not finish in time");
    if (now - start < kSpin) continue;
    std::this_thread::sleep_for(std::min(pause, deadline - now));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace ringfill
