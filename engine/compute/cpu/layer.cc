#include "engine/compute/cpu/layer.h"

namespace ringfill {
namespace {

AlignedBuffer Rows(int64_t width, size_t element_bytes) {
  return AlignedBuffer(static_cast<size_t>(kMaxProductRows * width) * element_bytes);
}

}  // namespace

TileScratch::TileScratch(const ModelConfig& config, DType dtype)
    : normed_(Rows(config.width, DTypeBytes(dtype))),
      q_(Rows(config.q_width(), sizeof(float))),
      k_(Rows(config.kv_width(), sizeof(float))),
      v_(Rows(config.kv_width(), sizeof(float))),
      attention_(Rows(config.q_width(), DTypeBytes(dtype))),
      gate_(Rows(config.ffn_width, DTypeBytes(dtype))),
      up_(Rows(config.ffn_width, DTypeBytes(dtype))),
      out_(Rows(config.width, sizeof(float))) {}

size_t TileScratch::bytes() const {
  size_t bytes = 0;
  for (const AlignedBuffer* buffer : {&normed_, &q_, &k_, &v_, &attention_, &gate_, &up_, &out_}) {
    bytes += buffer->size();
  }
  return bytes;
}

LayerForward::LayerForward(const Model& model, const ExpandedWeights& weights, DType dtype)
    : model_(model),
      config_(model.config()),
      weights_(weights),
      dtype_(dtype),
      rope_(model.config().rope) {}

void LayerForward::Multiply(int layer, LayerMatrix m, const void* x, int64_t rows, DType y_type,
                            void* y, MatrixProducts& products) const {
  products.Run(weights_.format(m), weights_.packed(layer, m), x, rows, y_type, y);
}

void LayerForward::ProjectQkv(int layer, const float* x, const float* cos_sin, int64_t rows,
                              MatrixProducts& products, TileScratch& s) const {
  const LayerWeights& w = model_.layers()[static_cast<size_t>(layer)];
  RmsNorm(x, w.attention_norm.data(), config_.norm_epsilon, rows, config_.width, dtype_,
          s.normed_.data());
  Multiply(layer, LayerMatrix::kQ, s.normed_.data(), rows, DType::kF32, s.q(), products);
  Multiply(layer, LayerMatrix::kK, s.normed_.data(), rows, DType::kF32, s.k(), products);
  Multiply(layer, LayerMatrix::kV, s.normed_.data(), rows, DType::kF32, s.v(), products);
  for (int64_t r = 0; r < rows; ++r) {
    const float* angles = cos_sin + r * rope_.rope_dims();
    rope_.Apply(angles, config_.heads, s.q() + r * config_.q_width());
    rope_.Apply(angles, config_.kv_heads, s.k() + r * config_.kv_width());
  }
}

void LayerForward::FinishLayer(int layer, float* x, int64_t rows, MatrixProducts& products,
                               TileScratch& s) const {
  const LayerWeights& w = model_.layers()[static_cast<size_t>(layer)];
  Multiply(layer, LayerMatrix::kO, s.attention(), rows, DType::kF32, s.out_.data(), products);
  AddInPlace(x, s.out_.as<float>(), rows * config_.width);
  RmsNorm(x, w.ffn_norm.data(), config_.norm_epsilon, rows, config_.width, dtype_,
          s.normed_.data());
  Multiply(layer, LayerMatrix::kGate, s.normed_.data(), rows, dtype_, s.gate_.data(), products);
  Multiply(layer, LayerMatrix::kUp, s.normed_.data(), rows, dtype_, s.up_.data(), products);
  SiluMul(dtype_, s.gate_.data(), s.up_.data(), rows * config_.ffn_width, s.gate_.data());
  Multiply(layer, LayerMatrix::kDown, s.gate_.data(), rows, DType::kF32, s.out_.data(), products);
  AddInPlace(x, s.out_.as<float>(), rows * config_.width);
}

}  // namespace ringfill
