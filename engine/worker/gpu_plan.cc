#include "engine/worker/gpu_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/compute/cuda/memory_plan.h"

namespace ringfill {

absl::StatusOr<GpuPages> PlanGpuPages(const Model& model, const std::vector<RankGpu>& ranks,
                                      const GpuPlanOptions& o) {
  GpuPages pages{std::numeric_limits<int64_t>::max(), ""};
  for (const RankGpu& rank : ranks) {
    RF_ASSIGN_OR_RETURN(const CudaMemoryPlan plan,
                        PlanCudaMemory(model, {.device = rank.name,
                                               .free_bytes = static_cast<size_t>(rank.free_bytes),
                                               .ranks = static_cast<int>(ranks.size()),
                                               .page_tokens = o.page_tokens,
                                               .kv_memory_bytes = o.kv_memory_bytes,
                                               .kv_memory_fraction = o.kv_memory_fraction,
                                               .expanded_weight_bytes = o.expanded_weight_bytes,
                                               .chunk_tokens = o.chunk_tokens,
                                               .gather_bytes = o.gather_bytes,
                                               .max_context_tokens = o.max_context_tokens}));
    pages.per_rank = std::min(pages.per_rank, plan.pages);
    absl::StrAppend(&pages.gpus, pages.gpus.empty() ? "" : ", ", rank.name);
  }
  return pages;
}

}  // namespace ringfill
