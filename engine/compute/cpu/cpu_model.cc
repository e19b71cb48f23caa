#include "engine/compute/cpu/cpu_model.h"

#include <utility>

namespace ringfill {

KvBlockShape KvShapeOf(const ModelConfig& config, const CpuModelOptions& options) {
  return {options.kv_dtype, config.head_dim, options.page_tokens};
}

KvGeometry KvGeometryOf(const ModelConfig& config, const CpuModelOptions& options) {
  return {config.layers, config.kv_heads, options.page_tokens,
          KvShapeOf(config, options).BlockBytes()};
}

CpuModel::CpuModel(std::shared_ptr<const Model> model, const CpuModelOptions& options,
                   const Clock& clock)
    : model_(std::move(model)),
      options_(options),
      clock_(clock),
      kv_shape_(KvShapeOf(model_->config(), options)),
      geometry_(KvGeometryOf(model_->config(), options)),
      weights_(*model_, options.dtype, options.expanded_weight_bytes, options.ranks),
      forward_(*model_, weights_, options.dtype),
      attention_(MakeAttentionKernel(kv_shape_, options.isa)) {}

}  // namespace ringfill
