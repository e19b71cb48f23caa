#include "tests/testing/tiny_model.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <string_view>

#include "base/check.h"
#include "tests/testing/quantize.h"

namespace ringfill {
namespace {

constexpr std::string_view kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";

// Pairs of the GPT-2 alphabet: U+0120 stands for a space, U+010A for a newline.
constexpr std::array<std::string_view, 48> kMerges = {
    "\u0120 t",
    "h e",
    "i n",
    "r e",
    "o n",
    "\u0120 a",
    "a t",
    "e r",
    "\u0120t he",
    "\u0120 \u0120",
    "a a",
    "aa aa",
    "n d",
    "\u0120a nd",
    "in g",
    "\u0120 s",
    "\u0120 w",
    "o u",
    "e n",
    "i s",
    "o r",
    "l l",
    "\u0120t o",
    "e s",
    "\u0120 c",
    "\u0120 o",
    "\u0120o f",
    "1 2",
    "3 4",
    "12 34",
    "\u010a \u010a",
    "\u0120\u0120 \u0120\u0120",
    "' s",
    "H e",
    "ll o",
    "He llo",
    "\u0120 He",
    "\u0120He llo",
    "w or",
    "l d",
    "\u0120w or",
    "\u0120wor ld",
    "\u0120\u0120\u0120\u0120 \u0120\u0120\u0120\u0120",
    "aaaa aaaa",
    "< |",
    "| >",
    "\u00c3 \u00a9",
    "\u00c3 \u00bc"};

// The GPT-2 alphabet: printable bytes stand for themselves, the others for U+0100 and up.
std::string ByteSymbol(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

class Weights {
 public:
  explicit Weights(uint64_t seed) : random_(seed) {}

  std::vector<float> Matrix(int rows, int cols) {
    std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(cols)));
    std::vector<float> values(static_cast<size_t>(rows) * cols);
    for (float& v : values) v = normal(random_);
    return values;
  }

  std::vector<float> Around(float center, float low, float high, int n) {
    std::uniform_real_distribution<float> uniform(low, high);
    std::vector<float> values(n);
    for (float& v : values) v = center + uniform(random_);
    return values;
  }

 private:
  std::mt19937_64 random_;
};

// Paths to delete at exit.
struct TempFiles {
  std::mutex mutex;
  std::vector<std::string> paths;
  ~TempFiles() {
    for (const std::string& path : paths) {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
  }
};

}  // namespace

void TinyModelOptions::SetMatrixTypes(WeightType type) {
  for (WeightType* t : {&embedding, &output, &q, &k, &v, &o, &gate, &up, &down}) *t = type;
}

void AddTinyMetadata(const TinyModelOptions& options, GgufWriter& writer) {
  writer.AddString("general.architecture", "llama");
  writer.AddString("general.name", "Tiny");
  writer.AddUint32("llama.block_count", options.layers);
  writer.AddUint32("llama.context_length", options.context_length);
  writer.AddUint32("llama.embedding_length", options.width);
  writer.AddUint32("llama.feed_forward_length", options.ffn_width);
  writer.AddUint32("llama.attention.head_count", options.heads);
  writer.AddUint32("llama.attention.head_count_kv", options.kv_heads);
  writer.AddUint32("llama.attention.key_length", options.head_dim);
  writer.AddUint32("llama.attention.value_length", options.head_dim);
  writer.AddFloat32("llama.attention.layer_norm_rms_epsilon", options.norm_epsilon);
  writer.AddFloat32("llama.rope.freq_base", static_cast<float>(options.rope_base));
  writer.AddUint32("llama.rope.dimension_count",
                   options.rope_dims > 0 ? options.rope_dims : options.head_dim);
  if (options.rope_linear_factor != 0) {
    writer.AddString("llama.rope.scaling.type", "linear");
    writer.AddFloat32("llama.rope.scaling.factor", static_cast<float>(options.rope_linear_factor));
  }
}

void AddTinyTokenizer(const TinyModelOptions& options, GgufWriter& writer) {
  constexpr int32_t kNormal = 1, kControl = 3, kUnused = 5;
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  RF_CHECK(static_cast<int>(tokens.size()) == kTinySpecialTokens);
  std::vector<int32_t> types(tokens.size(), kControl);
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(ByteSymbol(byte));
  RF_CHECK(options.vocab >= static_cast<int>(tokens.size()));
  std::vector<std::string> merges;
  for (std::string_view merge : kMerges) {
    if (static_cast<int>(tokens.size()) == options.vocab) break;
    const size_t space = merge.find(' ');
    tokens.push_back(std::string(merge.substr(0, space)) + std::string(merge.substr(space + 1)));
    merges.emplace_back(merge);
  }
  types.resize(tokens.size(), kNormal);
  while (static_cast<int>(tokens.size()) < options.vocab) {
    tokens.push_back("<unused" + std::to_string(tokens.size()) + ">");
  }
  types.resize(tokens.size(), kUnused);

  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", options.pre_tokenizer);
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddInts("tokenizer.ggml.token_type", types);
  writer.AddStrings("tokenizer.ggml.merges", merges);
  writer.AddUint32("tokenizer.ggml.bos_token_id", kTinyImStart);
  writer.AddUint32("tokenizer.ggml.eos_token_id", kTinyImEnd);
  writer.AddBool("tokenizer.ggml.add_bos_token", false);
  writer.AddString("tokenizer.chat_template",
                   options.chat_template.empty() ? kChatMl : options.chat_template);
}

void AddTinyTensors(const TinyModelOptions& options, GgufWriter& writer) {
  Weights weights(options.seed);
  const auto matrix = [&](const std::string& name, WeightType type, int rows, int cols) {
    writer.AddTensor(name, {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)},
                     GgufTypeId(type), EncodeWeights(type, weights.Matrix(rows, cols)));
  };
  const auto norm = [&](const std::string& name) {
    writer.AddTensor(
        name, {static_cast<uint64_t>(options.width)}, GgufTypeId(options.norm),
        EncodeWeights(options.norm, weights.Around(1.0f, -0.25f, 0.25f, options.width)));
  };
  const int q_width = options.heads * options.head_dim;
  const int kv_width = options.kv_heads * options.head_dim;
  matrix("token_embd.weight", options.embedding, options.vocab, options.width);
  for (int layer = 0; layer < options.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    norm(prefix + "attn_norm.weight");
    matrix(prefix + "attn_q.weight", options.q, q_width, options.width);
    matrix(prefix + "attn_k.weight", options.k, kv_width, options.width);
    matrix(prefix + "attn_v.weight", options.v, kv_width, options.width);
    matrix(prefix + "attn_output.weight", options.o, options.width, q_width);
    norm(prefix + "ffn_norm.weight");
    matrix(prefix + "ffn_gate.weight", options.gate, options.ffn_width, options.width);
    matrix(prefix + "ffn_up.weight", options.up, options.ffn_width, options.width);
    matrix(prefix + "ffn_down.weight", options.down, options.width, options.ffn_width);
  }
  norm("output_norm.weight");
  if (!options.tied) matrix("output.weight", options.output, options.vocab, options.width);
  if (options.rope_freqs) {
    const int dims = options.rope_dims > 0 ? options.rope_dims : options.head_dim;
    writer.AddTensor("rope_freqs.weight", {static_cast<uint64_t>(dims / 2)}, 0,
                     EncodeWeights(WeightType::kF32, weights.Around(1.0f, 0.0f, 3.0f, dims / 2)));
  }
}

std::vector<std::byte> BuildTinyModel(const TinyModelOptions& options) {
  GgufWriter writer;
  AddTinyMetadata(options, writer);
  if (options.tokenizer) AddTinyTokenizer(options, writer);
  AddTinyTensors(options, writer);
  return writer.Build();
}

std::string WriteTinyModel(const TinyModelOptions& options) {
  return WriteTempFile(BuildTinyModel(options), ".gguf");
}

std::string WriteTempFile(const std::vector<std::byte>& bytes, const std::string& suffix) {
  static TempFiles files;
  const std::lock_guard<std::mutex> lock(files.mutex);
  const std::string name = "ringfill-test-" + std::to_string(getpid()) + "-" +
                           std::to_string(files.paths.size()) + suffix;
  files.paths.push_back((std::filesystem::temp_directory_path() / name).string());
  std::ofstream out(files.paths.back(), std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  out.close();
  RF_CHECK(out.good());
  return files.paths.back();
}

}  // namespace ringfill
