// The passes on streams that run their work as late as they may, in an order that a seed decides.
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;
constexpr uint64_t kSeeds = 50;
constexpr RingStrategy kStrategies[] = {RingStrategy::kPassKv, RingStrategy::kGatherKv,
                                        RingStrategy::kPassQ, RingStrategy::kOrdered};

class LateSeedTest : public testing::TestWithParam<std::tuple<RingStrategy, uint64_t>> {};

TEST_P(LateSeedTest, NothingIsReadEarly) {
  const auto [strategy, seed] = GetParam();
  const PassTestModel& text = TinyText();
  const int n = 2 + static_cast<int>(seed % 3);
  SCOPED_TRACE(absl::StrCat("seed ", seed, ", ranks ", n));
  RingHarness ring(text.model, {.ranks = n, .late_seed = seed});
  const auto& first = ring.AddSequence(text.Prefix(150), SnakeSpec(n, 2 * kPage));
  const auto& second = ring.AddSequence(text.Prefix(61), SnakeSpec(n, kPage));
  StepPlan cold = ring.NewPlan();
  ScoreAll(text.text, ring.AddChunk(cold, first, {{0, 100}}, TokenMode::kHome, strategy));
  ring.AddChunk(cold, second, {{0, 50}}, TokenMode::kDealt, strategy);
  const auto results = ring.Run(cold);
  ExpectScores(text, cold, 0, results);
  StepPlan warm = ring.NewPlan();
  ring.AddChunk(warm, first, {{100, 149}}, TokenMode::kDealt, strategy);
  ring.AddChunk(warm, second, {{50, 61}}, TokenMode::kReplicated, strategy);
  const auto logits = ring.Logits(ring.Run(warm));
  ASSERT_EQ(logits.size(), 2u);
  ExpectLogitsNear(logits[0], text.logits[148]);
  ExpectLogitsNear(logits[1], text.logits[60]);
  StepPlan decode = ring.NewPlan();
  ring.AddDecode(decode, first, 149);
  const auto next = ring.Logits(ring.Run(decode));
  ASSERT_EQ(next.size(), 1u);
  ExpectLogitsNear(next[0], text.logits[149]);
}

INSTANTIATE_TEST_SUITE_P(Seeds, LateSeedTest,
                         testing::Combine(testing::ValuesIn(kStrategies),
                                          testing::Range<uint64_t>(1, kSeeds + 1)),
                         [](const auto& info) {
                           return absl::StrCat("strategy",
                                               static_cast<int>(std::get<0>(info.param)), "_seed",
                                               std::get<1>(info.param));
                         });

class LateTest : public testing::TestWithParam<RingStrategy> {};

TEST_P(LateTest, StopsAreAgreedOn) {
  const PassTestModel& text = TinyText();
  for (uint64_t seed = 1; seed <= kSeeds; seed += 5) {
    const int n = 3;
    RingHarness ring(text.model, {.ranks = n, .late_seed = seed});
    const auto& kept = ring.AddSequence(text.Prefix(100), SnakeSpec(n, kPage));
    const auto& stopped = ring.AddSequence(text.Prefix(70), SnakeSpec(n, kPage));
    StepPlan plan = ring.NewPlan();
    ring.AddChunk(plan, kept, {{0, 100}}, TokenMode::kDealt, GetParam());
    ring.AddChunk(plan, stopped, {{0, 70}}, TokenMode::kHome, GetParam());
    std::atomic<int> asked{0};
    StepControl control;
    control.should_stop = [&](int chunk) {
      return chunk == 1 && asked.fetch_add(1) == static_cast<int>(seed % 3);
    };
    const auto results = ring.Run(plan, control);
    for (const RankStepResult& result : results) {
      EXPECT_EQ(result.stopped_mask, results[0].stopped_mask);
    }
    const auto logits = ring.Logits(results);
    ASSERT_EQ(logits.size(), results[0].stopped_mask == 0 ? 2u : 1u);
    ExpectLogitsNear(logits[0], text.logits[99]);
  }
}

TEST_P(LateTest, AFailureLeavesNothingQueued) {
  const PassTestModel& text = TinyText();
  for (uint64_t seed = 1; seed <= kSeeds; seed += 5) {
    const int n = 3;
    RingHarness ring(text.model, {.ranks = n, .late_seed = seed});
    const auto& prompt = ring.AddSequence(text.Prefix(100), SnakeSpec(n, kPage));
    StepPlan plan = ring.NewPlan();
    ring.AddChunk(plan, prompt, {{0, 100}}, TokenMode::kDealt, GetParam());
    ExpectAnotherStepIsRefused(ring, plan, static_cast<int>(seed % n), 7);
    ring.Reform();
    StepPlan again = ring.NewPlan();
    ring.AddChunk(again, prompt, {{0, 100}}, TokenMode::kDealt, GetParam());
    const auto logits = ring.Logits(ring.Run(again));
    ASSERT_EQ(logits.size(), 1u);
    ExpectLogitsNear(logits[0], text.logits[99]);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, LateTest, testing::ValuesIn(kStrategies));

}  // namespace
}  // namespace ringfill
