// Random Llama models of any geometry as GGUF files, with a small byte-level BPE tokenizer and a
// ChatML template, for tests that need a whole model but not a trained one.
//
//   TinyModelOptions options;
//   options.SetMatrixTypes(WeightType::kQ4_1);
//   auto model = Model::Load(WriteTinyModel(options));
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/compute/products/weight_type.h"
#include "tests/testing/gguf_writer.h"

namespace ringfill {

// Widths must be multiples of 32 where a quantised type reads them.
struct TinyModelOptions {
  int layers = 2;
  int width = 64;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int ffn_width = 96;
  int vocab = 384;  // at least kTinySpecialTokens + 256
  int context_length = 8192;
  bool tied = true;         // no output.weight
  bool rope_freqs = false;  // with rope_freqs.weight, factors of 1 to 4
  int rope_dims = 0;        // 0: head_dim
  double rope_base = 10000.0;
  double rope_linear_factor = 0;  // 0: no rope.scaling keys
  float norm_epsilon = 1e-5f;
  uint64_t seed = 1;

  WeightType embedding = WeightType::kF32;
  WeightType output = WeightType::kF32;
  WeightType norm = WeightType::kF32;  // F32, F16 or BF16
  WeightType q = WeightType::kF32, k = WeightType::kF32, v = WeightType::kF32, o = WeightType::kF32;
  WeightType gate = WeightType::kF32, up = WeightType::kF32, down = WeightType::kF32;
  // Everything but the norms.
  void SetMatrixTypes(WeightType type);

  bool tokenizer = true;
  std::string pre_tokenizer = "smollm";
  std::string chat_template;  // empty: plain ChatML
};

// The tokenizer's ids: the special tokens, then the 256 bytes in the order of their value, then one
// token for each merge that fits into the vocabulary, then tokens marked unused.
inline constexpr int kTinyEndOfText = 0;  // <|endoftext|>
inline constexpr int kTinyImStart = 1;    // <|im_start|>
inline constexpr int kTinyImEnd = 2;      // <|im_end|>, EOS
inline constexpr int kTinySpecialTokens = 3;

// Matrices are normal with deviation 1/sqrt(row length), so that logits are of order one; the same
// options give the same bytes.
std::vector<std::byte> BuildTinyModel(const TinyModelOptions& options);
// The parts of it, for tests that spoil one.
void AddTinyMetadata(const TinyModelOptions& options, GgufWriter& writer);
void AddTinyTokenizer(const TinyModelOptions& options, GgufWriter& writer);
void AddTinyTensors(const TinyModelOptions& options, GgufWriter& writer);

// A file in the temporary directory, removed when the process exits normally. Returns its path.
std::string WriteTinyModel(const TinyModelOptions& options);
// The same for any bytes.
std::string WriteTempFile(const std::vector<std::byte>& bytes, const std::string& suffix);

}  // namespace ringfill
