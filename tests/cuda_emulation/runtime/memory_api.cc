// Allocation, copies and fills.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/cuda_emulation/memory/device_memory.h"
#include "tests/cuda_emulation/memory/host_memory.h"
#include "tests/cuda_emulation/runtime/api.h"
#include "tests/cuda_emulation/streams/runtime.h"

// The default pool of a device.
struct CUmemPoolHandle_st {};

namespace ringfill::cuda_emulation {
namespace {

cudaMemPool_t Pools() {
  static CUmemPoolHandle_st pools[kMaxDevices];
  return pools;
}

// Rows of bytes; a plain copy is one row.
struct Copy {
  void* to;
  size_t to_pitch;
  const void* from;
  size_t from_pitch;
  size_t width;
  size_t height;

  size_t to_bytes() const { return height == 0 ? 0 : (height - 1) * to_pitch + width; }
  size_t from_bytes() const { return height == 0 ? 0 : (height - 1) * from_pitch + width; }
};

// Empty when all bytes are host memory or lie in one live allocation.
std::string Problem(const char* verb, const void* p, size_t bytes) {
  const DeviceMemory& memory = DeviceMemory::Get();
  const int device = memory.DeviceOf(p);
  if (device < 0 || memory.Holds(device, p, bytes)) return "";
  return std::string("a copy or fill ") + verb + " " + std::to_string(bytes) + " bytes " +
         memory.Problem(device, p, bytes);
}

std::string Problem(const Copy& copy) {
  const std::string to = Problem("writes", copy.to, copy.to_bytes());
  return to.empty() ? Problem("reads", copy.from, copy.from_bytes()) : to;
}

cudaError_t CheckDirection(const Copy& copy, cudaMemcpyKind kind) {
  const bool to_device = DeviceMemory::Get().DeviceOf(copy.to) >= 0;
  const bool from_device = DeviceMemory::Get().DeviceOf(copy.from) >= 0;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return to_device || from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyHostToDevice:
      return !to_device || from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyDeviceToHost:
      return to_device || !from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyDeviceToDevice:
      return !to_device || !from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyDefault:
      return cudaSuccess;
  }
  return cudaErrorInvalidMemcpyDirection;
}

std::vector<int> DevicesOf(std::initializer_list<const void*> pointers) {
  std::vector<int> devices;
  for (const void* p : pointers) {
    const int device = DeviceMemory::Get().DeviceOf(p);
    if (device >= 0) devices.push_back(device);
  }
  return devices;
}

// Host memory, pageable too, is read or written when the copy runs: code that reuses a buffer early
// is right only by the grace of staging, so it is not given here.
cudaError_t QueueCopy(const Copy& copy, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = CheckDevice()) return error;
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (copy.width > copy.to_pitch || copy.width > copy.from_pitch) return cudaErrorInvalidPitchValue;
  if (const cudaError_t error = CheckDirection(copy, kind)) return error;
  const std::string problem = Problem(copy);
  if (!problem.empty()) {
    Runtime::Get().Report(problem);
    return cudaErrorInvalidValue;
  }
  const auto run = [copy]() -> Outcome {
    Runtime::Get().Count(&Counters::copies);
    std::string late_problem = Problem(copy);
    if (!late_problem.empty()) return {cudaErrorIllegalAddress, late_problem};
    for (size_t row = 0; row < copy.height; ++row) {
      std::memmove(static_cast<std::byte*>(copy.to) + row * copy.to_pitch,
                   static_cast<const std::byte*>(copy.from) + row * copy.from_pitch, copy.width);
    }
    return {};
  };
  return Runtime::Get().Enqueue(stream,
                                MakeFunctionTask("a copy", run, DevicesOf({copy.to, copy.from})));
}

cudaError_t CopyNow(const Copy& copy, cudaMemcpyKind kind) {
  if (const cudaError_t error = Runtime::Get().CheckNotCapturing()) return error;
  if (const cudaError_t error = QueueCopy(copy, kind, nullptr)) return error;
  return Runtime::Get().SynchronizeStream(nullptr);
}

Copy PlainCopy(void* to, const void* from, size_t bytes) {
  return {to, bytes, from, bytes, bytes, 1};
}

// `allocate`: of so many bytes, null when there are not.
cudaError_t Allocate(void** p, size_t bytes, const std::function<void*()>& allocate) {
  if (p == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = CheckDevice()) return error;
  *p = bytes == 0 ? nullptr : allocate();
  return bytes > 0 && *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

std::array<std::atomic<bool>, kMaxDevices> hung_allocations{};

}  // namespace

void HangAllocations(int device) { hung_allocations.at(static_cast<size_t>(device)) = true; }
void ReleaseAllocations(int device) { hung_allocations.at(static_cast<size_t>(device)) = false; }

}  // namespace ringfill::cuda_emulation

using namespace ringfill::cuda_emulation;  // NOLINT: the functions below belong to CUDA

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
  while (hung_allocations.at(static_cast<size_t>(CurrentDevice()))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (const cudaError_t error = Runtime::Get().CheckNotCapturing()) return Return(error);
  return Return(
      Allocate(p, bytes, [bytes] { return DeviceMemory::Get().Allocate(CurrentDevice(), bytes); }));
}

// Waits for the device first, as the real one does.
cudaError_t cudaFree(void* p) {
  if (const cudaError_t error = Runtime::Get().CheckNotCapturing()) return Return(error);
  if (p == nullptr) return Return(cudaSuccess);
  const int device = DeviceMemory::Get().DeviceOf(p);
  if (device < 0 || device >= Runtime::Get().device_count()) return Return(cudaErrorInvalidValue);
  const cudaError_t error = Runtime::Get().SynchronizeDevice(device);
  if (!DeviceMemory::Get().Free(p)) return Return(cudaErrorInvalidValue);
  return Return(error);
}

// Waits for nothing, and takes nothing that frees have left in too small pieces.
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream) {
  if (Runtime::Get().CaptureStatus(stream) != cudaStreamCaptureStatusNone) {
    return Return(cudaErrorNotSupported);
  }
  return Return(Allocate(p, bytes, [bytes, stream] {
    return DeviceMemory::Get().AllocatePooled(CurrentDevice(), bytes, stream);
  }));
}

cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  if (p == nullptr) return Return(cudaErrorInvalidValue);
  DeviceMemory::Get().QueueFree(p, stream);
  return Return(Runtime::Get().Enqueue(
      stream, MakeFunctionTask("a free", [p]() -> Outcome {
        if (DeviceMemory::Get().Free(p)) return {};
        return {cudaErrorInvalidValue, "a free of what is no live allocation"};
      })));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (pool == nullptr) return Return(cudaErrorInvalidValue);
  if (device < 0 || device >= Runtime::Get().device_count()) return Return(cudaErrorInvalidDevice);
  *pool = Pools() + device;
  return Return(cudaSuccess);
}

// Keeps nothing, whatever it is told to keep.
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
  if (pool < Pools() || pool >= Pools() + Runtime::Get().device_count()) {
    return Return(cudaErrorInvalidValue);
  }
  DeviceMemory::Get().Trim(static_cast<int>(pool - Pools()));
  return Return(cudaSuccess);
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list, size_t count) {
  const int devices = Runtime::Get().device_count();
  if (pool < Pools() || pool >= Pools() + devices || (list == nullptr && count > 0)) {
    return Return(cudaErrorInvalidValue);
  }
  const auto owner = static_cast<int>(pool - Pools());
  if (const cudaError_t error = Runtime::Get().DeviceError(owner)) return Return(error);
  for (size_t i = 0; i < count; ++i) {
    const cudaMemLocation& peer = list[i].location;
    // Read access alone is not offered here, nor can a device lose that to its own pool.
    if (peer.type != cudaMemLocationTypeDevice || peer.id < 0 || peer.id >= devices ||
        list[i].flags == cudaMemAccessFlagsProtRead ||
        (peer.id == owner && list[i].flags == cudaMemAccessFlagsProtNone)) {
      return Return(cudaErrorInvalidValue);
    }
    if (peer.id != owner && !Runtime::Get().options().peers) {
      return Return(cudaErrorPeerAccessUnsupported);
    }
    DeviceMemory::Get().SetPoolAccess(owner, peer.id,
                                      list[i].flags == cudaMemAccessFlagsProtReadWrite);
  }
  return Return(cudaSuccess);
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
  return cudaHostAlloc(p, bytes, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned int flags) {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  if (const cudaError_t error = Runtime::Get().CheckNotCapturing()) return Return(error);
  if (p == nullptr || flags > cudaHostAllocPortable) return Return(cudaErrorInvalidValue);
  Runtime::Get().Count(&Counters::pinned);
  *p = bytes == 0 ? nullptr : AllocatePinned(bytes);
  return Return(cudaSuccess);
}

// Waits for all work, which may use the buffer.
cudaError_t cudaFreeHost(void* p) {
  if (const cudaError_t error = Runtime::Get().CheckNotCapturing()) return Return(error);
  if (p == nullptr) return Return(cudaSuccess);
  Runtime& runtime = Runtime::Get();
  for (int i = 0; i < runtime.device_count(); ++i) {
    // What a failed device had queued was dropped.
    (void)runtime.SynchronizeDevice(i);
  }
  runtime.Count(&Counters::unpinned);
  return Return(FreePinned(p) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned int flags) {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  if (p == nullptr || bytes == 0 || flags > cudaHostRegisterPortable) {
    return Return(cudaErrorInvalidValue);
  }
  return Return(Register(p, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* p) {
  return Return(Unregister(p) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  *total = DeviceMemory::Get().total();
  *free = DeviceMemory::Get().left(CurrentDevice());
  return Return(cudaSuccess);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return Return(CopyNow(PlainCopy(to, from, bytes), kind));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Return(QueueCopy(PlainCopy(to, from, bytes), kind, stream));
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  return Return(CopyNow({to, to_pitch, from, from_pitch, width, height}, kind));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return Return(QueueCopy({to, to_pitch, from, from_pitch, width, height}, kind, stream));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  const DeviceMemory& memory = DeviceMemory::Get();
  if (memory.DeviceOf(to) != to_device || memory.DeviceOf(from) != from_device) {
    return Return(cudaErrorInvalidValue);
  }
  return Return(QueueCopy(PlainCopy(to, from, bytes), cudaMemcpyDefault, stream));
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  if (const cudaError_t error = Runtime::Get().CheckNotCapturing()) return Return(error);
  return cudaMemsetAsync(p, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  if (bytes == 0) return Return(cudaSuccess);
  if (DeviceMemory::Get().DeviceOf(p) < 0) return Return(cudaErrorInvalidValue);
  const std::string problem = Problem("writes", p, bytes);
  if (!problem.empty()) {
    Runtime::Get().Report(problem);
    return Return(cudaErrorInvalidValue);
  }
  const auto run = [=]() -> Outcome {
    std::string late_problem = Problem("writes", p, bytes);
    if (!late_problem.empty()) return {cudaErrorIllegalAddress, late_problem};
    std::memset(p, value, bytes);
    return {};
  };
  return Return(Runtime::Get().Enqueue(stream, MakeFunctionTask("a fill", run, DevicesOf({p}))));
}

}  // extern "C"
