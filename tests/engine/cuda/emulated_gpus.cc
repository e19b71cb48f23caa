#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/nccl/nccl_emulation.h"
#include "tests/engine/compute/cuda/emulated_fused/fused_emulation.h"
#include "tests/engine/cuda/gpu_ring.h"

namespace ringfill {

std::vector<int> GpuCounts() { return {1, 2, 3, 4}; }

void ResetGpus(int devices, uint64_t seed) {
  cuda_emulation::Options options;
  options.devices = devices;
  options.seed = seed;
  cuda_emulation::Reset(options);
  cuda_emulation::ResetNccl();
}

void OfferFusedAttention(bool there) { cuda_emulation::SetFused({.there = there}); }

int64_t FusedPairs() { return cuda_emulation::GetFusedCounters().pairs; }

}  // namespace ringfill
