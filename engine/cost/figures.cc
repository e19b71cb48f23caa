#include "engine/cost/figures.h"

namespace ringfill {

ModelShape ModelShape::Of(const ModelConfig& config, double stored_weight_bytes,
                          int64_t kv_element_bytes, int64_t page_tokens) {
  ModelShape shape;
  shape.layers = config.layers;
  shape.width = config.width;
  shape.ffn_width = config.ffn_width;
  shape.heads = config.heads;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.vocab = config.vocab;
  shape.stored_weight_bytes = stored_weight_bytes;
  shape.kv_element_bytes = kv_element_bytes;
  shape.page_tokens = page_tokens;
  return shape;
}

Figures Figures::Uniform(int ranks, const DeviceFigures& device, const LinkFigures& link) {
  Figures figures;
  figures.devices.assign(static_cast<size_t>(ranks), device);
  figures.links.assign(static_cast<size_t>(ranks) * static_cast<size_t>(ranks), link);
  figures.gather = link;
  return figures;
}

}  // namespace ringfill
