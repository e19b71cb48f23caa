// Devices and errors.
#include <cstdio>
#include <cstring>

#include "tests/cuda_emulation/execution/shared_memory.h"
#include "tests/cuda_emulation/runtime/api.h"
#include "tests/cuda_emulation/runtime/limits.h"
#include "tests/cuda_emulation/streams/runtime.h"

namespace ringfill::cuda_emulation {
namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

struct ErrorName {
  cudaError_t error;
  const char* name;
  const char* text;
};

#define RF_ERROR(name, text) \
  { name, #name, text }
constexpr ErrorName kErrors[] = {
    RF_ERROR(cudaSuccess, "no error"),
    RF_ERROR(cudaErrorInvalidValue, "invalid argument"),
    RF_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    RF_ERROR(cudaErrorInitializationError, "initialization error"),
    RF_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    RF_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    RF_ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    RF_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    RF_ERROR(cudaErrorInsufficientDriver,
             "CUDA driver version is insufficient for CUDA runtime version"),
    RF_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    RF_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    RF_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    RF_ERROR(cudaErrorNoKernelImageForDevice,
             "no kernel image is available for execution on the device"),
    RF_ERROR(cudaErrorPeerAccessUnsupported,
             "peer access is not supported between these two devices"),
    RF_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    RF_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    RF_ERROR(cudaErrorNotReady, "device not ready"),
    RF_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    RF_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    RF_ERROR(cudaErrorHostMemoryAlreadyRegistered,
             "part or all of the requested memory range is already mapped"),
    RF_ERROR(cudaErrorHostMemoryNotRegistered,
             "pointer does not correspond to a registered memory region"),
    RF_ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    RF_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    RF_ERROR(cudaErrorNotPermitted, "operation not permitted"),
    RF_ERROR(cudaErrorNotSupported, "operation not supported"),
    RF_ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    RF_ERROR(cudaErrorStreamCaptureInvalidated,
             "operation failed due to a previous error during capture"),
    RF_ERROR(cudaErrorStreamCaptureMerge,
             "operation would result in a merge of separate capture sequences"),
    RF_ERROR(cudaErrorStreamCaptureUnmatched,
             "capture was not ended in the same stream as it began"),
    RF_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    RF_ERROR(cudaErrorStreamCaptureIsolation,
             "dependency created on uncaptured work in another stream"),
    RF_ERROR(cudaErrorStreamCaptureImplicit,
             "operation would make the legacy stream depend on a capturing blocking stream"),
};
#undef RF_ERROR

bool ValidDevice(int device) { return device >= 0 && device < Runtime::Get().device_count(); }

}  // namespace

int CurrentDevice() { return current_device; }
void SetCurrentDevice(int device) { current_device = device; }

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t CheckDevice() {
  if (!ValidDevice(current_device)) return cudaErrorNoDevice;
  return Runtime::Get().DeviceError(current_device);
}

void Reset(const Options& options) {
  Runtime::Get().Reset(options);
  current_device = 0;
  last_error = cudaSuccess;
}
uint64_t Seed() { return Runtime::Get().options().seed; }
std::string LastReport() { return Runtime::Get().last_report(); }
void SetQuiet(bool quiet) { Runtime::Get().set_quiet(quiet); }
void KillDevice(int device, cudaError_t error) { Runtime::Get().FailDevice(device, error, ""); }
void KillDeviceAfter(int device, int operations, cudaError_t error) {
  Runtime::Get().FailDeviceAfter(device, operations, error);
}
void LimitMemory(int device, size_t free_bytes) { DeviceMemory::Get().Limit(device, free_bytes); }
Counters GetCounters() { return Runtime::Get().counters(); }

}  // namespace ringfill::cuda_emulation

using namespace ringfill::cuda_emulation;  // NOLINT: the functions below belong to CUDA

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = Runtime::Get().device_count() > 0 ? CUDART_VERSION : 0;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  for (const ErrorName& known : kErrors) {
    if (known.error == error) return known.name;
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  for (const ErrorName& known : kErrors) {
    if (known.error == error) return known.text;
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  // An error of the device itself is not forgotten.
  const cudaError_t sticky = CheckDevice();
  return sticky != cudaSuccess && sticky != cudaErrorNoDevice ? sticky : error;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t sticky = CheckDevice();
  return sticky != cudaSuccess && sticky != cudaErrorNoDevice ? sticky : last_error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Runtime::Get().device_count();
  return Return(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (!ValidDevice(device)) return Return(cudaErrorInvalidDevice);
  SetCurrentDevice(device);
  return Return(CheckDevice());
}

cudaError_t cudaGetDevice(int* device) {
  *device = CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  if (prop == nullptr) return Return(cudaErrorInvalidValue);
  if (!ValidDevice(device)) return Return(cudaErrorInvalidDevice);
  const Options& options = Runtime::Get().options();
  std::memset(prop, 0, sizeof(*prop));
  std::snprintf(prop->name, sizeof(prop->name), "Emulated GPU %d", device);
  prop->totalGlobalMem = options.device_bytes;
  prop->sharedMemPerBlock = kStaticSharedLimit;
  prop->sharedMemPerBlockOptin = kOptInSharedLimit;
  prop->sharedMemPerMultiprocessor = kMultiprocessorSharedBytes;
  prop->warpSize = 32;
  prop->maxThreadsPerBlock = kMaxThreads;
  prop->maxThreadsPerMultiProcessor = kMultiprocessorThreads;
  for (int i = 0; i < 3; ++i) {
    prop->maxThreadsDim[i] = static_cast<int>(kMaxBlockDim[i]);
    prop->maxGridSize[i] = static_cast<int>(kMaxGridDim[i]);
  }
  prop->major = options.major;
  prop->minor = options.minor;
  prop->multiProcessorCount = kMultiprocessors;
  prop->pciBusID = device + 1;
  prop->asyncEngineCount = 3;
  prop->unifiedAddressing = 1;
  prop->memoryBusWidth = 5120;
  prop->l2CacheSize = 50 << 20;
  return Return(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp prop;
  if (const cudaError_t error = cudaGetDeviceProperties(&prop, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = prop.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(prop.sharedMemPerBlock);
      break;
    case cudaDevAttrWarpSize:
      *value = prop.warpSize;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = prop.multiProcessorCount;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = prop.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = prop.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = prop.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(prop.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(prop.sharedMemPerBlockOptin);
      break;
    default:
      return Return(cudaErrorInvalidValue);
  }
  return Return(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  return Return(Runtime::Get().SynchronizeDevice(CurrentDevice()));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return Return(cudaSuccess);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!ValidDevice(device) || !ValidDevice(peer)) return Return(cudaErrorInvalidDevice);
  *can = device != peer && Runtime::Get().options().peers ? 1 : 0;
  return Return(cudaSuccess);
}

}  // extern "C"
