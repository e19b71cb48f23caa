// The fused attention of one rank with the scratch that it works in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/compute/batch.h"
#include "engine/compute/cuda/cuda_memory.h"
#include "engine/compute/cuda/fused_attention.h"
#include "engine/compute/cuda/fused_work.h"
#include "engine/model/model.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

// Used by queued work of the rank's stream alone.
class FusedPrefill {
 public:
  struct Options {
    int device = 0;
    KvGeometry geometry;
    int64_t pages = 0;  // of the rank's pool
  };
  // Compiles what is needed and takes the scratch. An error says why the kernels have to do alone.
  static absl::StatusOr<std::unique_ptr<FusedPrefill>> Make(const ModelConfig& config,
                                                            const Options& options,
                                                            CudaMemory& memory);

  std::string name() const { return attention_->name(); }
  const FusedLimits& limits() const { return limits_; }
  // [runs] Whether entries may look at the run, whose rows see up to most_visible[run] keys.
  std::vector<bool> TakesRuns(const std::vector<KvRun>& runs,
                              const std::vector<int64_t>& most_visible,
                              const gpu::KvPages& kv) const;

  // Entries of whole calls as the device takes them, put among the lists of an operation.
  struct Lists {
    Upload::Place entries, rows, keys;
    int calls = 0;
  };
  // REQUIRES: entries is not empty.
  Lists Add(std::vector<gpu::FusedEntry> entries, Upload& lists) const;
  // Queues the calls and merges what they give into the rows' states.
  absl::Status Run(const gpu::AttentionArgs& attention, const Lists& at, const Upload& lists,
                   unsigned long long* nonfinite, cudaStream_t stream);

 private:
  FusedPrefill(const ModelConfig& config, const Options& options, CudaMemory& memory);
  absl::Status Prepare(const Options& options);

  FusedAttentionOptions options_;
  FusedLimits limits_;
  const int device_;
  std::unique_ptr<FusedAttention> attention_;
  CudaMemory& memory_;
  DeviceBuffer q_, out_, log_sum_exp_, tables_, workspace_;
};

}  // namespace ringfill
