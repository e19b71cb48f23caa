// Ranks with a GPU each, in one process, that talk through NCCL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/model/model.h"
#include "engine/worker/rank_backend.h"

namespace ringfill {

struct CudaBackendOptions {
  int ranks = 1;
  std::vector<int> devices = {};  // [ranks], or empty: the first ones
  int page_tokens = 64;
  int64_t kv_memory_bytes = 0;  // over all ranks; 0: by kv_memory_fraction
  double kv_memory_fraction = 0.9;
  int64_t expanded_weight_bytes = 0;  // 0: as much as leaves room for KV
  int64_t chunk_tokens = 2048;
  size_t gather_bytes = 0;
  int64_t max_context_tokens = 0;  // that has to fit; 0: whatever fits
};

struct CudaBackend {
  std::unique_ptr<RankBackend> backend;
  int64_t pages_per_rank = 0;
  std::string description;  // of the GPUs, for logs
};

// UNIMPLEMENTED in a build without GPU support; FAILED_PRECONDITION without a driver or a GPU, or
// with one that is too old;
// INVALID_ARGUMENT naming ranks.devices, ranks.count or what of the model GPUs do not take;
// RESOURCE_EXHAUSTED with the numbers when the model does not fit. Nothing is taken yet.
absl::StatusOr<CudaBackend> MakeCudaBackend(std::shared_ptr<const Model> model,
                                            const CudaBackendOptions& options);

}  // namespace ringfill
