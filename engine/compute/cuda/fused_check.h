// A trial of a library's attention before a rank relies on it.
#pragma once

#include "base/status.h"
#include "engine/compute/cuda/cuda_rank.h"

namespace ringfill {

// Runs rank.fused on random rows and keys in the last layer of the pool's pages, its far end
// included, beside the kernels; those pages are poisoned then. INTERNAL when the two disagree by
// more than roundings. Called while nothing is stored; the host waits. REQUIRES: rank.fused.
absl::Status CheckFused(CudaRank& rank);

}  // namespace ringfill
