#include "engine/model/model_config.h"

#include <cmath>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/model/quote.h"

namespace ringfill {
namespace {

constexpr uint64_t kMaxLayers = 1024;
constexpr uint64_t kMaxWidth = 1 << 20;
constexpr uint64_t kMaxHeads = 4096;
constexpr uint64_t kMaxHeadDim = 4096;
constexpr uint64_t kMaxFfnWidth = 1 << 24;
constexpr uint64_t kMaxVocab = 1 << 24;
constexpr uint64_t kMaxContext = uint64_t{1} << 40;

absl::StatusOr<int64_t> Bounded(const GgufFile& file, const std::string& key, uint64_t value,
                                uint64_t max) {
  if (value >= 1 && value <= max) return static_cast<int64_t>(value);
  return file.Error(absl::StrCat(key, " is ", value, "; supported: 1 to ", max));
}

absl::StatusOr<int64_t> Required(const GgufFile& file, const std::string& key, uint64_t max) {
  RF_ASSIGN_OR_RETURN(const uint64_t value, file.GetUint(key));
  return Bounded(file, key, value, max);
}

absl::StatusOr<int64_t> Optional(const GgufFile& file, const std::string& key,
                                 int64_t default_value, uint64_t max) {
  RF_ASSIGN_OR_RETURN(const uint64_t value,
                      file.GetUint(key, static_cast<uint64_t>(default_value)));
  return Bounded(file, key, value, max);
}

absl::StatusOr<double> Positive(const GgufFile& file, const std::string& key,
                                double default_value) {
  RF_ASSIGN_OR_RETURN(const double value, file.GetFloat(key, default_value));
  if (std::isfinite(value) && value > 0) return value;
  return file.Error(absl::StrCat(key, " is ", value, "; supported: positive numbers"));
}

// Keys that other families built on this architecture use to change what the model computes. A
// value other than the neutral one must not be ignored.
absl::Status CheckUnsupported(const GgufFile& file) {
  for (const char* key : {"llama.expert_count", "llama.expert_used_count",
                          "llama.attention.sliding_window", "llama.interleave_moe_layer_step"}) {
    RF_ASSIGN_OR_RETURN(const uint64_t value, file.GetUint(key, 0));
    if (value != 0) return file.Error(absl::StrCat(key, " is ", value, "; supported: 0"));
  }
  for (const char* key :
       {"llama.attention.clamp_kqv", "llama.attention.max_alibi_bias", "llama.attention.scale",
        "llama.attn_logit_softcapping", "llama.final_logit_softcapping", "llama.logit_scale",
        "llama.residual_scale", "llama.embedding_scale"}) {
    RF_ASSIGN_OR_RETURN(const double value, file.GetFloat(key, 0));
    if (value != 0) return file.Error(absl::StrCat(key, " is ", value, "; supported: absent or 0"));
  }
  RF_ASSIGN_OR_RETURN(const double attention_factor,
                      file.GetFloat("llama.rope.scaling.attn_factor", 1));
  if (attention_factor != 1) {
    return file.Error(
        absl::StrCat("llama.rope.scaling.attn_factor is ", attention_factor, "; supported: 1"));
  }
  RF_ASSIGN_OR_RETURN(const bool causal, file.GetBool("llama.attention.causal", true));
  if (!causal) return file.Error("llama.attention.causal is false; supported: true");
  return absl::OkStatus();
}

// 1 / the linear scaling factor. A factor without a type means linear, as does the older key.
absl::StatusOr<double> ReadPositionScale(const GgufFile& file) {
  RF_ASSIGN_OR_RETURN(const std::string_view type,
                      file.GetString("llama.rope.scaling.type", "linear"));
  if (type == "none") return 1.0;
  if (type != "linear") {
    return file.Error(
        absl::StrCat("llama.rope.scaling.type is ", Printable(type), "; supported: none, linear"));
  }
  RF_ASSIGN_OR_RETURN(const double old_factor, Positive(file, "llama.rope.scale_linear", 1.0));
  RF_ASSIGN_OR_RETURN(const double factor, Positive(file, "llama.rope.scaling.factor", old_factor));
  return 1.0 / factor;
}

absl::Status ReadRope(const GgufFile& file, ModelConfig& config) {
  config.rope.head_dim = config.head_dim;
  RF_ASSIGN_OR_RETURN(const int64_t dims, Optional(file, "llama.rope.dimension_count",
                                                   config.head_dim, config.head_dim));
  if (dims % 2 != 0) {
    return file.Error(
        absl::StrCat("llama.rope.dimension_count is ", dims, "; supported: even numbers"));
  }
  config.rope.rope_dims = static_cast<int>(dims);
  RF_ASSIGN_OR_RETURN(config.rope.base, Positive(file, "llama.rope.freq_base", 10000.0));
  RF_ASSIGN_OR_RETURN(config.rope.position_scale, ReadPositionScale(file));
  return absl::OkStatus();
}

absl::Status ReadHeads(const GgufFile& file, ModelConfig& config) {
  RF_ASSIGN_OR_RETURN(const int64_t heads, Required(file, "llama.attention.head_count", kMaxHeads));
  RF_ASSIGN_OR_RETURN(const int64_t kv_heads,
                      Optional(file, "llama.attention.head_count_kv", heads, kMaxHeads));
  if (heads % kv_heads != 0) {
    return file.Error(absl::StrCat("llama.attention.head_count is ", heads,
                                   ", not a multiple of llama.attention.head_count_kv, ",
                                   kv_heads));
  }
  if (file.FindValue("llama.attention.key_length") == nullptr && config.width % heads != 0) {
    return file.Error(absl::StrCat("llama.embedding_length is ", config.width,
                                   ", not a multiple of llama.attention.head_count, ", heads));
  }
  RF_ASSIGN_OR_RETURN(const int64_t key_length, Optional(file, "llama.attention.key_length",
                                                         config.width / heads, kMaxHeadDim));
  RF_ASSIGN_OR_RETURN(const int64_t value_length,
                      Optional(file, "llama.attention.value_length", key_length, kMaxHeadDim));
  if (key_length != value_length || key_length % 2 != 0) {
    return file.Error(absl::StrCat("llama.attention.key_length is ", key_length,
                                   " and value_length is ", value_length,
                                   "; supported: equal even numbers"));
  }
  config.heads = static_cast<int>(heads);
  config.kv_heads = static_cast<int>(kv_heads);
  config.head_dim = static_cast<int>(key_length);
  return absl::OkStatus();
}

// Rows of the embedding, which the stored vocabulary and vocab_size must match where present.
absl::StatusOr<int64_t> ReadVocab(const GgufFile& file) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return file.Error("tensor token_embd.weight is missing");
  const uint64_t vocab = embedding->shape[1];
  RF_RETURN_IF_ERROR(
      Bounded(file, "vocabulary size (rows of token_embd.weight)", vocab, kMaxVocab).status());
  RF_ASSIGN_OR_RETURN(const uint64_t stated, file.GetUint("llama.vocab_size", vocab));
  if (stated != vocab) {
    return file.Error(absl::StrCat("llama.vocab_size is ", stated, ", but token_embd.weight has ",
                                   vocab, " rows"));
  }
  if (const GgufValue* tokens = file.FindValue("tokenizer.ggml.tokens")) {
    const auto* array = std::get_if<GgufArray>(tokens);
    if (array == nullptr || array->count != vocab) {
      return file.Error(absl::StrCat("tokenizer.ggml.tokens has ",
                                     array == nullptr ? 0 : array->count,
                                     " tokens, but token_embd.weight has ", vocab, " rows"));
    }
  }
  return static_cast<int64_t>(vocab);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  ModelConfig config;
  RF_ASSIGN_OR_RETURN(const std::string_view architecture, file.GetString("general.architecture"));
  if (architecture != "llama") {
    return file.Error(
        absl::StrCat("general.architecture is ", Printable(architecture), "; supported: llama"));
  }
  config.architecture = architecture;
  const std::string base_name = std::filesystem::path(file.path()).filename().string();
  RF_ASSIGN_OR_RETURN(const std::string_view name, file.GetString("general.name", base_name));
  config.name = name;
  RF_RETURN_IF_ERROR(CheckUnsupported(file));
  RF_ASSIGN_OR_RETURN(config.layers, Required(file, "llama.block_count", kMaxLayers));
  RF_ASSIGN_OR_RETURN(config.width, Required(file, "llama.embedding_length", kMaxWidth));
  RF_ASSIGN_OR_RETURN(config.ffn_width, Required(file, "llama.feed_forward_length", kMaxFfnWidth));
  RF_ASSIGN_OR_RETURN(config.trained_context, Required(file, "llama.context_length", kMaxContext));
  RF_RETURN_IF_ERROR(ReadHeads(file, config));
  RF_RETURN_IF_ERROR(ReadRope(file, config));
  RF_ASSIGN_OR_RETURN(config.vocab, ReadVocab(file));
  const std::string epsilon_key = "llama.attention.layer_norm_rms_epsilon";
  if (file.FindValue(epsilon_key) == nullptr) {
    return file.Error(absl::StrCat("metadata value ", epsilon_key, " is missing"));
  }
  RF_ASSIGN_OR_RETURN(const double epsilon, Positive(file, epsilon_key, 0));
  config.norm_epsilon = static_cast<float>(epsilon);
  return config;
}

}  // namespace ringfill
