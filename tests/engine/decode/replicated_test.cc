// Replicated tokens over any number of ranks against the plain reference.
#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;

class ReplicatedTest : public testing::TestWithParam<int> {};

TEST_P(ReplicatedTest, DecodesAcrossEveryPageAndStripeBound) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  for (const PlacementSpec& spec : {SnakeSpec(n, 2 * kPage), TokenStripesSpec(n), SnakeSpec(n, 24),
                                    PlacementSpec{kPage, {n - 1}}}) {
    RingHarness ring(text.model, {.ranks = n});
    const auto& prompt = ring.AddSequence(text.Prefix(150), spec);
    for (int64_t position = 0; position < 150; ++position) {
      StepPlan plan = ring.NewPlan();
      ring.AddDecode(plan, prompt, position);
      const auto logits = ring.Logits(ring.Run(plan));
      ASSERT_EQ(logits.size(), 1u);
      ExpectLogitsNear(logits[0], text.logits[static_cast<size_t>(position)]);
    }
  }
}

TEST_P(ReplicatedTest, ChunksAndDecodesBeyondOneBatch) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n, .pages_per_rank = 1024});
  StepPlan before = ring.NewPlan();
  StepPlan plan = ring.NewPlan();
  std::vector<int64_t> ends;
  for (const int64_t length : {256, 1, 200, 3}) {
    const auto& prompt = ring.AddSequence(text.Prefix(length + 20), SnakeSpec(n, kPage));
    ring.AddChunk(before, prompt, {{0, 20}}, TokenMode::kReplicated, RingStrategy::kPassKv)
        .wants_logits = false;
    ring.AddChunk(plan, prompt, {{20, 20 + length}}, TokenMode::kReplicated, RingStrategy::kPassKv);
    ends.push_back(20 + length);
  }
  for (int64_t length = 1; length <= 40; ++length) {
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
    ExpectLogitsNear(logits[i], text.logits[static_cast<size_t>(ends[i] - 1)]);
  }
  for (const RankStepResult& result : results) {
    EXPECT_GT(result.decode_busy_s, 0);
    EXPECT_TRUE(result.faults.empty());
  }
}

TEST_P(ReplicatedTest, HolesAreFilled) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  const auto& prompt = ring.AddSequence(text.Prefix(130), SnakeSpec(n, kPage));
  StepPlan cold = ring.NewPlan();
  ring.AddChunk(cold, prompt, {{0, 120}}, TokenMode::kReplicated, RingStrategy::kPassKv);
  ring.Run(cold);
  StepPlan fill = ring.NewPlan();
  ring.LosePages(fill, prompt, {{32, 48}, {80, 96}});
  ring.AddChunk(fill, prompt, {{32, 48}, {80, 96}, {120, 130}}, TokenMode::kReplicated,
                RingStrategy::kPassKv);
  const auto results = ring.RunEach(std::vector<StepPlan>(static_cast<size_t>(n), fill));
  const auto logits = ring.Logits(results);
  ASSERT_EQ(logits.size(), 1u);
  ExpectLogitsNear(logits[0], text.logits[129]);
}

// A page that goes bad shows on the rank that keeps it, in the layer where it is read.
TEST_P(ReplicatedTest, AFaultOfADecodeIsNamedAndStaysWithIt) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  StepPlan cold = ring.NewPlan();
  StepPlan plan = ring.NewPlan();
  const Placement placement(n, kPage);
  const int64_t bad = 20;  // a position of the second
  for (int i = 0; i < 2; ++i) {
    const auto& prompt = ring.AddSequence(text.Prefix(60), SnakeSpec(n, kPage));
    ring.AddChunk(cold, prompt, {{0, 50}}, TokenMode::kHome, RingStrategy::kPassKv);
    ring.AddDecode(plan, prompt, 50);
    if (i == 1) ring.LosePages(plan, prompt, {{bad, bad + 1}});
  }
  ring.Run(cold);
  const auto results = ring.RunEach(std::vector<StepPlan>(static_cast<size_t>(n), plan));
  ExpectLogitsNear(ring.Logits(results)[0], text.logits[50]);
  for (int r = 0; r < n; ++r) {
    const auto& faults = results[static_cast<size_t>(r)].faults;
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].entry, 1);
    EXPECT_EQ(faults[0].layer, 0);
    EXPECT_EQ(faults[0].round,
              r == placement.Home(bad) ? ValueFault::kTokenAttention : ValueFault::kTokenOutput);
  }
}

TEST_P(ReplicatedTest, ARankAtAnotherStepIsRefused) {
  const int n = GetParam();
  if (n == 1) GTEST_SKIP() << "nobody else to refuse";
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  const auto& prompt = ring.AddSequence(text.Prefix(60), SnakeSpec(n, kPage));
  StepPlan cold = ring.NewPlan();
  ring.AddChunk(cold, prompt, {{0, 50}}, TokenMode::kHome, RingStrategy::kPassKv);
  ring.Run(cold);
  StepPlan plan = ring.NewPlan();
  ring.AddDecode(plan, prompt, 50);
  ExpectAnotherStepIsRefused(ring, plan, n - 1, -1);
  ring.Reform();
  StepPlan again = ring.NewPlan();
  ring.AddDecode(again, prompt, 50);
  ExpectLogitsNear(ring.Logits(ring.Run(again))[0], text.logits[50]);
}

// What stops is agreed on by all ranks, whoever asks; the others of the step go on.
TEST_P(ReplicatedTest, AChunkStopsAtALayerAndTheOthersGoOn) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  ASSERT_EQ(text.model->config().layers, 3);  // what layer 0 says holds from layer 2 on
  for (const bool with_decode : {false, true}) {
    RingHarness ring(text.model, {.ranks = n});
    const auto& stopped = ring.AddSequence(text.Prefix(100), SnakeSpec(n, kPage));
    const auto& other = ring.AddSequence(text.Prefix(61), SnakeSpec(n, kPage));
    StepPlan plan = ring.NewPlan();
    if (with_decode) {
      StepPlan cold = ring.NewPlan();
      ring.AddChunk(cold, other, {{0, 60}}, TokenMode::kHome, RingStrategy::kPassKv);
      ring.Run(cold);
      ring.AddDecode(plan, other, 60);
    }
    ring.AddChunk(plan, stopped, {{0, 100}}, TokenMode::kReplicated, RingStrategy::kPassKv);
    std::atomic<int> asked{0};
    // One rank alone is told to, once.
    const StepControl control{.should_stop = [&](int chunk) { return chunk == 0 && asked++ == 0; },
                              .on_layer = {}};
    const auto results = ring.Run(plan, control);
    EXPECT_GE(asked, n);
    for (const RankStepResult& result : results) {
      EXPECT_EQ(result.stopped_mask, 1u);
      EXPECT_TRUE(result.faults.empty());
    }
    const auto logits = ring.Logits(results);
    ASSERT_EQ(logits.size(), with_decode ? 1u : 0u);
    if (with_decode) ExpectLogitsNear(logits.back(), text.logits[60]);
  }
}

TEST_P(ReplicatedTest, AFaultIsNamedAndStaysWithItsChunk) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  const auto& sound = ring.AddSequence(text.Prefix(30), SnakeSpec(n, kPage));
  const auto& broken = ring.AddSequence(text.Prefix(60), SnakeSpec(n, kPage));
  StepPlan plan = ring.NewPlan();
  ring.AddChunk(plan, sound, {{0, 30}}, TokenMode::kReplicated, RingStrategy::kPassKv);
  // Its prefix was never computed: its pages hold NaN.
  ring.AddChunk(plan, broken, {{40, 60}}, TokenMode::kReplicated, RingStrategy::kPassKv);
  const auto results = ring.Run(plan);
  const auto logits = ring.Logits(results);
  ASSERT_EQ(logits.size(), 2u);
  ExpectLogitsNear(logits[0], text.logits[29]);
  for (const RankStepResult& result : results) {
    ASSERT_EQ(result.faults.size(), 1u);
    EXPECT_EQ(result.faults[0].entry, 1);
    EXPECT_EQ(result.faults[0].layer, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReplicatedTest, testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace ringfill
