// The passes on emulated GPUs against the plain reference: every mode, strategy and layout on 1 to
// 4 devices, under several seeds of the emulation.
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/engine/cuda/gpu_ring.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;
constexpr int64_t kTokens = 75;
constexpr int64_t kPrefix = 21;
constexpr RingStrategy kStrategies[] = {RingStrategy::kPassKv, RingStrategy::kGatherKv,
                                        RingStrategy::kPassQ, RingStrategy::kOrdered};

class GpuPassesTest : public testing::TestWithParam<GpuCase> {
 protected:
  GpuPassesTest() {
    ResetGpus(ranks(), library() ? 2 : 1);
    OfferFusedAttention(library());
  }
  int ranks() const { return std::get<0>(GetParam()); }
  // Prefill attention by the kernels alone, or beside a library's.
  bool library() const { return std::get<1>(GetParam()); }
};

const PassTestModel& GpuText() {
  static const auto* const text = new PassTestModel(GpuTinyModel(), static_cast<size_t>(kTokens));
  return *text;
}

TEST_P(GpuPassesTest, EveryWayMatchesTheReference) {
  const PassTestModel& text = GpuText();
  const int n = ranks();
  RingHarness ring(text.model, GpuRing(n));
  const int64_t tried = FusedPairs();
  const PlacementSpec specs[] = {SnakeSpec(n, kPage), ContiguousSpec(n, kTokens, kPage),
                                 TokenStripesSpec(n)};
  for (const PlacementSpec& spec : specs) {
    for (const RingStrategy strategy : kStrategies) {
      if (strategy == RingStrategy::kOrdered && spec.stripe_tokens % kPage != 0) continue;
      for (const TokenMode mode : {TokenMode::kHome, TokenMode::kDealt, TokenMode::kReplicated}) {
        const bool replicated = mode == TokenMode::kReplicated;
        if (replicated && strategy != RingStrategy::kPassKv) continue;
        SCOPED_TRACE(absl::StrCat("stripes of ", spec.stripe_tokens, ", ",
                                  std::string(RingStrategyName(strategy)), ", mode ",
                                  static_cast<int>(mode)));
        RingHarness::Sequence& prompt = ring.AddSequence(text.text, spec);
        StepPlan cold = ring.NewPlan();
        ring.AddChunk(cold, prompt, {{0, kPrefix}}, mode, strategy).wants_logits = false;
        for (const RankStepResult& result : ring.Run(cold)) {
          ASSERT_TRUE(result.status.ok()) << result.status;
        }
        StepPlan plan = ring.NewPlan();
        PrefillChunk& chunk = ring.AddChunk(plan, prompt, {{kPrefix, kTokens}}, mode, strategy);
        if (!replicated) ScoreAll(text.text, chunk);
        const auto results = ring.Run(plan);
        const auto logits = ring.Logits(results);
        ASSERT_EQ(logits.size(), 1u);
        ExpectLogitsNear(logits[0], text.logits.back(), kGpuTolerance);
        if (!replicated) ExpectScores(text, plan, 0, results, kGpuTolerance);
        ring.Release(prompt);
      }
    }
  }
  if (FusedPairs() >= 0) {
    EXPECT_EQ(FusedPairs() > tried, library());
  }
}

TEST_P(GpuPassesTest, DecodesBesideChunks) {
  const PassTestModel& text = GpuText();
  const int n = ranks();
  RingHarness ring(text.model, GpuRing(n));
  StepPlan before = ring.NewPlan();
  StepPlan plan = ring.NewPlan();
  std::vector<int64_t> ends;
  for (const int64_t length : {1, 16, 33}) {
    const auto& prompt = ring.AddSequence(text.Prefix(length + 20), SnakeSpec(n, kPage));
    ring.AddChunk(before, prompt, {{0, 20}}, TokenMode::kReplicated, RingStrategy::kPassKv)
        .wants_logits = false;
    ring.AddChunk(plan, prompt, {{20, 20 + length}}, TokenMode::kHome, RingStrategy::kPassQ);
    ends.push_back(20 + length);
  }
  for (const int64_t length : {1, 15, 16, 17, 60}) {
    const auto& prompt = ring.AddSequence(text.Prefix(length + 1), TokenStripesSpec(n));
    ring.AddChunk(before, prompt, {{0, length}}, TokenMode::kHome, RingStrategy::kPassKv)
        .wants_logits = false;
    ring.AddDecode(plan, prompt, length);
    ends.push_back(length + 1);
  }
  EXPECT_TRUE(ring.Logits(ring.Run(before)).empty());
  const auto results = ring.Run(plan);
  const auto logits = ring.Logits(results);
  ASSERT_EQ(logits.size(), ends.size());
  for (size_t i = 0; i < ends.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectLogitsNear(logits[i], text.logits[static_cast<size_t>(ends[i] - 1)], kGpuTolerance);
  }
  for (const RankStepResult& result : results) {
    EXPECT_GT(result.decode_busy_s, 0);
    EXPECT_TRUE(result.faults.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuPassesTest, testing::ValuesIn(GpuCases(3)), GpuCaseName);

// A sample under many orders of streams, threads and transfers.
class GpuSeedsTest : public testing::TestWithParam<int> {};

TEST_P(GpuSeedsTest, AStepOfEveryKindMatchesTheReference) {
  constexpr int kRanks = 3;
  if (GpuCounts().size() < kRanks) GTEST_SKIP() << "too few GPUs";
  ResetGpus(kRanks, static_cast<uint64_t>(100 + GetParam()));
  OfferFusedAttention(GetParam() % 2 == 0);
  const PassTestModel& text = GpuText();
  RingHarness ring(text.model, GpuRing(kRanks));
  const auto& cached = ring.AddSequence(text.Prefix(40), SnakeSpec(kRanks, kPage));
  StepPlan cold = ring.NewPlan();
  ring.AddChunk(cold, cached, {{0, 39}}, TokenMode::kDealt, RingStrategy::kPassQ);
  ExpectLogitsNear(ring.Logits(ring.Run(cold)).at(0), text.logits[38], kGpuTolerance);
  for (const RingStrategy strategy : {RingStrategy::kPassKv, RingStrategy::kGatherKv}) {
    const auto& prompt = ring.AddSequence(text.Prefix(60), SnakeSpec(kRanks, kPage));
    StepPlan plan = ring.NewPlan();
    ring.AddChunk(plan, prompt, {{0, 60}}, TokenMode::kHome, strategy);
    ring.AddDecode(plan, cached, 39);
    const auto logits = ring.Logits(ring.Run(plan));
    ASSERT_EQ(logits.size(), 2u);
    ExpectLogitsNear(logits[0], text.logits[59], kGpuTolerance);
    ExpectLogitsNear(logits[1], text.logits[39], kGpuTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, GpuSeedsTest, testing::Range(1, 21));

}  // namespace
}  // namespace ringfill
