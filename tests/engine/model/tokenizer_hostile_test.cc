// Hostile texts of up to a megabyte, on a thread with a small stack.

#include <pthread.h>

#include <functional>

#include "engine/model/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/engine/model/hostile_text.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/test_files.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

constexpr size_t kStackBytes = 512 << 10;
constexpr size_t kMegabyte = 1 << 20;

void RunOnSmallStack(std::function<void()> work) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStackBytes), 0);
  pthread_t thread;
  const auto run = [](void* work_pointer) -> void* {
    (*static_cast<std::function<void()>*>(work_pointer))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &work), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

void EncodeAll(const Tokenizer& tokenizer, size_t bytes, bool has_all_bytes) {
  for (const HostileText& text : HostileTexts(bytes)) {
    const auto ids = tokenizer.Encode(text.bytes, {.parse_special = true});
    ASSERT_TRUE(ids.ok()) << text.name << ": " << ids.status();
    if (has_all_bytes) {
      EXPECT_EQ(tokenizer.Decode(*ids, false), text.bytes) << text.name;
    }
    StreamingDetokenizer stream(tokenizer);
    size_t streamed = 0;
    for (TokenId id : *ids) streamed += stream.Push(id).size();
    EXPECT_LE(streamed, 3 * text.bytes.size());
  }
}

TEST(TokenizerHostile, TinyVocabulary) {
  for (const char* pre : {"smollm", "llama-bpe", "qwen2", "default"}) {
    TinyModelOptions options;
    options.pre_tokenizer = pre;
    GgufWriter writer;
    AddTinyTokenizer(options, writer);
    const std::vector<std::byte> bytes = writer.Build();
    const auto tokenizer = Tokenizer::FromGguf(**GgufFile::Parse(bytes, "x.gguf"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    RunOnSmallStack([&] { EncodeAll(**tokenizer, kMegabyte / 8, true); });
  }
}

TEST(TokenizerHostile, WholeVocabulary) {
  const std::string path = TestModelPath();
  if (path.empty()) GTEST_SKIP() << "the test model is not there";
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = Tokenizer::FromGguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  RunOnSmallStack([&] { EncodeAll(**tokenizer, kMegabyte, false); });
}

}  // namespace
}  // namespace ringfill
