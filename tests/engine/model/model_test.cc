#include "engine/model/model.h"

#include <cmath>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/quantize.h"
#include "tests/testing/test_files.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Model>> Load(const TinyModelOptions& options) {
  return Model::Load(WriteTinyModel(options));
}

// A tiny model with extra metadata or tensors.
absl::Status StatusWith(const TinyModelOptions& options,
                        const std::function<void(GgufWriter&)>& add) {
  GgufWriter writer;
  AddTinyMetadata(options, writer);
  AddTinyTokenizer(options, writer);
  AddTinyTensors(options, writer);
  add(writer);
  const std::vector<std::byte> bytes = writer.Build();
  auto file = GgufFile::Parse(bytes, "x.gguf");
  if (!file.ok()) return file.status();
  return Model::FromGguf(*std::move(file)).status();
}

void ExpectRefused(const absl::Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(Model, ReadsTheGeometry) {
  TinyModelOptions options;
  options.layers = 3;
  options.width = 96;
  options.heads = 6;
  options.kv_heads = 2;
  options.head_dim = 32;
  options.rope_dims = 16;
  options.rope_base = 500000;
  options.rope_linear_factor = 4;
  options.rope_freqs = true;
  options.ffn_width = 160;
  options.vocab = 333;
  options.context_length = 1000;
  options.norm_epsilon = 1e-6f;
  options.tied = false;
  const auto model = Load(options);
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "Tiny");
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.width, 96);
  EXPECT_EQ(config.heads, 6);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.q_width(), 192);
  EXPECT_EQ(config.kv_width(), 64);
  EXPECT_EQ(config.ffn_width, 160);
  EXPECT_EQ(config.vocab, 333);
  EXPECT_EQ(config.trained_context, 1000);
  EXPECT_EQ(config.norm_epsilon, 1e-6f);
  EXPECT_EQ(config.rope.head_dim, 32);
  EXPECT_EQ(config.rope.rope_dims, 16);
  EXPECT_EQ(config.rope.base, 500000);
  EXPECT_EQ(config.rope.position_scale, 0.25);
  EXPECT_EQ(config.rope.factors.size(), 8u);
  ASSERT_EQ((*model)->layers().size(), 3u);
  const LayerWeights& layer = (*model)->layers()[2];
  EXPECT_EQ(layer.q.rows, 192);
  EXPECT_EQ(layer.q.cols, 96);
  EXPECT_EQ(layer.k.rows, 64);
  EXPECT_EQ(layer.o.rows, 96);
  EXPECT_EQ(layer.o.cols, 192);
  EXPECT_EQ(layer.down.rows, 96);
  EXPECT_EQ(layer.down.cols, 160);
  EXPECT_NE((*model)->output().data, (*model)->embedding().data);
}

TEST(Model, FillsInWhatFilesLeaveOut) {
  TinyModelOptions options;
  options.tokenizer = false;
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddUint32("llama.block_count", options.layers);
  writer.AddUint32("llama.context_length", 100);
  writer.AddUint32("llama.embedding_length", options.width);
  writer.AddUint32("llama.feed_forward_length", options.ffn_width);
  writer.AddUint32("llama.attention.head_count", options.heads);
  writer.AddUint32("llama.attention.head_count_kv", options.kv_heads);
  writer.AddFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  AddTinyTensors(options, writer);
  const std::vector<std::byte> bytes = writer.Build();
  const auto model = Model::FromGguf(*GgufFile::Parse(bytes, "folder/some.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.name, "some.gguf");
  EXPECT_EQ(config.head_dim, options.width / options.heads);
  EXPECT_EQ(config.rope.rope_dims, config.head_dim);
  EXPECT_EQ(config.rope.base, 10000);
  EXPECT_EQ(config.rope.position_scale, 1);
  EXPECT_TRUE(config.rope.factors.empty());
  EXPECT_EQ((*model)->output().data, (*model)->embedding().data);
}

TEST(Model, WeightsAreTheStoredOnesInEveryType) {
  TinyModelOptions exact;
  exact.tied = false;
  const auto reference = Load(exact);
  ASSERT_TRUE(reference.ok());
  for (WeightType type : {WeightType::kF16, WeightType::kBF16, WeightType::kQ4_0, WeightType::kQ4_1,
                          WeightType::kQ8_0}) {
    TinyModelOptions options = exact;
    options.SetMatrixTypes(type);
    const auto model = Load(options);
    ASSERT_TRUE(model.ok()) << model.status();
    const WeightMatrix& stored = (*model)->layers()[1].down;
    const WeightMatrix& wanted = (*reference)->layers()[1].down;
    std::vector<float> a(stored.cols), b(stored.cols);
    for (int64_t r = 0; r < stored.rows; ++r) {
      DequantizeRow(stored.type, stored.Row(r), stored.cols, a.data());
      DequantizeRow(wanted.type, wanted.Row(r), wanted.cols, b.data());
      for (int64_t c = 0; c < stored.cols; ++c) EXPECT_NEAR(a[c], b[c], 0.06);
    }
  }
}

TEST(Model, NormsMayBeHalfPrecision) {
  const auto reference = Load(TinyModelOptions());
  ASSERT_TRUE(reference.ok());
  for (WeightType type : {WeightType::kF16, WeightType::kBF16}) {
    TinyModelOptions options;
    options.norm = type;
    const auto model = Load(options);
    ASSERT_TRUE(model.ok()) << model.status();
    for (int i = 0; i < options.width; ++i) {
      EXPECT_NEAR((*model)->output_norm()[i], (*reference)->output_norm()[i], 0.01);
    }
  }
  TinyModelOptions options;
  options.norm = WeightType::kQ8_0;
  ExpectRefused(Load(options).status(),
                "tensor output_norm.weight has type Q8_0; supported: F32, F16, BF16");
}

TEST(Model, SummarisesWeights) {
  TinyModelOptions options;
  options.SetMatrixTypes(WeightType::kQ4_0);
  options.embedding = WeightType::kQ8_0;
  const auto model = Load(options);
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->weight_summary(), "Q4_0 (14 tensors), F32 (5), Q8_0 (1)");
  const size_t attention = 64 * 64 * 2 + 64 * 32 * 2, ffn = 64 * 96 * 3;
  EXPECT_EQ((*model)->weight_bytes(),
            2 * (attention + ffn) / 32 * 18 + 384 * 64 / 32 * 34 + 5 * 64 * 4);
}

TEST(Model, RefusesOtherArchitecturesAndTypesByName) {
  TinyModelOptions options;
  options.layers = 1;
  GgufWriter qwen;
  qwen.AddString("general.architecture", "qwen3\n");
  const std::vector<std::byte> bytes = qwen.Build();
  ExpectRefused(Model::FromGguf(*GgufFile::Parse(bytes, "x.gguf")).status(),
                "x.gguf: general.architecture is qwen3\\n; supported: llama");

  GgufWriter typed;
  AddTinyMetadata(options, typed);
  typed.AddTensor("token_embd.weight", {64, 384}, 12, std::vector<std::byte>(64));
  const std::vector<std::byte> typed_bytes = typed.Build();
  ExpectRefused(Model::FromGguf(*GgufFile::Parse(typed_bytes, "x.gguf")).status(),
                "x.gguf: tensor token_embd.weight has type Q4_K; supported: F32, F16, BF16, Q4_0, "
                "Q4_1, Q8_0");
}

TEST(Model, RefusesExtraTensorsRatherThanIgnoreThem) {
  const TinyModelOptions options;
  const auto with = [&](const std::string& name) {
    return StatusWith(options, [&](GgufWriter& writer) {
      writer.AddTensor(name, {64}, 0, std::vector<std::byte>(256));
    });
  };
  ExpectRefused(with("blk.0.attn_q.bias"), "tensor blk.0.attn_q.bias is not part of a llama model");
  ExpectRefused(with("blk.0.attn_q.bias"), "biases are not supported");
  ExpectRefused(with("blk.0.attn_q_norm.weight"), "blk.0.attn_q_norm.weight is not part");
  ExpectRefused(with("blk.2.attn_norm.weight"), "blk.2.attn_norm.weight is not part");
}

TEST(Model, RefusesMetadataThatChangesTheModel) {
  const TinyModelOptions options;
  const auto with_uint = [&](const std::string& key, uint32_t value) {
    return StatusWith(options, [&](GgufWriter& writer) { writer.AddUint32(key, value); });
  };
  const auto with_float = [&](const std::string& key, float value) {
    return StatusWith(options, [&](GgufWriter& writer) { writer.AddFloat32(key, value); });
  };
  EXPECT_TRUE(with_uint("llama.expert_count", 0).ok());
  ExpectRefused(with_uint("llama.expert_count", 8), "llama.expert_count is 8; supported: 0");
  ExpectRefused(with_uint("llama.attention.sliding_window", 4096), "sliding_window is 4096");
  ExpectRefused(with_float("llama.logit_scale", 0.5f), "llama.logit_scale is 0.5");
  ExpectRefused(with_float("llama.rope.scaling.attn_factor", 1.2f), "attn_factor is 1.2");
  ExpectRefused(with_uint("llama.vocab_size", 383), "llama.vocab_size is 383, but");
  const auto scaling = [&](const std::string& type) {
    return StatusWith(options, [&](GgufWriter& writer) {
      writer.AddString("llama.rope.scaling.type", type);
      writer.AddFloat32("llama.rope.scaling.factor", 2);
    });
  };
  EXPECT_TRUE(scaling("none").ok());
  EXPECT_TRUE(scaling("linear").ok());
  ExpectRefused(scaling("yarn"), "llama.rope.scaling.type is yarn; supported: none, linear");
  for (float factor : {0.0f, -1.0f, NAN, INFINITY}) {
    ExpectRefused(with_float("llama.rope.scaling.factor", factor), "llama.rope.scaling.factor is");
  }
}

TEST(Model, ChecksTheGeometry) {
  const auto refused = [](const std::function<void(TinyModelOptions&)>& change,
                          const std::string& part) {
    TinyModelOptions written, stated;
    change(stated);
    GgufWriter writer;
    AddTinyMetadata(stated, writer);
    AddTinyTensors(written, writer);
    const std::vector<std::byte> bytes = writer.Build();
    ExpectRefused(Model::FromGguf(*GgufFile::Parse(bytes, "x.gguf")).status(), part);
  };
  refused([](auto& o) { o.kv_heads = 3; }, "head_count is 4, not a multiple of");
  refused([](auto& o) { o.kv_heads = 4; },
          "blk.0.attn_k.weight has shape [64, 32], the metadata "
          "asks for [64, 64]");
  refused([](auto& o) { o.head_dim = 15; }, "supported: equal even numbers");
  refused([](auto& o) { o.rope_dims = 18; }, "rope.dimension_count is 18; supported: 1 to 16");
  refused([](auto& o) { o.rope_dims = 7; }, "rope.dimension_count is 7; supported: even");
  refused([](auto& o) { o.layers = 0; }, "llama.block_count is 0; supported: 1 to 1024");
  refused([](auto& o) { o.layers = 1025; }, "llama.block_count is 1025");
  refused([](auto& o) { o.layers = 3; }, "tensor blk.2.attn_norm.weight is missing");
  refused([](auto& o) { o.layers = 1; }, "blk.1.attn_norm.weight is not part");
  refused([](auto& o) { o.width = 96; }, "token_embd.weight has shape [64, 384]");
  refused([](auto& o) { o.norm_epsilon = -1; }, "layer_norm_rms_epsilon is -1");
  refused([](auto& o) { o.rope_base = 0; }, "rope.freq_base is 0; supported: positive");
  refused([](auto& o) { o.rope_base = NAN; }, "rope.freq_base is nan");
}

TEST(Model, ChecksVocabularyAgainstTheEmbedding) {
  TinyModelOptions tokens, rows;
  tokens.vocab = 300;
  GgufWriter writer;
  AddTinyMetadata(tokens, writer);
  AddTinyTokenizer(tokens, writer);
  AddTinyTensors(rows, writer);
  const std::vector<std::byte> bytes = writer.Build();
  ExpectRefused(Model::FromGguf(*GgufFile::Parse(bytes, "x.gguf")).status(),
                "tokenizer.ggml.tokens has 300 tokens, but token_embd.weight has 384 rows");
}

TEST(Model, RefusesVectorsThatCannotBeUsed) {
  TinyModelOptions options;
  const auto with_factors = [&](const std::vector<float>& factors) {
    return StatusWith(options, [&](GgufWriter& writer) {
      writer.AddTensor("rope_freqs.weight", {factors.size()}, 0,
                       EncodeWeights(WeightType::kF32, factors));
    });
  };
  EXPECT_TRUE(with_factors({1, 1, 1, 1, 1, 1, 1, 2}).ok());
  ExpectRefused(with_factors({1, 1, 1, 1, 1, 1, 1, 0}), "a factor that is not positive");
  ExpectRefused(with_factors({1, 1, 1, 1, 1, 1, 1, NAN}), "not finite");
  ExpectRefused(with_factors({1, 1}), "rope_freqs.weight has shape [2], the metadata asks for [8]");
}

TEST(Model, ReadsSmolLm2) {
  const std::string path = TestModelPath();
  if (path.empty()) GTEST_SKIP() << "the test model is not there";
  const auto model = Model::Load(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->weight_summary(), "Q4_1 (210 tensors), F32 (61), Q8_0 (1)");
  EXPECT_EQ((*model)->config().layers, 30);
  EXPECT_EQ((*model)->config().head_dim, 64);
  EXPECT_EQ((*model)->config().vocab, 49152);
  EXPECT_EQ((*model)->config().rope.base, 100000);
  EXPECT_EQ((*model)->output().data, (*model)->embedding().data);
}

}  // namespace
}  // namespace ringfill
