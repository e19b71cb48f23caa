// One transformer layer in two halves around attention, for a tile of rows:
//
//   ProjectQkv    x -> RMSNorm -> q, k, v -> RoPE on q and k
//   FinishLayer   attention output -> o, x += ; RMSNorm -> gate, up -> SiLU(gate)*up -> down, x +=
//
// Source: Touvron et al., "LLaMA" (2023).
#pragma once

#include <cstdint>

#include "base/aligned_buffer.h"
#include "engine/compute/cpu/expanded_weights.h"
#include "engine/compute/dtype.h"
#include "engine/compute/products/elementwise.h"
#include "engine/compute/products/matrix_product.h"
#include "engine/model/model.h"

namespace ringfill {

// All scratch of one thread for tiles of up to kMaxProductRows rows; sized once.
class TileScratch {
 public:
  TileScratch(const ModelConfig& config, DType dtype);

  size_t bytes() const;
  float* q() const { return q_.as<float>(); }  // [rows, q_width]
  float* k() const { return k_.as<float>(); }  // [rows, kv_width]
  float* v() const { return v_.as<float>(); }  // [rows, kv_width]
  // Where the caller puts the attention output, in the compute type.  [rows, q_width]
  std::byte* attention() const { return attention_.data(); }

 private:
  friend class LayerForward;
  AlignedBuffer normed_;     // [rows, width] compute type
  AlignedBuffer q_, k_, v_;  // float
  AlignedBuffer attention_;  // [rows, q_width] compute type
  AlignedBuffer gate_, up_;  // [rows, ffn_width] compute type; gate_ also holds silu(gate)*up
  AlignedBuffer out_;        // [rows, width] float
};

// Immutable; shared by all threads.
class LayerForward {
 public:
  LayerForward(const Model& model, const ExpandedWeights& weights, DType dtype);

  // x: [rows, width] floats; cos_sin: [rows, rope_dims]. Leaves q, k, v in `scratch`.
  void ProjectQkv(int layer, const float* x, const float* cos_sin, int64_t rows,
                  MatrixProducts& products, TileScratch& scratch) const;
  // Reads scratch.attention(); updates x in place.
  void FinishLayer(int layer, float* x, int64_t rows, MatrixProducts& products,
                   TileScratch& scratch) const;

  const Rope& rope() const { return rope_; }

 private:
  void Multiply(int layer, LayerMatrix m, const void* x, int64_t rows, DType y_type, void* y,
                MatrixProducts& products) const;

  const Model& model_;
  const ModelConfig& config_;
  const ExpandedWeights& weights_;
  DType dtype_;
  Rope rope_;
};

}  // namespace ringfill
