// CUDA's runtime as the rest of this folder calls it: errors become statuses that say which call
// failed on which device and what to do about it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ringfill {

// OK for cudaSuccess. Otherwise RESOURCE_EXHAUSTED (memory), FAILED_PRECONDITION (no driver, no
// GPU, a GPU that this build has no code for) or INTERNAL: the call's name (what comes before a
// bracket in `call`), the device, CUDA's name for the error and a hint. device: -1 for none.
// CUDA's last error of this thread is taken along, since it is told here: libraries look at it
// after their own calls.
absl::Status CudaStatus(cudaError_t error, std::string_view call, int device);
// For what is of no consequence, such as frees on a lost device: takes the last error along too.
inline void IgnoreCuda(cudaError_t error) {
  if (error != cudaSuccess) (void)cudaGetLastError();
}
// Whether what was queued is done: cudaSuccess, cudaErrorNotReady or what it ran into. Leaves no
// last error behind.
inline cudaError_t QueryStream(cudaStream_t stream) {
  const cudaError_t state = cudaStreamQuery(stream);
  IgnoreCuda(state);
  return state;
}
inline cudaError_t QueryEvent(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  IgnoreCuda(state);
  return state;
}
// The same as CudaStatus for what a launch wrapper of kernels/ returned.
inline absl::Status LaunchStatus(int error, std::string_view kernel, int device) {
  return CudaStatus(static_cast<cudaError_t>(error), kernel, device);
}

#define RF_RETURN_IF_CUDA_ERROR(device, call) \
  RF_RETURN_IF_ERROR(::ringfill::CudaStatus((call), #call, (device)))

// A GPU as the driver describes it.
struct CudaGpu {
  int index = 0;
  std::string name;
  std::string bus;           // where it is in its machine
  int major = 0, minor = 0;  // compute capability
  int processors = 0;        // streaming multiprocessors
  size_t total_bytes = 0;
  size_t free_bytes = 0;  // now
};
// "device 0 (NVIDIA H100, sm_90)"
std::string Describe(const CudaGpu& gpu);

// What kernels are built for, at least.
inline constexpr int kLeastMajor = 8;

// Every GPU that the process may use, at least one; their memory is not looked at, because each
// whose memory is keeps some of it for the process. FAILED_PRECONDITION without driver or GPU.
absl::StatusOr<std::vector<CudaGpu>> ListGpus();
// Fills in free_bytes and total_bytes.
absl::Status LookAtMemory(CudaGpu& gpu);
// One of them, with its memory.
// INVALID_ARGUMENT when there is no such GPU, else as ListGpus and PickGpus; INTERNAL when it fails
// every call.
absl::StatusOr<CudaGpu> FindGpu(int index);

// The GPUs of `count` ranks: those that `wanted` lists, one a rank, or the first ones when it is
// empty. INVALID_ARGUMENT naming ranks.devices or ranks.count when they do not fit,
// FAILED_PRECONDITION for a GPU that is too old.
absl::StatusOr<std::vector<CudaGpu>> PickGpus(const std::vector<CudaGpu>& all,
                                              const std::vector<int>& wanted, int count);

// Lets each of these GPUs read and write the stream-ordered memory of those others that it reaches,
// what is allocated already too. No effect on memory that cudaMalloc gave.
absl::Status OpenMemoryToPeers(const std::vector<int>& devices);

}  // namespace ringfill
