// Kernel launches, function attributes, occupancy.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "tests/cuda_emulation/execution/block.h"
#include "tests/cuda_emulation/runtime/api.h"
#include "tests/cuda_emulation/runtime/limits.h"
#include "tests/cuda_emulation/streams/runtime.h"

namespace ringfill::cuda_emulation {
namespace {

// Dynamic shared memory that kernels were allowed, by device.
struct Allowed {
  Mutex mutex;
  std::map<std::pair<const void*, int>, size_t> bytes ABSL_GUARDED_BY(mutex);
};
Allowed& TheAllowed() {
  static auto* allowed = new Allowed;
  return *allowed;
}

size_t AllowedShared(const void* kernel, int device) {
  Allowed& allowed = TheAllowed();
  MutexLock lock(&allowed.mutex);
  const auto found = allowed.bytes.find({kernel, device});
  return found == allowed.bytes.end() ? kStaticSharedLimit : found->second;
}

void AllowShared(const void* kernel, int device, size_t bytes) {
  Allowed& allowed = TheAllowed();
  MutexLock lock(&allowed.mutex);
  allowed.bytes[{kernel, device}] = bytes;
}

cudaError_t CheckLaunch(const KernelLaunch& launch, int device) {
  const unsigned grid[3] = {launch.grid.x, launch.grid.y, launch.grid.z};
  const unsigned block[3] = {launch.block.x, launch.block.y, launch.block.z};
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || grid[i] > kMaxGridDim[i] || block[i] == 0 || block[i] > kMaxBlockDim[i]) {
      return cudaErrorInvalidConfiguration;
    }
  }
  if (uint64_t{block[0]} * block[1] * block[2] > kMaxThreads) return cudaErrorInvalidConfiguration;
  if (launch.shared_bytes > AllowedShared(launch.kernel, device)) return cudaErrorInvalidValue;
  return cudaSuccess;
}

// A launch with its own copy of the arguments.
class OwnedLaunch {
 public:
  explicit OwnedLaunch(const KernelLaunch& launch) : launch_(launch) {
    launch_.arguments = launch.copy(launch.arguments);
  }
  ~OwnedLaunch() { launch_.destroy(launch_.arguments); }
  OwnedLaunch(const OwnedLaunch&) = delete;
  OwnedLaunch& operator=(const OwnedLaunch&) = delete;
  const KernelLaunch& launch() const { return launch_; }

 private:
  KernelLaunch launch_;
};

}  // namespace

cudaError_t LaunchKernel(const KernelLaunch& launch, cudaStream_t stream) {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  Runtime& runtime = Runtime::Get();
  const int device = runtime.DeviceOfStream(stream);
  if (device < 0) return Return(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = CheckLaunch(launch, device)) return Return(error);
  auto owned = std::make_shared<const OwnedLaunch>(launch);
  return Return(runtime.Enqueue(
      stream, MakeFunctionTask("a kernel", [owned = std::move(owned), device]() -> Outcome {
        Runtime& of_run = Runtime::Get();
        of_run.Count(&Counters::kernels);
        const std::string report =
            BlockExecutor::OfThisThread().RunGrid(owned->launch(), device, of_run.DrawSeed());
        return {report.empty() ? cudaSuccess : cudaErrorLaunchFailure, report};
      })));
}

}  // namespace ringfill::cuda_emulation

using namespace ringfill::cuda_emulation;  // NOLINT: the functions below belong to CUDA

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  if (function == nullptr) return Return(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return Return(cudaSuccess);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > kOptInSharedLimit) {
    return Return(cudaErrorInvalidValue);
  }
  AllowShared(function, CurrentDevice(), static_cast<size_t>(value));
  return Return(cudaSuccess);
}

// Static shared memory and registers are not known here.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int block_size, size_t shared_bytes) {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  if (function == nullptr) return Return(cudaErrorInvalidDeviceFunction);
  if (block_size <= 0 || block_size > kMaxThreads) return Return(cudaErrorInvalidValue);
  const bool fits = shared_bytes <= AllowedShared(function, CurrentDevice());
  const auto by_shared =
      static_cast<int>(kMultiprocessorSharedBytes / (shared_bytes + kReservedSharedBytes));
  const int by_threads = kMultiprocessorThreads / ((block_size + 31) / 32 * 32);
  *blocks = fits ? std::min({by_shared, by_threads, kMultiprocessorBlocks}) : 0;
  return Return(cudaSuccess);
}

}  // extern "C"
