#include "engine/request/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace ringfill {
namespace {

struct Outcome {
  std::string text;
  bool matched = false;
  std::string stop;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << '"' << o.text << "\" " << (o.matched ? "stopped by \"" + o.stop + '"' : "flushed");
}

// Feeds the pieces until one completes a stop string, flushes otherwise.
Outcome Feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    const StopMatcher::Result result = matcher.Push(piece);
    outcome.text += result.text;
    if (result.matched) {
      outcome.matched = true;
      outcome.stop = result.stop;
      return outcome;
    }
  }
  outcome.text += matcher.Flush();
  return outcome;
}

// The contract, naively: after each piece look at all text so far.
Outcome Naive(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  Outcome outcome;
  std::string text;
  for (const std::string& piece : pieces) {
    text += piece;
    size_t best = std::string::npos;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos || at > best) continue;
      if (at == best && stop.size() < outcome.stop.size()) continue;
      best = at;
      outcome = {text.substr(0, at), true, stop};
    }
    if (outcome.matched) return outcome;
  }
  return {text, false, ""};
}

std::vector<std::string> Cut(const std::string& text, unsigned mask) {
  std::vector<std::string> pieces = {""};
  for (size_t i = 0; i < text.size(); ++i) {
    if (i > 0 && (mask >> (i - 1)) & 1) pieces.emplace_back();
    pieces.back() += text[i];
  }
  return pieces;
}

TEST(StopMatcherTest, EverySplitOfATextGivesTheSameText) {
  const struct {
    std::vector<std::string> stops;
    std::string text;
    Outcome expected;
  } cases[] = {
      {{"aab"}, "xaaabyy", {"xa", true, "aab"}},
      {{"abab"}, "abaabab!", {"aba", true, "abab"}},
      {{"END"}, "no EN end", {"no EN end", false, ""}},
      {{"END"}, "the EEND", {"the E", true, "END"}},
      {{"\n\n"}, "a\nb\n\nc", {"a\nb", true, "\n\n"}},
      {{"foo", "bar"}, "fobarfoo", {"fo", true, "bar"}},
      {{"</s>", "<|im|>"}, "<<|im<|im|>", {"<<|im", true, "<|im|>"}},
      {{"\xf0\x9f\x98\x80"},
       "a\xf0\x9f\x98\x81\xf0\x9f\x98\x80",
       {"a\xf0\x9f\x98\x81", true, "\xf0\x9f\x98\x80"}},
      {{}, "anything", {"anything", false, ""}},
  };
  for (const auto& c : cases) {
    for (unsigned mask = 0; mask < 1u << (c.text.size() - 1); ++mask) {
      ASSERT_EQ(Feed(c.stops, Cut(c.text, mask)), c.expected) << c.text << " cut by " << mask;
    }
  }
}

TEST(StopMatcherTest, OfThoseBeginningTogetherTheLonger) {
  EXPECT_EQ(Feed({"ab", "abc"}, {"xabcd"}), (Outcome{"x", true, "abc"}));
  EXPECT_EQ(Feed({"abc", "ab"}, {"xabcd"}), (Outcome{"x", true, "abc"}));
  EXPECT_EQ(Feed({"ab", "abc"}, {"xab", "cd"}), (Outcome{"x", true, "ab"}));
}

TEST(StopMatcherTest, TheOneThatBeginsFirst) {
  EXPECT_EQ(Feed({"cd", "bc"}, {"abcd"}), (Outcome{"a", true, "bc"}));
  EXPECT_EQ(Feed({"c", "bcd"}, {"abcd"}), (Outcome{"a", true, "bcd"}));
  EXPECT_EQ(Feed({"b", "a"}, {"xxba"}), (Outcome{"xx", true, "b"}));
}

TEST(StopMatcherTest, HoldsBackOnlyWhatCanBecomeAStop) {
  StopMatcher matcher({"stop", "top!"});
  EXPECT_EQ(matcher.Push("please s").text, "please ");
  EXPECT_EQ(matcher.Push("to").text, "");
  EXPECT_EQ(matcher.Push("p").matched, true);

  StopMatcher other({"stop!", "top?"});
  EXPECT_EQ(other.Push("stop").text, "");
  EXPECT_EQ(other.Push("s").text, "stop");
  EXPECT_EQ(other.Push("top").text, "");
  EXPECT_EQ(other.Flush(), "stop");
  EXPECT_EQ(other.Flush(), "");
}

TEST(StopMatcherTest, StartsAnewAfterAMatch) {
  StopMatcher matcher({"ab"});
  EXPECT_TRUE(matcher.Push("xab and a").matched);
  const StopMatcher::Result next = matcher.Push("b");
  EXPECT_FALSE(next.matched);
  EXPECT_EQ(next.text, "b");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, RandomTextsAgreeWithTheNaiveSearch) {
  std::mt19937 random(11);
  const auto word = [&](size_t max) {
    std::string s(1 + random() % max, 'a');
    for (char& c : s) c = static_cast<char>('a' + random() % 2);
    return s;
  };
  int matches = 0;
  for (int round = 0; round < 6000; ++round) {
    std::vector<std::string> stops(random() % 5);
    for (std::string& stop : stops) stop = word(7);
    std::vector<std::string> pieces(1 + random() % 8);
    for (std::string& piece : pieces) piece = random() % 6 == 0 ? "" : word(6);
    const Outcome outcome = Feed(stops, pieces);
    ASSERT_EQ(outcome, Naive(stops, pieces)) << "round " << round;
    matches += outcome.matched;
  }
  EXPECT_GT(matches, 1500);
  EXPECT_LT(matches, 5700);
}

// One stop string: text and stop do not depend on the cut at all.
TEST(StopMatcherTest, OneStopStringIsFoundWhereverTheTextIsCut) {
  std::mt19937 random(12);
  for (int round = 0; round < 2000; ++round) {
    std::string stop(1 + random() % 6, 'a'), text(1 + random() % 24, 'a');
    for (char& c : stop) c = static_cast<char>('a' + random() % 2);
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    ASSERT_EQ(Feed({stop}, Cut(text, random())), Feed({stop}, {text})) << stop << " in " << text;
  }
}

TEST(StopMatcherTest, AMegabyteOfNearMissesIsLinear) {
  const std::string near_miss = std::string(1023, 'a') + "b";
  std::vector<std::string> stops = {near_miss};
  for (int i = 1; i < 16; ++i) stops.push_back(std::string(1023 - i, 'a') + "c");
  const struct {
    int64_t bytes, piece;
  } cases[] = {{1 << 20, 1 << 20}, {1 << 20, 97}, {1 << 16, 1}};
  for (const auto& [bytes, piece] : cases) {
    StopMatcher matcher(stops);
    int64_t released = 0;
    for (int64_t sent = 0; sent < bytes; sent += piece) {
      const std::string text(std::min<int64_t>(piece, bytes - sent), 'a');
      const StopMatcher::Result result = matcher.Push(text);
      ASSERT_FALSE(result.matched);
      released += static_cast<int64_t>(result.text.size());
    }
    EXPECT_EQ(released, bytes - 1023);
    EXPECT_LE(matcher.steps(), 2 * bytes);
    const StopMatcher::Result end = matcher.Push("b");
    EXPECT_TRUE(end.matched);
    EXPECT_EQ(end.stop, near_miss);
    EXPECT_EQ(end.text, "");
  }
}

}  // namespace
}  // namespace ringfill
