// Whole models spoiled in every way that a file can be: each must be an error or a model whose
// weights can all be read.

#include <cstring>
#include <random>

#include "engine/model/chat_template.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "engine/model/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_fields.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

TinyModelOptions Small() {
  TinyModelOptions options;
  options.layers = 1;
  options.width = 32;
  options.heads = 2;
  options.kv_heads = 1;
  options.ffn_width = 32;
  options.vocab = 300;
  options.rope_freqs = true;
  options.tied = false;
  options.SetMatrixTypes(WeightType::kQ4_1);
  options.embedding = WeightType::kQ8_0;
  return options;
}

// Reads what a server would: the first and last row of each matrix.
float TouchWeights(const Model& model) {
  float sum = 0;
  const auto touch = [&](const WeightMatrix& w) {
    std::vector<float> row(w.cols);
    for (int64_t r : {int64_t{0}, w.rows - 1}) {
      DequantizeRow(w.type, w.Row(r), w.cols, row.data());
      sum += row[0];
    }
  };
  touch(model.embedding());
  touch(model.output());
  for (const LayerWeights& layer : model.layers()) {
    for (const WeightMatrix* w :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      touch(*w);
    }
  }
  return sum;
}

struct Outcome {
  bool model = false;
  bool tokenizer = false;
};

Outcome Try(const std::vector<std::byte>& bytes) {
  Outcome outcome;
  auto file = GgufFile::Parse(bytes, "x.gguf");
  if (!file.ok()) {
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    return outcome;
  }
  const auto tokenizer = Tokenizer::FromGguf(**file);
  if (tokenizer.ok()) {
    outcome.tokenizer = true;
    const auto ids = (*tokenizer)->Encode("Hello <|im_start|> world 12", {true});
    EXPECT_TRUE(ids.ok());
    if (ids.ok()) (*tokenizer)->Decode(*ids, false);
  } else {
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  }
  if (const auto jinja = (*file)->GetString("tokenizer.chat_template"); jinja.ok()) {
    ChatTemplate::Recognise(*jinja).IgnoreError();
  }
  const auto model = Model::FromGguf(*std::move(file));
  if (model.ok()) {
    outcome.model = true;
    volatile float sum = TouchWeights(**model);
    (void)sum;
  } else {
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  }
  return outcome;
}

TEST(HostileFile, TheUnspoiledModelLoads) {
  const Outcome outcome = Try(BuildTinyModel(Small()));
  EXPECT_TRUE(outcome.model);
  EXPECT_TRUE(outcome.tokenizer);
}

TEST(HostileFile, EveryTruncationIsAnError) {
  const std::vector<std::byte> whole = BuildTinyModel(Small());
  size_t header_bytes = 0;
  ListGgufFields(whole, &header_bytes);
  for (size_t size = 0; size < header_bytes; ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + size);
    EXPECT_FALSE(GgufFile::Parse(cut, "x.gguf").ok()) << size;
  }
  // Tensors are padded to 32 bytes: the last byte that counts lies at most 31 before the end.
  for (size_t size = header_bytes; size + 32 <= whole.size(); size += 13) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + size);
    EXPECT_FALSE(GgufFile::Parse(cut, "x.gguf").ok()) << size;
  }
}

TEST(HostileFile, EveryFieldAtItsExtremes) {
  const std::vector<std::byte> whole = BuildTinyModel(Small());
  size_t header_bytes = 0;
  const std::vector<GgufField> fields = ListGgufFields(whole, &header_bytes);
  ASSERT_GT(fields.size(), 400u);
  constexpr uint64_t kExtremes[] = {0,          1,           2,          0x7fffffff, 0x80000000,
                                    0xffffffff, 0x100000000, 1ull << 62, 1ull << 63, ~0ull};
  int loaded = 0;
  for (const GgufField& field : fields) {
    for (uint64_t extreme : kExtremes) {
      if (field.bytes == 4 && extreme > 0xffffffff) continue;
      std::vector<std::byte> spoiled = whole;
      std::memcpy(spoiled.data() + field.offset, &extreme, field.bytes);
      if (spoiled == whole) continue;
      SCOPED_TRACE(field.what + " = " + std::to_string(extreme));
      loaded += Try(spoiled).model ? 1 : 0;
    }
  }
  // Offsets of 0 and equal types leave a few that load; nearly all must not.
  EXPECT_LT(loaded, static_cast<int>(fields.size()) / 4);
}

TEST(HostileFile, EveryMetadataNumberAtItsExtremes) {
  constexpr uint32_t kExtremes[] = {0, 1, 3, 0x7fffffff, 0x80000000, 0xffffffff};
  const char* keys[] = {"llama.block_count",
                        "llama.context_length",
                        "llama.embedding_length",
                        "llama.feed_forward_length",
                        "llama.attention.head_count",
                        "llama.attention.head_count_kv",
                        "llama.attention.key_length",
                        "llama.attention.value_length",
                        "llama.attention.layer_norm_rms_epsilon",
                        "llama.rope.freq_base",
                        "llama.rope.dimension_count",
                        "tokenizer.ggml.bos_token_id",
                        "tokenizer.ggml.eos_token_id"};
  const std::vector<std::byte> whole = BuildTinyModel(Small());
  const std::string text(reinterpret_cast<const char*>(whole.data()), whole.size());
  for (const char* key : keys) {
    const size_t found = text.find(key);
    ASSERT_NE(found, std::string::npos) << key;
    const size_t value_at = found + std::strlen(key) + sizeof(uint32_t);
    for (uint32_t extreme : kExtremes) {
      std::vector<std::byte> spoiled = whole;
      std::memcpy(spoiled.data() + value_at, &extreme, sizeof(extreme));
      SCOPED_TRACE(std::string(key) + " = " + std::to_string(extreme));
      Try(spoiled);
    }
  }
}

TEST(HostileFile, RandomBytesInTheHeader) {
  const std::vector<std::byte> whole = BuildTinyModel(Small());
  size_t header_bytes = 0;
  ListGgufFields(whole, &header_bytes);
  std::mt19937 random(7);
  int models = 0, tokenizers = 0;
  constexpr int kFiles = 4000;
  for (int i = 0; i < kFiles; ++i) {
    std::vector<std::byte> spoiled = whole;
    const int flips = 1 + static_cast<int>(random() % 3);
    for (int f = 0; f < flips; ++f) {
      const size_t limit = random() % 10 == 0 ? whole.size() : header_bytes;
      spoiled[random() % limit] = static_cast<std::byte>(random());
    }
    SCOPED_TRACE(i);
    const Outcome outcome = Try(spoiled);
    models += outcome.model;
    tokenizers += outcome.tokenizer;
  }
  // Most bytes of a header are texts, which may be others; many are not.
  for (const int accepted : {models, tokenizers}) {
    EXPECT_GT(accepted, kFiles / 20);
    EXPECT_LT(accepted, kFiles * 19 / 20);
  }
}

}  // namespace
}  // namespace ringfill
