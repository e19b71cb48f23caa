#include <algorithm>

#include "engine/compute/cuda/cuda_api.h"
#include "tests/engine/cuda/gpu_ring.h"

namespace ringfill {

std::vector<int> GpuCounts() {
  const auto gpus = ListGpus();
  std::vector<int> counts;
  for (int n = 1; gpus.ok() && n <= std::min<int>(4, static_cast<int>(gpus->size())); ++n) {
    counts.push_back(n);
  }
  return counts;
}

void ResetGpus(int, uint64_t) {}

void OfferFusedAttention(bool) {}

int64_t FusedPairs() { return -1; }

}  // namespace ringfill
