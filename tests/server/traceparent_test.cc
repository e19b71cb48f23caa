#include "server/trace/traceparent.h"

#include <string>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kParent[] = "b7ad6b7169203331";
const std::string kGood = std::string("00-") + kTrace + "-" + kParent + "-01";

TEST(TraceparentTest, IsTakenApart) {
  const auto got = ParseTraceparent(kGood);
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->trace_id, kTrace);
  EXPECT_EQ(got->parent_id, kParent);
  EXPECT_TRUE(got->sampled);
  EXPECT_EQ(got->Text(), kGood);
}

TEST(TraceparentTest, OnlyTheLowestFlagSaysSampled) {
  const std::string stem = kGood.substr(0, kGood.size() - 2);
  EXPECT_FALSE(ParseTraceparent(stem + "00")->sampled);
  EXPECT_FALSE(ParseTraceparent(stem + "fe")->sampled);
  EXPECT_TRUE(ParseTraceparent(stem + "ff")->sampled);
}

TEST(TraceparentTest, LaterVersionsMayHaveMore) {
  const std::string later = "cc" + kGood.substr(2);
  EXPECT_EQ(ParseTraceparent(later)->Text(), kGood);
  EXPECT_EQ(ParseTraceparent(later + "-what-comes")->Text(), kGood);
  EXPECT_FALSE(ParseTraceparent(later + ".what").has_value());
  EXPECT_FALSE(ParseTraceparent(kGood + "-what-comes").has_value());
}

TEST(TraceparentTest, BadOnesAreIgnored) {
  for (size_t cut = 0; cut < kGood.size(); ++cut) {
    EXPECT_FALSE(ParseTraceparent(kGood.substr(0, cut)).has_value()) << cut;
  }
  for (size_t i = 0; i < kGood.size(); ++i) {
    for (const char bad : {'G', 'A', '-', ' ', '"', '\0', '\xff'}) {
      if (kGood[i] == bad) continue;
      std::string text = kGood;
      text[i] = bad;
      EXPECT_FALSE(ParseTraceparent(text).has_value()) << text;
    }
  }
  const std::string zero_trace = std::string("00-") + std::string(32, '0') + "-" + kParent + "-01";
  const std::string zero_parent = std::string("00-") + kTrace + "-" + std::string(16, '0') + "-01";
  for (const std::string& text : {"ff" + kGood.substr(2), zero_trace, zero_parent, kGood + "0"}) {
    EXPECT_FALSE(ParseTraceparent(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace ringfill
