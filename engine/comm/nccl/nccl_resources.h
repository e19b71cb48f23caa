// What NCCL's calls of one rank use beside the communicator.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "base/status.h"

namespace ringfill {

// The stream of transfers, and buffers of GatherOnHost: on the device, and pinned ones on the host.
// Made before and freed after all transfers, because CUDA may wait for all GPUs in either. Shared
// by calls that may outlive the rank's communicator. Immutable.
class NcclResources {
 public:
  // Of a gather on the host, each rank's part that goes at once.
  static constexpr size_t kPieceBytes = 16 << 10;

  // Like the destructor, may wait for the device for ever: see DetachedCall.
  static absl::StatusOr<std::shared_ptr<const NcclResources>> Make(int device, int ranks);
  ~NcclResources();
  NcclResources(const NcclResources&) = delete;
  NcclResources& operator=(const NcclResources&) = delete;

  cudaStream_t stream() const { return stream_; }
  // [ranks + 1] pieces
  std::byte* on_device() const { return on_device_; }
  std::byte* on_host() const { return on_host_; }

 private:
  explicit NcclResources(int device) : device_(device) {}

  const int device_;
  cudaStream_t stream_ = nullptr;
  std::byte* on_device_ = nullptr;
  std::byte* on_host_ = nullptr;
};

}  // namespace ringfill
