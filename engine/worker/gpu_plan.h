// How many KV pages the ranks of a ring get that have a GPU and a process each: known when all
// workers have said what they have. Plain arithmetic, no CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/model/model.h"
#include "engine/worker/workers.h"

namespace ringfill {

struct GpuPlanOptions {
  int page_tokens = 64;
  int64_t kv_memory_bytes = 0;  // over all ranks; 0: by kv_memory_fraction
  double kv_memory_fraction = 0.9;
  int64_t expanded_weight_bytes = 0;  // 0: as much as leaves room for KV
  int64_t chunk_tokens = 2048;
  size_t gather_bytes = 0;
  int64_t max_context_tokens = 0;  // that has to fit; 0: whatever fits
};

struct RankGpu {
  std::string name;  // of rank and GPU, for messages
  int64_t free_bytes = 0;
};

// As many on each rank as the one with least room takes. RESOURCE_EXHAUSTED with rank, GPU and the
// numbers when the model, or the context that has to fit, does not.
absl::StatusOr<GpuPages> PlanGpuPages(const Model& model, const std::vector<RankGpu>& ranks,
                                      const GpuPlanOptions& options);

}  // namespace ringfill
