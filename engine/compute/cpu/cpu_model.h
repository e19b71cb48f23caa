// What all CPU devices of a process share: the model, its expanded weights, the kernels for the
// machine, the geometry of KV pages. Thread workers and worker processes make it alike:
//
//   CpuModel shared(model, options, Clock::Real());
//   CpuDevice device(shared, {.pages = pages, .threads = threads});   // one a rank
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "engine/compute/attention/attention.h"
#include "engine/compute/cpu/expanded_weights.h"
#include "engine/compute/cpu/layer.h"
#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"
#include "engine/model/model.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

struct CpuModelOptions {
  DType dtype = DType::kF32;     // of products
  DType kv_dtype = DType::kF32;  // of queries and KV pages
  CpuIsa isa = DetectCpuIsa();   // of attention and vector products; tests force a lower one
  int page_tokens = 64;
  int64_t expanded_weight_bytes = 0;  // budget of expanded layers; at least two are kept
  int ranks = 1;                      // devices of this process that run passes together
  // Products run in tiles of one size, so that a row's bits do not depend on how many came with
  // it.
  bool strict = false;
};

// Immutable but for the state of the expanded weights; thread-safe. Outlives its devices.
class CpuModel {
 public:
  CpuModel(std::shared_ptr<const Model> model, const CpuModelOptions& options, const Clock& clock);

  // A new epoch, in which `ranks` devices of this process run passes together: ends what Abort
  // began. REQUIRES: no device runs an operation.
  void StartEpoch(int ranks) { weights_.Reset(ranks); }
  // Makes every wait of a device for another fail until StartEpoch. REQUIRES: !status.ok().
  void Abort(const absl::Status& status) { weights_.Abort(status); }

  const Model& model() const { return *model_; }
  const ModelConfig& config() const { return model_->config(); }
  const Clock& clock() const { return clock_; }
  ExpandedWeights& weights() { return weights_; }
  const LayerForward& forward() const { return forward_; }
  const AttentionKernel& attention() const { return *attention_; }
  const KvBlockShape& kv_shape() const { return kv_shape_; }
  const KvGeometry& geometry() const { return geometry_; }
  DType dtype() const { return options_.dtype; }
  CpuIsa isa() const { return options_.isa; }
  bool strict() const { return options_.strict; }
  // The expanded layers are shared: an equal part of them.
  size_t weight_bytes_per_rank() const {
    return weights_.bytes() / static_cast<size_t>(options_.ranks);
  }
  int group() const { return config().heads / config().kv_heads; }

 private:
  const std::shared_ptr<const Model> model_;
  const CpuModelOptions options_;
  const Clock& clock_;
  const KvBlockShape kv_shape_;
  const KvGeometry geometry_;
  ExpandedWeights weights_;
  const LayerForward forward_;
  const std::unique_ptr<const AttentionKernel> attention_;
};

// The pages that `options` make of `config`.
KvBlockShape KvShapeOf(const ModelConfig& config, const CpuModelOptions& options);
KvGeometry KvGeometryOf(const ModelConfig& config, const CpuModelOptions& options);

}  // namespace ringfill
