#include "engine/model/tokenizer.h"

#include <functional>
#include <random>
#include <thread>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/test_files.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tokenizer_files.h"

namespace ringfill {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr TokenId kFirstByte = kTinySpecialTokens;

absl::StatusOr<std::unique_ptr<Tokenizer>> FromWriter(const GgufWriter& writer) {
  const std::vector<std::byte> bytes = writer.Build();
  const auto file = GgufFile::Parse(bytes, "x.gguf");
  if (!file.ok()) return file.status();
  return Tokenizer::FromGguf(**file);
}

std::unique_ptr<Tokenizer> Tiny(const std::string& pre = "smollm") {
  TinyModelOptions options;
  options.pre_tokenizer = pre;
  GgufWriter writer;
  AddTinyTokenizer(options, writer);
  auto tokenizer = FromWriter(writer);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<TokenId> Encode(const Tokenizer& tokenizer, std::string_view text,
                            bool parse_special = false) {
  const auto ids = tokenizer.Encode(text, {parse_special});
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *ids;
}

TEST(Tokenizer, GoldenIds) {
  const std::string path = TestModelPath();
  if (path.empty()) GTEST_SKIP() << "the test model is not there";
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = Tokenizer::FromGguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->pre_tokenizer(), "smollm");
  EXPECT_THAT((*tokenizer)->stop_ids(), ElementsAre(2, 0));
  const auto goldens = nlohmann::json::parse(ReadTestData("smollm2_135m_q4_1_goldens.json"));
  int texts = 0;
  for (const auto& golden : goldens["cases"]) {
    const auto ids = golden["ids"].get<std::vector<TokenId>>();
    const std::string text = golden["text"].is_null() ? (*tokenizer)->Decode(ids, false)
                                                      : golden["text"].get<std::string>();
    EXPECT_EQ(Encode(**tokenizer, text, true), ids) << golden["name"];
    EXPECT_EQ((*tokenizer)->Decode(ids, false), text);
    texts += golden["text"].is_null() ? 0 : 1;
  }
  EXPECT_EQ(texts, 5);
}

// Recorded from other tokenizers with the same vocabulary by tools/compare_tokenizers.py.
TEST(Tokenizer, HardCasesOfEveryPreTokenizer) {
  const std::string path = TestModelPath();
  if (path.empty()) GTEST_SKIP() << "the test model is not there";
  const auto model = GgufFile::Open(path);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto cases = nlohmann::json::parse(ReadTestData("tokenizer_hard_cases.json"));
  for (const std::string pre : {"smollm", "llama-bpe", "qwen2", "default"}) {
    const std::vector<std::byte> copy = CopyTokenizer(**model, pre);
    const auto file = GgufFile::Parse(copy, "copy.gguf");
    ASSERT_TRUE(file.ok());
    const auto tokenizer = Tokenizer::FromGguf(**file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    int compared = 0;
    for (const auto& hard : cases) {
      if (hard["pre"] != pre) continue;
      const std::string text = absl::HexStringToBytes(hard["text_hex"].get<std::string>());
      EXPECT_EQ(Encode(**tokenizer, text, true), hard["ids"].get<std::vector<TokenId>>())
          << pre << ": " << text;
      ++compared;
    }
    EXPECT_GE(compared, 50) << pre;
  }
}

TEST(Tokenizer, MergesWithinWords) {
  const auto tokenizer = Tiny();
  const auto id = [&](std::string_view text) { return *tokenizer->FindToken(text); };
  EXPECT_THAT(Encode(*tokenizer, "Hello the world"),
              ElementsAre(id("Hello"), id(" the"), id(" world")));
  EXPECT_THAT(Encode(*tokenizer, "aaaaaaa"), ElementsAre(id("aaaa"), id("aa"), id("a")));
}

TEST(Tokenizer, SpecialTokensOnlyWhereAsked) {
  const auto tokenizer = Tiny();
  EXPECT_THAT(Encode(*tokenizer, "<|im_start|><|im_end|>", true),
              ElementsAre(kTinyImStart, kTinyImEnd));
  for (TokenId id : Encode(*tokenizer, "<|im_start|>x<|im_end|><|endoftext|>")) {
    EXPECT_GE(id, kFirstByte);
  }
  EXPECT_GT(Encode(*tokenizer, "<|im_start|", true).size(), 5u);
}

TEST(Tokenizer, PiecesJoinButSpecialTokensDoNotCross) {
  const auto tokenizer = Tiny();
  const auto pieces = [&](const std::vector<TextPiece>& p) {
    const auto ids = tokenizer->EncodePieces(p);
    EXPECT_TRUE(ids.ok());
    return *ids;
  };
  // The words of neighbouring pieces join.
  EXPECT_EQ(pieces({{"a\n", true}, {"\nHel", false}, {"lo", false}}),
            Encode(*tokenizer, "a\n\nHello"));
  EXPECT_EQ(pieces({{"<|im_start|>", true}, {"x<|im_end|>y", false}, {"<|im_end|>", true}}), [&] {
    std::vector<TokenId> ids = {kTinyImStart};
    for (TokenId id : Encode(*tokenizer, "x<|im_end|>y")) ids.push_back(id);
    ids.push_back(kTinyImEnd);
    return ids;
  }());
  // A token forged over the edge of two pieces.
  for (const auto& p : std::vector<std::vector<TextPiece>>{
           {{"<|im_", false}, {"end|>", true}},
           {{"<|im_", true}, {"end|>", false}},
           {{"<|im_", true}, {"end|>", true}},
       }) {
    for (TokenId id : pieces(p)) EXPECT_GE(id, kFirstByte);
  }
  EXPECT_THAT(pieces({}), IsEmpty());
  EXPECT_THAT(pieces({{"", false}, {"", true}}), IsEmpty());
}

TEST(Tokenizer, EveryByteSequenceComesBack) {
  std::mt19937 random(11);
  for (const char* pre : {"smollm", "llama-bpe", "qwen2", "default"}) {
    const auto tokenizer = Tiny(pre);
    std::string all;
    for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
    EXPECT_EQ(tokenizer->Decode(Encode(*tokenizer, all), false), all);
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (uint32_t n = random() % 200; n > 0; --n) {
        const char* parts[] = {" ", "\n", "the", "1", "\u00e9", "\xf0\x9f", "<|im_end|>", "'s"};
        if (random() % 2 == 0) {
          text += parts[random() % std::size(parts)];
        } else {
          text += static_cast<char>(random());
        }
      }
      for (bool special : {false, true}) {
        EXPECT_EQ(tokenizer->Decode(Encode(*tokenizer, text, special), false), text);
      }
    }
  }
}

TEST(Tokenizer, InvalidUtf8GoesByteByByte) {
  const auto tokenizer = Tiny();
  EXPECT_THAT(Encode(*tokenizer, "\xff\xe2\x82"),
              ElementsAre(kFirstByte + 0xff, kFirstByte + 0xe2, kFirstByte + 0x82));
  // Valid text on both sides is cut as by itself.
  std::vector<TokenId> wanted = Encode(*tokenizer, " the");
  wanted.push_back(kFirstByte + 0xff);
  for (TokenId id : Encode(*tokenizer, " the")) wanted.push_back(id);
  EXPECT_EQ(Encode(*tokenizer, " the\xff the"), wanted);
}

TEST(Tokenizer, ThreadsShareIt) {
  const auto tokenizer = Tiny("llama-bpe");
  std::string text;
  for (int i = 0; i < 500; ++i) text += "Hello the world, it's " + std::to_string(i) + "\n\n";
  const std::vector<TokenId> wanted = Encode(*tokenizer, text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(Encode(*tokenizer, text), wanted); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, Llama3TakesWholeWordsBeforeMerges) {
  // "ab" is a token, but no merge makes it.
  GgufWriter writer;
  const auto add = [&](const char* pre) {
    writer = GgufWriter();
    writer.AddString("tokenizer.ggml.model", "gpt2");
    writer.AddString("tokenizer.ggml.pre", pre);
    writer.AddStrings("tokenizer.ggml.tokens", {"a", "b", "ab"});
    writer.AddStrings("tokenizer.ggml.merges", {});
  };
  add("llama-bpe");
  EXPECT_THAT(Encode(**FromWriter(writer), "ab"), ElementsAre(2));
  add("qwen2");
  EXPECT_THAT(Encode(**FromWriter(writer), "ab"), ElementsAre(0, 1));
}

TEST(Tokenizer, KindsOfTokens) {
  GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddStrings("tokenizer.ggml.tokens",
                    {"a", "<unk>", "<c>", "<user>", "<unused>", "b", "\u0120", "\u4e2d"});
  writer.AddInts("tokenizer.ggml.token_type", {1, 2, 3, 4, 5, 6, 1, 1});
  writer.AddStrings("tokenizer.ggml.merges", {});
  const auto made = FromWriter(writer);
  ASSERT_TRUE(made.ok()) << made.status();
  const Tokenizer& tokenizer = **made;
  EXPECT_EQ(tokenizer.pre_tokenizer(), "default");
  EXPECT_EQ(tokenizer.vocab_size(), 8);
  EXPECT_EQ(tokenizer.bos(), std::nullopt);
  EXPECT_EQ(tokenizer.eos(), std::nullopt);
  EXPECT_THAT(tokenizer.stop_ids(), IsEmpty());
  // User-defined tokens are always seen, control and unknown ones on request, unused ones never.
  EXPECT_THAT(Encode(tokenizer, "a<user><c>b", true), ElementsAre(0, 3, 2, 5));
  EXPECT_THAT(Encode(tokenizer, "a<user><c>b"), ElementsAre(0, 3, 5));
  EXPECT_THAT(Encode(tokenizer, "<unk><unused>", true), ElementsAre(1));
  // Bytes without a token are left out.
  EXPECT_THAT(Encode(tokenizer, "azb"), ElementsAre(0, 5));
  EXPECT_EQ(tokenizer.TokenBytes(4), "");
  EXPECT_EQ(tokenizer.TokenBytes(6), " ");
  EXPECT_EQ(tokenizer.TokenBytes(7), "\u4e2d");
  EXPECT_TRUE(tokenizer.IsSpecial(1));
  EXPECT_TRUE(tokenizer.IsSpecial(2));
  EXPECT_FALSE(tokenizer.IsSpecial(3));
  const std::vector<TokenId> ids = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(tokenizer.Decode(ids, false), "a<unk><c><user>b");
  EXPECT_EQ(tokenizer.Decode(ids, true), "a<user>b");
  EXPECT_EQ(tokenizer.FindToken("<c>"), 2);
  EXPECT_EQ(tokenizer.FindToken(" "), 6);
  EXPECT_EQ(tokenizer.FindToken("<nope>"), std::nullopt);
}

TEST(Tokenizer, StopIds) {
  GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddStrings("tokenizer.ggml.tokens",
                    {"a", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<e>"});
  writer.AddInts("tokenizer.ggml.token_type", {1, 3, 3, 1, 3});
  writer.AddStrings("tokenizer.ggml.merges", {});
  writer.AddUint32("tokenizer.ggml.bos_token_id", 0);
  writer.AddUint32("tokenizer.ggml.eos_token_id", 4);
  writer.AddUint32("tokenizer.ggml.eot_token_id", 1);
  const auto tokenizer = FromWriter(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos(), 0);
  EXPECT_EQ((*tokenizer)->eos(), 4);
  // <|im_end|> is an ordinary token here.
  EXPECT_THAT((*tokenizer)->stop_ids(), ElementsAre(4, 1, 2));
}

TEST(Tokenizer, RefusesWhatItCannotRead) {
  const auto refused = [](const std::function<void(GgufWriter&)>& add, const std::string& part) {
    GgufWriter writer;
    add(writer);
    const absl::Status status = FromWriter(writer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(std::string(status.message()), HasSubstr("x.gguf: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  const auto start = [](GgufWriter& w, const std::vector<std::string>& tokens) {
    w.AddString("tokenizer.ggml.model", "gpt2");
    w.AddStrings("tokenizer.ggml.tokens", tokens);
  };
  refused([](GgufWriter&) {}, "tokenizer.ggml.model is missing");
  refused([](GgufWriter& w) { w.AddString("tokenizer.ggml.model", "llama"); },
          "tokenizer.ggml.model is llama; supported: gpt2");
  refused(
      [&](GgufWriter& w) {
        start(w, {"a"});
        w.AddString("tokenizer.ggml.pre", "tekken");
      },
      "tokenizer.ggml.pre is tekken; supported: smollm, llama-bpe, llama3, llama-v3, qwen2, "
      "default");
  refused([](GgufWriter& w) { w.AddString("tokenizer.ggml.model", "gpt2"); },
          "tokenizer.ggml.tokens is missing");
  refused([&](GgufWriter& w) { start(w, {}); }, "tokenizer.ggml.tokens has 0 tokens");
  refused([&](GgufWriter& w) { start(w, {"a"}); }, "tokenizer.ggml.merges is missing");
  const auto types = [&](const std::vector<int32_t>& values) {
    return [&start, values](GgufWriter& w) {
      start(w, {"a"});
      w.AddInts("tokenizer.ggml.token_type", values);
    };
  };
  refused(types({1, 1}), "tokenizer.ggml.token_type has 2 entries for 1 tokens");
  refused(types({7}), "tokenizer.ggml.token_type of token 0 is 7; supported: 1 to 6");
  refused(types({-1}), "tokenizer.ggml.token_type of token 0 is -1");
  const auto merges = [&](const std::string& merge) {
    return [&start, merge](GgufWriter& w) {
      start(w, {"a", "b", "ab", "ba"});
      w.AddInts("tokenizer.ggml.token_type", {1, 1, 1, 3});
      w.AddStrings("tokenizer.ggml.merges", {"a b", merge});
    };
  };
  refused(merges("ab"), "tokenizer.ggml.merges entry 1 (ab) is not two symbols");
  refused(merges(""), "entry 1 () is not two symbols");
  refused(merges("a c"), "entry 1 (a c) has a part or result that is not an ordinary token");
  refused(merges("a a"), "entry 1 (a a) has a part or result");
  refused(merges("b a"), "entry 1 (b a) has a part or result");
  refused(
      [&](GgufWriter& w) {
        start(w, {"a"});
        w.AddStrings("tokenizer.ggml.merges", {});
        w.AddUint32("tokenizer.ggml.eos_token_id", 1);
      },
      "tokenizer.ggml.eos_token_id is 1, but the vocabulary has 1 tokens");
  refused(
      [&](GgufWriter& w) {
        start(w, {std::string(257, 'x')});
        w.AddInts("tokenizer.ggml.token_type", {3});
      },
      "special token 0 is 257 bytes long; supported: at most 256");
}

}  // namespace
}  // namespace ringfill
