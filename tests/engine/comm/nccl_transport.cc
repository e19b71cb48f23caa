#include "tests/engine/comm/nccl_transport.h"

#include <cuda_runtime.h>

#include <map>
#include <numeric>

#include "base/check.h"
#include "base/mutex.h"
#include "engine/comm/nccl/nccl_group.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/nccl/nccl_emulation.h"

namespace ringfill {
namespace {

// Device memory of GPU `rank`, stream-ordered as the ranks' is.
class GpuMemory final : public TransportMemory {
 public:
  std::byte* Allocate(int rank, size_t bytes) override {
    void* data = nullptr;
    RF_CHECK(cudaSetDevice(rank) == cudaSuccess);
    RF_CHECK(cudaMallocAsync(&data, bytes, nullptr) == cudaSuccess);
    return static_cast<std::byte*>(data);
  }
  // Fails on a device that was killed.
  void Free(std::byte* data) override { (void)cudaFree(data); }
  void Write(std::span<std::byte> to, const void* from) override {
    RF_CHECK(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  void Read(void* to, std::span<const std::byte> from) override {
    RF_CHECK(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  }
};

TransportMemory& Memory() {
  static GpuMemory memory;
  return memory;
}

std::vector<std::unique_ptr<Communicator>> Make(int ranks) {
  std::vector<int> devices(static_cast<size_t>(ranks));
  std::iota(devices.begin(), devices.end(), 0);
  return MakeNcclGroup(devices, {.deadline = Soon()}).value();
}

template <uint64_t seed>
void Prepare() {
  cuda_emulation::Options options;
  options.devices = 5;
  options.seed = seed;
  cuda_emulation::Reset(options);
  cuda_emulation::ResetNccl();
}

}  // namespace

std::vector<Transport> NcclTransports() {
  Transport transport{.name = "nccl_1",
                      .make = Make,
                      .memory = Memory,
                      .prepare = Prepare<1>,
                      .misuse = cuda_emulation::LastReport,
                      .large_bytes = (size_t{1} << 20) + 5,
                      .tells_sizes = false,
                      .separate_lanes = false,
                      .times_bytes_only = false};
  std::vector<Transport> all{transport};
  transport.name = "nccl_2";
  transport.prepare = Prepare<2>;
  all.push_back(transport);
  transport.name = "nccl_3";
  transport.prepare = Prepare<3>;
  all.push_back(transport);
  return all;
}

}  // namespace ringfill
