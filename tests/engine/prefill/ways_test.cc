// Every mode, strategy and layout over any number of ranks against the plain reference.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;
constexpr RingStrategy kStrategies[] = {RingStrategy::kPassKv, RingStrategy::kGatherKv,
                                        RingStrategy::kPassQ, RingStrategy::kOrdered};
constexpr TokenMode kShardedModes[] = {TokenMode::kHome, TokenMode::kDealt};

struct Layout {
  std::string name;
  PlacementSpec spec;
};

std::vector<Layout> Layouts(int n, int64_t tokens) {
  std::vector<Layout> out{{"snake", SnakeSpec(n, 2 * kPage)},
                          {"contiguous", ContiguousSpec(n, tokens, kPage)},
                          {"zigzag", ZigzagSpec(n, tokens, kPage)},
                          {"token stripes", TokenStripesSpec(n)},
                          {"stripes that cut pages", SnakeSpec(n, 24)},
                          {"one rank has all", {kPage, {n - 1}}}};
  if (n > 2) out.push_back({"uneven, one rank has none", {kPage, {0, n - 1, 0, 0}}});
  return out;
}

bool Fits(const PlacementSpec& spec, RingStrategy strategy) {
  return strategy != RingStrategy::kOrdered || spec.stripe_tokens % kPage == 0;
}

class WaysTest : public testing::TestWithParam<int> {};

TEST_P(WaysTest, EveryPositionMatchesTheReference) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  for (const Layout& layout : Layouts(n, 211)) {
    for (const RingStrategy strategy : kStrategies) {
      if (!Fits(layout.spec, strategy)) continue;
      for (const TokenMode mode : kShardedModes) {
        SCOPED_TRACE(absl::StrCat(layout.name, ", ", std::string(RingStrategyName(strategy)), ", ",
                                  mode == TokenMode::kHome ? "home" : "dealt"));
        RingHarness::Sequence& prompt = ring.AddSequence(text.Prefix(211), layout.spec);
        StepPlan first = ring.NewPlan();
        ScoreAll(prompt.tokens, ring.AddChunk(first, prompt, {{0, 77}}, mode, strategy));
        const auto first_results = ring.Run(first);
        ExpectScores(text, first, 0, first_results);
        const auto logits = ring.Logits(first_results);
        ASSERT_EQ(logits.size(), 1u);
        ExpectLogitsNear(logits[0], text.logits[76]);
        // Only the last position is asked for: most rows sit out the last layer.
        StepPlan second = ring.NewPlan();
        ring.AddChunk(second, prompt, {{77, 211}}, mode, strategy);
        const auto last = ring.Logits(ring.Run(second));
        ASSERT_EQ(last.size(), 1u);
        ExpectLogitsNear(last[0], text.logits[210]);
        // And decode finds all of it.
        StepPlan third = ring.NewPlan();
        ring.AddDecode(third, prompt, 210);
        const auto decoded = ring.Logits(ring.Run(third));
        ASSERT_EQ(decoded.size(), 1u);
        ExpectLogitsNear(decoded[0], text.logits[210]);
        ring.Release(prompt);
      }
    }
  }
}

TEST_P(WaysTest, SuffixesOverCachedPrefixesOfEveryResidue) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  const int64_t suffixes[] = {1, 2, 2 * n - 1, 2 * n + 1, 40};
  int turn = 0;
  for (int64_t prefix = 1; prefix <= 2 * 2 * kPage; ++prefix) {
    for (const RingStrategy strategy : kStrategies) {
      const int64_t suffix = suffixes[turn++ % 5];
      const TokenMode mode = kShardedModes[(turn / 5) % 2];
      SCOPED_TRACE(
          absl::StrCat(suffix, " over ", prefix, ", ", std::string(RingStrategyName(strategy))));
      RingHarness::Sequence& prompt =
          ring.AddSequence(text.Prefix(prefix + suffix), SnakeSpec(n, 2 * kPage));
      StepPlan cold = ring.NewPlan();
      ring.AddChunk(cold, prompt, {{0, prefix}}, TokenMode::kHome, RingStrategy::kPassKv)
          .wants_logits = false;
      EXPECT_TRUE(ring.Logits(ring.Run(cold)).empty());
      StepPlan plan = ring.NewPlan();
      ScoreAll(text.text, ring.AddChunk(plan, prompt, {{prefix, prefix + suffix}}, mode, strategy));
      ExpectScores(text, plan, 0, ring.Run(plan));
      ring.Release(prompt);
    }
  }
}

TEST_P(WaysTest, HolesAreFilledFromWhatSurvives) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  for (const RingStrategy strategy : kStrategies) {
    for (const TokenMode mode : kShardedModes) {
      SCOPED_TRACE(std::string(RingStrategyName(strategy)));
      RingHarness::Sequence& prompt = ring.AddSequence(text.Prefix(230), SnakeSpec(n, 2 * kPage));
      StepPlan cold = ring.NewPlan();
      ring.AddChunk(cold, prompt, {{0, 220}}, TokenMode::kHome, RingStrategy::kPassKv);
      ring.Run(cold);
      // Lose two stripes' pages and one page of a third.
      StepPlan plan = ring.NewPlan();
      std::vector<Span> lost{{32, 64}, {80, 96}, {128, 160}};
      ring.LosePages(plan, prompt, lost);
      lost.push_back({220, 230});
      ScoreAll(text.text, ring.AddChunk(plan, prompt, lost, mode, strategy));
      const auto results = ring.RunEach(std::vector<StepPlan>(static_cast<size_t>(n), plan));
      ExpectScores(text, plan, 0, results);
      // The pages are whole again.
      StepPlan decode = ring.NewPlan();
      ring.AddDecode(decode, prompt, 229);
      const auto logits = ring.Logits(ring.Run(decode));
      ASSERT_EQ(logits.size(), 1u);
      ExpectLogitsNear(logits[0], text.logits[229]);
      ring.Release(prompt);
    }
  }
}

TEST_P(WaysTest, PackedPromptsOfAllModesDoNotSeeEachOther) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  const std::vector<Layout> layouts = Layouts(n, 128);
  StepPlan plan = ring.NewPlan();
  std::vector<int64_t> ends;
  std::vector<int64_t> decodes;
  StepPlan before = ring.NewPlan();
  int i = 0;
  for (const int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 130, 1, 3, 90, 5}) {
    // Different texts, so that a look at a neighbour shows: each begins at its own cached prefix.
    const int64_t prefix = (7 * i) % 50;
    const Layout& layout = layouts[static_cast<size_t>(i) % 3];
    const RingHarness::Sequence& prompt =
        ring.AddSequence(text.Prefix(prefix + length), layout.spec);
    if (prefix > 0) {
      ring.AddChunk(before, prompt, {{0, prefix}}, TokenMode::kHome, RingStrategy::kGatherKv)
          .wants_logits = false;
    }
    const RingStrategy strategy = kStrategies[i % 4];
    ring.AddChunk(plan, prompt, {{prefix, prefix + length}},
                  static_cast<TokenMode>(i % kTokenModes), strategy)
        .wants_logits = i % 5 != 0;
    if (i % 5 != 0) ends.push_back(prefix + length);
    ++i;
  }
  for (const int64_t length : {1, 40, 100}) {
    const RingHarness::Sequence& prompt =
        ring.AddSequence(text.Prefix(length + 1), layouts[3].spec);
    ring.AddChunk(before, prompt, {{0, length}}, TokenMode::kDealt, RingStrategy::kPassQ)
        .wants_logits = false;
    ring.AddDecode(plan, prompt, length);
    decodes.push_back(length);
  }
  EXPECT_TRUE(ring.Logits(ring.Run(before)).empty());
  const auto logits = ring.Logits(ring.Run(plan));
  ASSERT_EQ(logits.size(), ends.size() + decodes.size());
  for (size_t c = 0; c < ends.size(); ++c) {
    SCOPED_TRACE(c);
    ExpectLogitsNear(logits[c], text.logits[static_cast<size_t>(ends[c] - 1)]);
  }
  for (size_t d = 0; d < decodes.size(); ++d) {
    ExpectLogitsNear(logits[ends.size() + d], text.logits[static_cast<size_t>(decodes[d])]);
  }
}

TEST_P(WaysTest, LongAndShortPromptsTogetherGiveWhatOneRankGives) {
  const PassTestModel& text = TinyText();
  const int lengths[] = {5000, 1, 33, 1000, 4, 2};
  auto run = [&](int n, bool mixed) {
    RingHarness ring(text.model, {.ranks = n, .pages_per_rank = 512});
    StepPlan plan = ring.NewPlan();
    int i = 0;
    for (const int length : lengths) {
      const auto& prompt = ring.AddSequence(
          RandomTokens(static_cast<size_t>(length), text.model->config().vocab, 70 + i),
          SnakeSpec(n, 2 * kPage));
      ring.AddChunk(plan, prompt, {{0, length}}, mixed ? kShardedModes[i % 2] : TokenMode::kHome,
                    mixed ? kStrategies[i % 4] : RingStrategy::kPassKv);
      ++i;
    }
    return ring.Logits(ring.Run(plan));
  };
  const auto expected = run(1, false);
  const auto got = run(GetParam(), true);
  ASSERT_EQ(got.size(), std::size(lengths));
  for (size_t i = 0; i < got.size(); ++i) ExpectLogitsNear(got[i], expected[i]);
}

TEST_P(WaysTest, GatherFallsBackToTheRingWhenShardsAreTooLarge) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n, .gather_bytes = 1000});
  const RingHarness::Sequence& prompt = ring.AddSequence(text.Prefix(100), SnakeSpec(n, kPage));
  StepPlan plan = ring.NewPlan();
  ring.AddChunk(plan, prompt, {{0, 100}}, TokenMode::kHome, RingStrategy::kGatherKv);
  const auto logits = ring.Logits(ring.Run(plan));
  ASSERT_EQ(logits.size(), 1u);
  ExpectLogitsNear(logits[0], text.logits[99]);
  for (const Device::MemoryUse& use : ring.rank(0).device().Memory()) {
    EXPECT_NE(use.what, "gathered shards");
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, WaysTest, testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace ringfill
