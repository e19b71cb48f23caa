#include <random>
#include <string>
#include <vector>

#include "engine/model/quote.h"
#include "engine/model/tokenizer.h"
#include "engine/model/utf8.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

constexpr char kFffd[] = "\xef\xbf\xbd";

class Detokenizer : public ::testing::Test {
 protected:
  Detokenizer() {
    GgufWriter writer;
    AddTinyTokenizer(TinyModelOptions(), writer);
    const std::vector<std::byte> bytes = writer.Build();
    auto made = Tokenizer::FromGguf(**GgufFile::Parse(bytes, "x.gguf"));
    EXPECT_TRUE(made.ok());
    tokenizer_ = *std::move(made);
  }

  static TokenId Byte(int byte) { return kTinySpecialTokens + byte; }

  std::unique_ptr<Tokenizer> tokenizer_;
};

// Takes all of `bytes`, then what is left as in a flush.
std::string Clean(std::string bytes, size_t* left = nullptr) {
  std::string text = TakeCompleteUtf8(bytes);
  if (left != nullptr) *left = bytes.size();
  return text;
}

TEST(TakeCompleteUtf8, KeepsTheIncompleteEnd) {
  for (const std::string whole : {"\u00e9", "\u20ac", "\U0001f600"}) {
    for (size_t cut = 1; cut < whole.size(); ++cut) {
      std::string bytes = "ab" + whole.substr(0, cut);
      EXPECT_EQ(TakeCompleteUtf8(bytes), "ab");
      EXPECT_EQ(bytes, whole.substr(0, cut));
      bytes += whole.substr(cut);
      EXPECT_EQ(TakeCompleteUtf8(bytes), whole);
      EXPECT_EQ(bytes, "");
    }
  }
}

// The examples of Unicode 15, section 3.9, tables 3-8 to 3-11.
TEST(TakeCompleteUtf8, OneReplacementForEachMaximalSubpart) {
  const std::string f = kFffd;
  EXPECT_EQ(Clean("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), f + f + f + f + f + f + f + f + "A");
  EXPECT_EQ(Clean("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), f + f + f + f + f + f + f + f + "A");
  EXPECT_EQ(Clean("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), f + f + f + f + f + "A" + f + f + "B");
  EXPECT_EQ(Clean("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), f + f + f + f + "A");
  size_t left = 0;
  EXPECT_EQ(Clean("\x80\xf0\x90", &left), f);
  EXPECT_EQ(left, 2u);
}

TEST(TakeCompleteUtf8, OutputIsAlwaysValidAndValidTextIsKept) {
  std::mt19937 random(2);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (uint32_t n = random() % 30; n > 0; --n) {
      const char* parts[] = {"a", "\u00e9", "\u20ac", "\U0001f600", "\xf0\x9f", "\xe2", "\x80"};
      bytes += parts[random() % std::size(parts)];
    }
    const bool valid = ValidUtf8Prefix(bytes) == bytes.size();
    std::string rest = bytes;
    const std::string text = TakeCompleteUtf8(rest);
    EXPECT_EQ(ValidUtf8Prefix(text), text.size());
    EXPECT_LE(rest.size(), 3u);
    if (valid) {
      EXPECT_EQ(text, bytes);
    }
  }
}

TEST_F(Detokenizer, NeverEmitsHalfACharacter) {
  const std::string text = "a\u00e9\u20ac\U0001f468\u200d\U0001f469z";
  StreamingDetokenizer stream(*tokenizer_);
  std::string out;
  for (char c : text) {
    const std::string part = stream.Push(Byte(static_cast<unsigned char>(c)));
    EXPECT_EQ(ValidUtf8Prefix(part), part.size());
    out += part;
  }
  EXPECT_EQ(out, text);
  EXPECT_EQ(stream.Flush(), "");
}

TEST_F(Detokenizer, ReplacesWhatCannotBecomeACharacter) {
  StreamingDetokenizer stream(*tokenizer_);
  EXPECT_EQ(stream.Push(Byte(0xe2)), "");
  EXPECT_EQ(stream.Push(Byte(0x82)), "");
  EXPECT_EQ(stream.Push(Byte('x')), std::string(kFffd) + "x");
  EXPECT_EQ(stream.Push(Byte(0xff)), kFffd);
  EXPECT_EQ(stream.Push(Byte(0xf0)), "");
  EXPECT_EQ(stream.Push(Byte(0x9f)), "");
  EXPECT_EQ(stream.Flush(), kFffd);
  EXPECT_EQ(stream.Flush(), "");
}

TEST_F(Detokenizer, SpecialAndUnusedTokensAddNothing) {
  StreamingDetokenizer stream(*tokenizer_);
  EXPECT_EQ(stream.Push(kTinyImStart), "");
  EXPECT_EQ(stream.Push(Byte(0xc3)), "");
  EXPECT_EQ(stream.Push(kTinyImEnd), "");
  EXPECT_EQ(stream.Push(static_cast<TokenId>(tokenizer_->vocab_size()) - 1), "");
  EXPECT_EQ(stream.Push(Byte(0xa9)), "\u00e9");
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(Printable("blk.0"), "blk.0");
  EXPECT_EQ(Printable("a\tb\u00e9"), "a\\tb\u00e9");
  EXPECT_EQ(Printable("\xff\xe2\x82"), "\\xff\\xe2\\x82");
  EXPECT_EQ(Printable(std::string(100, 'x')), std::string(80, 'x') + "...");
}

}  // namespace
}  // namespace ringfill
