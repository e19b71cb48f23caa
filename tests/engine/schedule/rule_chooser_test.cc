#include "engine/schedule/rule_chooser.h"

#include "gtest/gtest.h"

namespace ringfill {
namespace {

PrefillChunk Chunk(int64_t tokens, int64_t begin = 0) {
  PrefillChunk chunk;
  chunk.spans = {{begin, begin + tokens}};
  chunk.tokens.resize(static_cast<size_t>(tokens));
  return chunk;
}

TEST(RuleChooserTest, ModeFollowsTheChunksSize) {
  const RuleChooser chooser;
  const PlacementSpec placement = {64, {}};
  const auto mode = [&](int64_t tokens, int ranks) {
    return chooser.Choose(Chunk(tokens, 8192), placement, ranks).mode;
  };
  EXPECT_EQ(mode(1, 4), TokenMode::kReplicated);
  EXPECT_EQ(mode(32, 4), TokenMode::kReplicated);
  EXPECT_EQ(mode(33, 4), TokenMode::kDealt);
  EXPECT_EQ(mode(2047, 4), TokenMode::kDealt);
  EXPECT_EQ(mode(2048, 4), TokenMode::kHome);
  EXPECT_EQ(mode(33, 1), TokenMode::kHome);
}

TEST(RuleChooserTest, ReplicatedChunksHaveABound) {
  const RuleChooser chooser(100000);
  EXPECT_EQ(chooser.Choose(Chunk(256), {64, {}}, 2).mode, TokenMode::kReplicated);
  EXPECT_EQ(chooser.Choose(Chunk(257), {64, {}}, 2).mode, TokenMode::kDealt);
}

TEST(ForcedChooserTest, ForcesWhatIsSetOnly) {
  const RuleChooser rule;
  const PlacementSpec placement = {64, {}};
  EXPECT_EQ(ForcedChooser({}, {}, rule).Choose(Chunk(10), placement, 2),
            rule.Choose(Chunk(10), placement, 2));
  EXPECT_EQ(ForcedChooser(TokenMode::kHome, {}, rule).Choose(Chunk(10), placement, 2),
            (Way{TokenMode::kHome, RingStrategy::kPassKv}));
  EXPECT_EQ(ForcedChooser({}, RingStrategy::kPassQ, rule).Choose(Chunk(10), placement, 2),
            (Way{TokenMode::kReplicated, RingStrategy::kPassQ}));
  EXPECT_EQ(ForcedChooser(TokenMode::kDealt, RingStrategy::kGatherKv, rule)
                .Choose(Chunk(10), placement, 2),
            (Way{TokenMode::kDealt, RingStrategy::kGatherKv}));
}

}  // namespace
}  // namespace ringfill
