// How a GPU's memory is dealt out: weights, scratch, what libraries take, KV pages. Plain
// arithmetic, no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "engine/model/model.h"

namespace ringfill {

struct CudaWeightsPlan {
  int expanded_layers = 0;      // with the two places; at least two, or all layers
  bool expanded_output = true;  // the output head, else a block at a time
};

// Bytes of weights on the device, as stored and in bf16.
struct CudaWeightBytes {
  size_t stored_layer = 0;  // of the largest
  size_t expanded_layer = 0;
  size_t embedding = 0;      // as stored
  size_t stored_output = 0;  // 0 when the embedding serves
  size_t expanded_output = 0;
  size_t norms = 0;

  static CudaWeightBytes Of(const Model& model);
  size_t Total(int layers, const CudaWeightsPlan& plan) const;
};

struct CudaMemoryOptions {
  std::string device;     // for messages
  size_t free_bytes = 0;  // of the GPU, before anything of the rank is there
  int ranks = 1;
  int page_tokens = 64;
  int64_t kv_memory_bytes = 0;  // over all ranks; 0: by kv_memory_fraction
  double kv_memory_fraction = 0.9;
  int64_t expanded_weight_bytes = 0;  // 0: as many layers as leave room
  int64_t chunk_tokens = 2048;        // prompt tokens of a step, over all ranks
  size_t gather_bytes = 0;            // what gather-KV may hold
  int64_t max_context_tokens = 0;     // that has to fit; 0: whatever fits
};

struct CudaMemoryPlan {
  CudaWeightsPlan weights;
  size_t weight_bytes = 0;
  // Scratch of the device, and the buffers that a step of chunk_tokens takes.
  size_t workspace_bytes = 0;
  size_t library_bytes = 0;  // left to CUDA's libraries
  int64_t pages = 0;         // of KV
};

// RESOURCE_EXHAUSTED with the numbers and the largest context that fits, when the model, or
// max_context_tokens of KV over all ranks, do not.
absl::StatusOr<CudaMemoryPlan> PlanCudaMemory(const Model& model, const CudaMemoryOptions& options);

}  // namespace ringfill
