#include "engine/model/pre_tokenizer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/model/hostile_text.h"

namespace ringfill {
namespace {

using ::testing::ElementsAre;

constexpr PreTokenizerKind kKinds[] = {PreTokenizerKind::kGpt2, PreTokenizerKind::kSmollm,
                                       PreTokenizerKind::kLlama3, PreTokenizerKind::kQwen2};

std::vector<std::string> Split(PreTokenizerKind kind, std::string_view text, bool jit = true) {
  const auto pre_tokenizer = PreTokenizer::Create(kind, {.jit = jit});
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  WordScan scan(**pre_tokenizer);
  scan.Start(text);
  std::vector<std::string> words;
  while (true) {
    const auto word = scan.Next();
    EXPECT_TRUE(word.ok()) << word.status();
    if (!word.ok() || word->empty()) return words;
    words.emplace_back(*word);
  }
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_THAT(Split(PreTokenizerKind::kGpt2, "We'll  pay $12.50, IT'S \n\n ok "),
              ElementsAre("We", "'ll", " ", " pay", " $", "12", ".", "50", ",", " IT", "'", "S",
                          " \n\n", " ok", " "));
}

TEST(PreTokenizer, SmollmCutsDigitsFirst) {
  EXPECT_THAT(Split(PreTokenizerKind::kSmollm, "a  12 x\t3'm"),
              ElementsAre("a", "  ", "1", "2", " x", "\t", "3", "'m"));
  EXPECT_THAT(Split(PreTokenizerKind::kSmollm, "\u00bd\u0663 \u2167"),
              ElementsAre("\u00bd", "\u0663", " ", "\u2167"));
}

TEST(PreTokenizer, Llama3) {
  EXPECT_THAT(Split(PreTokenizerKind::kLlama3, "IT'S (ok)\n\nx 12345 \r\n  y!\n"),
              ElementsAre("IT", "'S", " (", "ok", ")\n\n", "x", " ", "123", "45", " \r\n", " ",
                          " y", "!\n"));
}

TEST(PreTokenizer, Llama3TakesContractionsInAnyCase) {
  // U+017F, the long s, is an s in any case.
  EXPECT_THAT(Split(PreTokenizerKind::kLlama3, "'SX'sx'\u017fx'lLx'Mx'x"),
              ElementsAre("'S", "X", "'s", "x", "'\u017f", "x", "'lL", "x", "'M", "x", "'x"));
  EXPECT_THAT(Split(PreTokenizerKind::kGpt2, "'SX'sx"), ElementsAre("'", "SX", "'s", "x"));
}

TEST(PreTokenizer, Qwen2TakesDigitsOneByOne) {
  EXPECT_THAT(Split(PreTokenizerKind::kQwen2, "x 123.4"),
              ElementsAre("x", " ", "1", "2", "3", ".", "4"));
}

TEST(PreTokenizer, WhiteSpaceIsUnicodes) {
  // U+180E has not been white space since Unicode 6.3; U+3000 and U+0085 are.
  EXPECT_THAT(Split(PreTokenizerKind::kGpt2, "a\u180e\u3000\u0085b"),
              ElementsAre("a", "\u180e", "\u3000", "\u0085", "b"));
}

TEST(PreTokenizer, WordsCoverTheTextWithAndWithoutJit) {
  for (PreTokenizerKind kind : kKinds) {
    for (const HostileText& text : HostileTexts(1 << 12)) {
      if (!text.valid_utf8) continue;
      std::string joined;
      const std::vector<std::string> words = Split(kind, text.bytes);
      for (const std::string& word : words) joined += word;
      EXPECT_EQ(joined, text.bytes) << text.name;
      EXPECT_EQ(words, Split(kind, text.bytes, false)) << text.name;
    }
  }
}

// Steps are counted, not timed: a text of twice the length must not take more than about twice.
TEST(PreTokenizer, WorkIsLinearInTheText) {
  for (PreTokenizerKind kind : kKinds) {
    const auto pre_tokenizer = PreTokenizer::Create(kind, {.count_steps = true});
    ASSERT_TRUE(pre_tokenizer.ok());
    const auto steps = [&](const std::string& text) {
      WordScan scan(**pre_tokenizer);
      scan.Start(text);
      while (true) {
        const auto word = scan.Next();
        EXPECT_TRUE(word.ok()) << word.status();
        if (!word.ok() || word->empty()) return scan.steps();
      }
    };
    const std::vector<HostileText> once = HostileTexts(1 << 14), twice = HostileTexts(1 << 15);
    for (size_t i = 0; i < once.size(); ++i) {
      if (!once[i].valid_utf8) continue;
      const uint64_t steps_once = steps(once[i].bytes), steps_twice = steps(twice[i].bytes);
      EXPECT_LE(steps_twice, 2.2 * static_cast<double>(steps_once) + 100) << once[i].name;
      EXPECT_LE(steps_twice, 40 * twice[i].bytes.size()) << once[i].name;
    }
  }
}

}  // namespace
}  // namespace ringfill
