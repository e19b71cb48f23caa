#include "engine/compute/cuda/cuda_api.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ringfill {
namespace {

std::string_view HintOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "; lower kv.memory_fraction, kv.memory_bytes or prefill.chunk_tokens";
    case cudaErrorInsufficientDriver:
      return "; there is no NVIDIA driver, or it is older than this build's CUDA: install a newer "
             "one or set ranks.backend: cpu";
    case cudaErrorNoDevice:
      return "; there is no GPU that this process may use (is CUDA_VISIBLE_DEVICES empty?): set "
             "ranks.backend: cpu";
    case cudaErrorNoKernelImageForDevice:
      return "; this build has no code for the GPU: build it for the GPU's compute capability";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
      return "; the device fails every call from now on: restart the daemon";
    default:
      return "";
  }
}

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInitializationError:
    case cudaErrorNoKernelImageForDevice:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::StatusOr<CudaGpu> ReadGpu(int index) {
  CudaGpu gpu;
  gpu.index = index;
  cudaDeviceProp properties{};
  RF_RETURN_IF_CUDA_ERROR(index, cudaGetDeviceProperties(&properties, index));
  gpu.name = properties.name;
  gpu.bus = absl::StrCat(absl::Hex(properties.pciDomainID, absl::kZeroPad4), ":",
                         absl::Hex(properties.pciBusID, absl::kZeroPad2), ":",
                         absl::Hex(properties.pciDeviceID, absl::kZeroPad2));
  gpu.major = properties.major;
  gpu.minor = properties.minor;
  gpu.processors = properties.multiProcessorCount;
  return gpu;
}

absl::StatusOr<int> CountGpus() {
  int count = 0;
  RF_RETURN_IF_CUDA_ERROR(-1, cudaGetDeviceCount(&count));
  if (count == 0) return CudaStatus(cudaErrorNoDevice, "cudaGetDeviceCount", -1);
  return count;
}

absl::Status CheckAge(const CudaGpu& gpu) {
  if (gpu.major >= kLeastMajor) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Describe(gpu), " is too old: compute capability ", kLeastMajor,
                   ".0 (Ampere) or newer is needed; leave it out of ranks.devices or set "
                   "ranks.backend: cpu"));
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, std::string_view call, int device) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  const std::string name(call.substr(0, call.find('(')));
  const std::string where = device < 0 ? "" : absl::StrCat(" on device ", device);
  return absl::Status(CodeOf(error),
                      absl::StrCat(name, where, ": ", cudaGetErrorString(error), " (",
                                   cudaGetErrorName(error), ")", std::string(HintOf(error))));
}

std::string Describe(const CudaGpu& gpu) {
  return absl::StrCat("device ", gpu.index, " (", gpu.name, ", sm_", gpu.major, gpu.minor, ")");
}

absl::StatusOr<std::vector<CudaGpu>> ListGpus() {
  RF_ASSIGN_OR_RETURN(const int count, CountGpus());
  std::vector<CudaGpu> gpus;
  for (int i = 0; i < count; ++i) {
    RF_ASSIGN_OR_RETURN(CudaGpu gpu, ReadGpu(i));
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

absl::Status LookAtMemory(CudaGpu& gpu) {
  RF_RETURN_IF_CUDA_ERROR(gpu.index, cudaSetDevice(gpu.index));
  RF_RETURN_IF_CUDA_ERROR(gpu.index, cudaMemGetInfo(&gpu.free_bytes, &gpu.total_bytes));
  return absl::OkStatus();
}

absl::StatusOr<CudaGpu> FindGpu(int index) {
  RF_ASSIGN_OR_RETURN(const int count, CountGpus());
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no GPU ", index, " here: this machine has 0 to ", count - 1));
  }
  RF_ASSIGN_OR_RETURN(CudaGpu gpu, ReadGpu(index));
  RF_RETURN_IF_ERROR(CheckAge(gpu));
  RF_RETURN_IF_ERROR(LookAtMemory(gpu));
  return gpu;
}

absl::StatusOr<std::vector<CudaGpu>> PickGpus(const std::vector<CudaGpu>& all,
                                              const std::vector<int>& wanted, int count) {
  if (!wanted.empty() && wanted.size() != static_cast<size_t>(count)) {
    return absl::InvalidArgumentError(absl::StrCat("ranks.devices lists ", wanted.size(),
                                                   " GPUs for ", count,
                                                   " ranks (ranks.count): list one a rank"));
  }
  if (wanted.empty() && static_cast<size_t>(count) > all.size()) {
    return absl::InvalidArgumentError(absl::StrCat("ranks.count is ", count, " and there are ",
                                                   all.size(), " GPUs: lower it to ", all.size(),
                                                   " or set ranks.backend: cpu"));
  }
  std::vector<CudaGpu> picked;
  for (int r = 0; r < count; ++r) {
    const int index = wanted.empty() ? r : wanted[static_cast<size_t>(r)];
    if (index < 0 || static_cast<size_t>(index) >= all.size()) {
      return absl::InvalidArgumentError(absl::StrCat("ranks.devices names GPU ", index,
                                                     "; this machine has 0 to ", all.size() - 1));
    }
    if (std::count(wanted.begin(), wanted.end(), index) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranks.devices names GPU ", index, " twice: each rank needs its own"));
    }
    const CudaGpu& gpu = all[static_cast<size_t>(index)];
    RF_RETURN_IF_ERROR(CheckAge(gpu));
    picked.push_back(gpu);
  }
  return picked;
}

absl::Status OpenMemoryToPeers(const std::vector<int>& devices) {
  for (const int owner : devices) {
    std::vector<cudaMemAccessDesc> peers;
    for (const int peer : devices) {
      int reaches = 0;
      if (peer == owner) continue;
      RF_RETURN_IF_CUDA_ERROR(peer, cudaDeviceCanAccessPeer(&reaches, peer, owner));
      if (reaches == 0) continue;
      cudaMemAccessDesc& access = peers.emplace_back();
      access.location.type = cudaMemLocationTypeDevice;
      access.location.id = peer;
      access.flags = cudaMemAccessFlagsProtReadWrite;
    }
    if (peers.empty()) continue;
    cudaMemPool_t pool;
    RF_RETURN_IF_CUDA_ERROR(owner, cudaDeviceGetDefaultMemPool(&pool, owner));
    RF_RETURN_IF_CUDA_ERROR(owner, cudaMemPoolSetAccess(pool, peers.data(), peers.size()));
  }
  return absl::OkStatus();
}

}  // namespace ringfill
