#include "engine/comm/nccl/nccl_resources.h"

#include "engine/compute/cuda/cuda_api.h"

namespace ringfill {

absl::StatusOr<std::shared_ptr<const NcclResources>> NcclResources::Make(int device, int ranks) {
  const std::shared_ptr<NcclResources> made(new NcclResources(device));
  const size_t bytes = kPieceBytes * (static_cast<size_t>(ranks) + 1);
  int least = 0, greatest = 0;
  RF_RETURN_IF_CUDA_ERROR(device, cudaSetDevice(device));
  RF_RETURN_IF_CUDA_ERROR(device, cudaMalloc(reinterpret_cast<void**>(&made->on_device_), bytes));
  RF_RETURN_IF_CUDA_ERROR(device, cudaMallocHost(reinterpret_cast<void**>(&made->on_host_), bytes));
  RF_RETURN_IF_CUDA_ERROR(device, cudaDeviceGetStreamPriorityRange(&least, &greatest));
  RF_RETURN_IF_CUDA_ERROR(
      device, cudaStreamCreateWithPriority(&made->stream_, cudaStreamNonBlocking, greatest));
  return made;
}

NcclResources::~NcclResources() {
  (void)cudaSetDevice(device_);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  if (on_device_ != nullptr) (void)cudaFree(on_device_);
  if (on_host_ != nullptr) (void)cudaFreeHost(on_host_);
}

}  // namespace ringfill
