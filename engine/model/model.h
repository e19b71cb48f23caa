// A Llama-family model as stored: its geometry and views of its weights in the mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/compute/products/elementwise.h"
#include "engine/compute/products/weight_type.h"
#include "engine/model/gguf_file.h"

namespace ringfill {

struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;          // general.name, or the file's base name
  int layers = 0;
  int width = 0;  // d_model
  int ffn_width = 0;
  int heads = 0;
  int kv_heads = 0;  // divides heads
  int head_dim = 0;
  int64_t vocab = 0;
  int64_t trained_context = 0;  // tokens
  float norm_epsilon = 1e-5f;
  Rope::Options rope;

  int q_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  // Weights of one layer's matrices; a token takes two operations for each.
  double layer_weights() const {
    return static_cast<double>(width) * (2.0 * q_width() + 2.0 * kv_width() + 3.0 * ffn_width);
  }
  // Operations of one (query token, key) pair in one layer.
  double pair_operations() const { return 4.0 * heads * head_dim; }
};

// One transformer layer. Vectors are float32 copies, matrices point into the file.
struct LayerWeights {
  std::vector<float> attention_norm;  // [width]
  WeightMatrix q;                     // [q_width, width]
  WeightMatrix k;                     // [kv_width, width]
  WeightMatrix v;                     // [kv_width, width]
  WeightMatrix o;                     // [width, q_width]
  std::vector<float> ffn_norm;        // [width]
  WeightMatrix gate;                  // [ffn_width, width]
  WeightMatrix up;                    // [ffn_width, width]
  WeightMatrix down;                  // [width, ffn_width]
};

// Immutable after loading; thread-safe; owns the mapping.
class Model {
 public:
  // Errors name the file, the field or tensor, and what is supported.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& path);
  static absl::StatusOr<std::unique_ptr<Model>> FromGguf(std::unique_ptr<GgufFile> file);

  const ModelConfig& config() const { return config_; }
  const GgufFile& file() const { return *file_; }
  const WeightMatrix& embedding() const { return embedding_; }  // [vocab, width]
  const WeightMatrix& output() const { return output_; }        // [vocab, width]; may be tied
  const std::vector<float>& output_norm() const { return output_norm_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  // Bytes of all tensors as stored.
  size_t weight_bytes() const { return weight_bytes_; }
  // "Q4_1 (210 tensors), F32 (61), Q8_0 (1)": for logs and GetModel.
  const std::string& weight_summary() const { return weight_summary_; }

 private:
  Model() = default;

  std::unique_ptr<GgufFile> file_;
  ModelConfig config_;
  WeightMatrix embedding_, output_;
  std::vector<float> output_norm_;
  std::vector<LayerWeights> layers_;
  size_t weight_bytes_ = 0;
  std::string weight_summary_;
};

}  // namespace ringfill
