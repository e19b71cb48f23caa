// Texts that make careless tokenizers slow, deep or wrong.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringfill {

struct HostileText {
  std::string name;
  std::string bytes;
  bool valid_utf8 = true;
};

// Each of about `size` bytes, in the same order for every size.
inline std::vector<HostileText> HostileTexts(size_t size) {
  const auto repeat = [&](std::string_view part, std::string_view end = {}) {
    std::string text;
    while (text.size() < size) text.append(part);
    return text.append(end);
  };
  std::vector<HostileText> texts = {
      {"one letter", repeat("a")},
      {"spaces", repeat(" ")},
      {"spaces before a letter", repeat(" ", "x")},
      {"newlines", repeat("\n")},
      {"spaces and a newline", repeat(" ", "\n")},
      {"spaces, newlines", repeat(" \n")},
      {"spaces, letter", repeat("   x")},
      {"tabs, digits", repeat("\t1")},
      {"digits", repeat("1")},
      {"letters and digits", repeat("aA1 ")},
      {"no break spaces", repeat("\u00a0")},
      {"wide letters", repeat("\u4e2d")},
      {"combining marks", repeat("\u0301")},
      {"family emoji", repeat("\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466")},
      {"apostrophes", repeat("'")},
      {"contractions", repeat("'ll")},
      {"punctuation", repeat("!?")},
      {"punctuation then newlines", repeat("!").append(repeat("\n"))},
      {"special tokens", repeat("<|im_start|>")},
      {"cut special tokens", repeat("<|im_start|")},
      {"less than", repeat("<")},
      {"controls", repeat(std::string_view("\0\x01\x7f", 3))},
      {"invalid", repeat("\xff"), false},
      {"cut characters", repeat("\xf0\x9f\x98"), false},
      {"invalid between letters", repeat("a\x80"), false},
      {"surrogates", repeat("\xed\xa0\x80"), false},
  };
  return texts;
}

}  // namespace ringfill
