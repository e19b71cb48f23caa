#include "engine/model/special_tokens.h"

#include <string>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

TEST(SpecialTokens, LeftmostThenLongest) {
  SpecialTokens tokens;
  tokens.Add("<a>", 1, false);
  tokens.Add("<a><b", 2, false);
  tokens.Add("b>", 3, false);
  const SpecialTokens::Match first = tokens.Find("x<a><b>", 0, true);
  EXPECT_EQ(first.id, 2);
  EXPECT_EQ(first.begin, 1u);
  EXPECT_EQ(first.length, 5u);
  EXPECT_EQ(tokens.Find("x<a><b>", 2, true).id, 3);
  EXPECT_EQ(tokens.Find("<a><c", 0, true).id, 1);
  EXPECT_EQ(tokens.Find("<<a", 0, true).length, 0u);
  EXPECT_EQ(tokens.Find("", 0, true).length, 0u);
}

TEST(SpecialTokens, WithoutParsingOnlyTheOnesMarkedAlways) {
  SpecialTokens tokens;
  tokens.Add("<t>", 1, true);
  tokens.Add("<t>x", 2, false);
  tokens.Add("[c]", 3, false);
  EXPECT_EQ(tokens.Find("[c]<t>x", 0, true).id, 3);
  const SpecialTokens::Match match = tokens.Find("[c]<t>x", 0, false);
  EXPECT_EQ(match.id, 1);
  EXPECT_EQ(match.begin, 3u);
  EXPECT_EQ(match.length, 3u);
}

TEST(SpecialTokens, TheFirstOfEqualTextsCounts) {
  SpecialTokens tokens;
  tokens.Add("<t>", 1, false);
  tokens.Add("<t>", 2, true);
  EXPECT_EQ(tokens.Find("<t>", 0, true).id, 1);
  EXPECT_EQ(tokens.Find("<t>", 0, false).length, 0u);
}

}  // namespace
}  // namespace ringfill
