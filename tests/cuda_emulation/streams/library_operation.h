// How libraries on top of the runtime (NCCL, cuBLASLt) put work into emulated streams. Implemented
// by the stream queues.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>

namespace ringfill::cuda_emulation {

enum class Progress { kDone, kBlocked };

struct LibraryOperation {
  std::string name;  // for reports
  // Called while the operation is the first of its stream, by whichever thread runs queued work,
  // one thread at a time for one operation, until it says kDone. Device memory of every device is
  // open then. Blocked: it depends on something outside its stream (a peer's operation at the head
  // of another stream, of the same device or another, an abort) and is asked again after other work
  // has run or WakeStreams was called. It may call WakeStreams and DeviceOfStream, nothing else of
  // the runtime.
  std::function<Progress()> advance;
};

// Queued behind what the stream holds, captured when the stream captures. A thread that waits for
// work (synchronises, or queries) runs the streams of all devices, because an operation may depend
// on any of them; when all it could run is blocked, it sleeps until something is queued or
// WakeStreams is called, so that a peer that never comes shows as a wait, not as a failure.
cudaError_t QueueLibraryOperation(cudaStream_t stream, LibraryOperation operation);

// Something that blocked operations depend on has changed. Any thread, at any time.
void WakeStreams();

// The device that a stream was made on.
int DeviceOfStream(cudaStream_t stream);

}  // namespace ringfill::cuda_emulation
