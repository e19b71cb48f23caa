// What the operations of one CUDA device work on: its weights, pages, products and scratch.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "engine/compute/batch.h"
#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/cuda_memory.h"
#include "engine/compute/cuda/cuda_stream.h"
#include "engine/compute/cuda/cuda_weights.h"
#include "engine/compute/cuda/fused_prefill.h"
#include "engine/compute/cuda/kernels/softmax.h"
#include "engine/compute/cuda/kernels/types.h"
#include "engine/compute/cuda/products.h"
#include "engine/compute/cuda/workspace.h"
#include "engine/compute/seen_counters.h"
#include "engine/model/model.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

struct CudaRankOptions {
  CudaGpu gpu;
  int64_t pages = 0;
  int page_tokens = 64;
  CudaWeightsPlan weights;
  // Asked while weights are taken to the GPU: true when nobody needs the rank any more.
  std::function<bool()> stopped = {};
  // Empty: plain ones.
  std::function<absl::StatusOr<std::unique_ptr<Products>>(CudaMemory& memory)> make_products = {};
};

// Of what a rank tries out when it starts: seconds of work at most, so that beyond it the GPU
// hangs.
inline constexpr Duration kTrialLimit = std::chrono::minutes(1);

// Work on the stream runs one at a time, so that scratch serves each operation in turn. Members are
// used by queued work alone.
struct CudaRank {
  // Takes the memory and uploads the weights. `model` and `stream` outlive the rank.
  static absl::StatusOr<std::unique_ptr<CudaRank>> Make(const Model& model,
                                                        const CudaRankOptions& options,
                                                        CudaStream& stream);

  // A batch's lists on the device, sent when they are not those of the batch before.
  struct Rows {
    const int32_t* token;
    const int64_t* position;
    const int32_t* chunk;
    const gpu::KvTarget* targets;
  };
  absl::StatusOr<Rows> UseBatch(const std::shared_ptr<const RowBatch>& batch);

  absl::Status Check(int error, std::string_view kernel) const {
    return LaunchStatus(error, kernel, gpu.index);
  }
  absl::Status Multiply(const Product& product) { return products->Run(product, stream.get()); }
  // `bytes` from the device to `out`, which has them when an event behind is done.
  absl::Status CopyOut(const std::byte* from, size_t bytes, void* out);
  // The same to `use`.
  absl::Status CopyOut(const std::byte* from, size_t bytes,
                       std::function<absl::Status(const std::byte*)> use);
  // `report` zeroed, for a kernel that fills it.
  absl::StatusOr<std::byte*> ZeroReport(size_t bytes);

  // REQUIRES: no work is queued.
  void DropScratch() {
    batch_ = nullptr;
    memory.DropScratch();
  }

  int group() const { return config.heads / config.kv_heads; }
  int64_t qkv_width() const { return config.q_width() + 2 * config.kv_width(); }
  gpu::KvPages Pages(int layer) const;
  gpu::SoftmaxArrays States(const std::byte* state, int64_t tokens) const;

  const Model& model;
  const ModelConfig& config;
  const CudaGpu gpu;
  const KvGeometry geometry;
  const int64_t pages;
  CudaStream& stream;
  CudaMemory memory;
  std::unique_ptr<Products> products;
  std::unique_ptr<FusedPrefill> fused;  // null: prefill attention is the kernels' alone
  std::unique_ptr<CudaWeights> weights;
  DeviceBuffer slab;
  DeviceBuffer frequency;  // [rope_dims / 2] doubles

  CudaScratch upload;     // lists of the operation at hand
  CudaScratch report;     // what a kernel tells
  CudaScratch normed;     // [rows][width] bf16, rows up to kProductRows
  CudaScratch qkv;        // [rows][q | k | v] float
  CudaScratch gate_up;    // [rows][gate | up] bf16
  CudaScratch out;        // [rows][width] float
  CudaScratch attention;  // [all rows][q_width] bf16
  CudaScratch logits;     // up to kMostLogits, or a row
  CudaScratch head_rows;  // rows of the output head's input

  std::atomic<int64_t> product_rows{0};
  SeenCounters seen;

 private:
  CudaRank(const Model& model, const CudaRankOptions& options, CudaStream& stream);
  absl::Status Prepare(const CudaRankOptions& options);
  absl::Status TryFused();
  void ChooseAttention();

  CudaScratch batch_lists_;
  std::shared_ptr<const RowBatch> batch_;  // whose lists are on the device
  Rows rows_{};
};

}  // namespace ringfill
