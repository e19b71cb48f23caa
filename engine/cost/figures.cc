#include "engine/cost/figures.h"

#include <algorithm>

namespace ringfill {

ModelShape ModelShape::Of(const Model& model, int64_t kv_element_bytes, int64_t page_tokens) {
  const ModelConfig& config = model.config();
  ModelShape shape;
  shape.layers = config.layers;
  shape.width = config.width;
  shape.ffn_width = config.ffn_width;
  shape.heads = config.heads;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.vocab = config.vocab;
  double bytes = 0;
  for (const LayerWeights& w : model.layers()) {
    for (const WeightMatrix* m : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down}) {
      bytes += static_cast<double>(m->rows) * static_cast<double>(WeightRowBytes(m->type, m->cols));
    }
  }
  shape.stored_weight_bytes = bytes / static_cast<double>(shape.layers) /
                              static_cast<double>(shape.project_weights() + shape.finish_weights());
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

Figures Figures::OfNodes(int ranks, int ranks_per_node, const DeviceFigures& device,
                         const LinkFigures& link, const LinkFigures& uplink) {
  Figures figures = Uniform(ranks, device, link);
  for (int distance = 1; distance < ranks; ++distance) {
    std::vector<int> leaving(static_cast<size_t>(ranks), 0);  // by node
    auto crosses = [&](int from) {
      return from / ranks_per_node != (from + distance) % ranks / ranks_per_node;
    };
    for (int from = 0; from < ranks; ++from) {
      if (crosses(from)) ++leaving[static_cast<size_t>(from / ranks_per_node)];
    }
    for (int from = 0; from < ranks; ++from) {
      if (!crosses(from)) continue;
      const int sharing = leaving[static_cast<size_t>(from / ranks_per_node)];
      figures.Link(from, (from + distance) % ranks) = {uplink.latency_s,
                                                       uplink.bytes_per_s / sharing};
    }
  }
  figures.gather = {link.latency_s + uplink.latency_s,
                    std::min(link.bytes_per_s, uplink.bytes_per_s)};
  return figures;
}

}  // namespace ringfill
