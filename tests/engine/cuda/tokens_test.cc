// Replicated tokens on emulated GPUs: where values that are not finite are seen, chunks that stop,
// and decode steps as CUDA graphs.
#include <atomic>
#include <string>

#include "engine/compute/cuda/cuda_device.h"
#include "tests/engine/cuda/gpu_ring.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;
constexpr int kLayers = 3;

const PassTestModel& GpuText() {
  static const auto* const text = [] {
    TinyModelOptions options = GpuTinyModel();
    options.layers = kLayers;
    return new PassTestModel(options, 100);
  }();
  return *text;
}

class GpuTokensTest : public testing::TestWithParam<int> {
 protected:
  GpuTokensTest() : ring_(GpuText().model, (ResetGpus(ranks(), 9), GpuRing(ranks()))) {}
  int ranks() const { return GetParam(); }

  RingHarness::Sequence& Prompt(int64_t tokens) {
    return ring_.AddSequence(GpuText().Prefix(tokens), SnakeSpec(ranks(), kPage));
  }
  // A prompt whose first `length` tokens are cached.
  RingHarness::Sequence& Cached(int64_t length) {
    RingHarness::Sequence& prompt = Prompt(100);
    StepPlan plan = ring_.NewPlan();
    ring_.AddChunk(plan, prompt, {{0, length}}, TokenMode::kHome, RingStrategy::kPassKv);
    ring_.Run(plan);
    return prompt;
  }
  // The logits of a step that decodes the token at each position.
  std::vector<std::vector<float>> Decode(
      const std::vector<std::pair<const RingHarness::Sequence*, int64_t>>& at) {
    StepPlan plan = ring_.NewPlan();
    for (const auto& [prompt, position] : at) ring_.AddDecode(plan, *prompt, position);
    auto logits = ring_.Logits(ring_.Run(plan));
    EXPECT_EQ(logits.size(), at.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      ExpectLogitsNear(logits[i], GpuText().logits[static_cast<size_t>(at[i].second)],
                       kGpuTolerance);
    }
    return logits;
  }
  int64_t Replayed() {
    auto& device = dynamic_cast<CudaDevice&>(ring_.rank(0).device());
    return device.graphs_replayed();
  }

  RingHarness ring_;
};

// A page that goes bad shows on the rank that keeps it, in the layer where it is read.
TEST_P(GpuTokensTest, AFaultOfADecodeIsNamedAndStaysWithIt) {
  const int n = ranks();
  const int64_t bad = 20;
  RingHarness::Sequence* const prompts[] = {&Cached(50), &Cached(50)};
  StepPlan plan = ring_.NewPlan();
  for (const auto* prompt : prompts) ring_.AddDecode(plan, *prompt, 50);
  const Placement placement(n, kPage);
  const auto home = static_cast<size_t>(placement.Home(bad));
  plan.freed.resize(static_cast<size_t>(n));
  plan.freed[home].push_back(
      prompts[1]->pages[home][static_cast<size_t>(placement.LocalToken(bad) / kPage)]);
  const auto results = ring_.RunEach(std::vector<StepPlan>(static_cast<size_t>(n), plan));
  ExpectLogitsNear(ring_.Logits(results)[0], GpuText().logits[50], kGpuTolerance);
  for (int r = 0; r < n; ++r) {
    const auto& faults = results[static_cast<size_t>(r)].faults;
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].entry, 1);
    EXPECT_EQ(faults[0].layer, 0);
    EXPECT_EQ(faults[0].round,
              r == placement.Home(bad) ? ValueFault::kTokenAttention : ValueFault::kTokenOutput);
  }
}

// What stops is agreed on by all ranks, whoever asks; the others of the step go on.
TEST_P(GpuTokensTest, AChunkStopsAtALayerAndTheOthersGoOn) {
  const auto& other = Cached(60);
  const auto& stopped = Prompt(90);
  StepPlan plan = ring_.NewPlan();
  ring_.AddChunk(plan, stopped, {{0, 90}}, TokenMode::kReplicated, RingStrategy::kPassKv);
  ring_.AddDecode(plan, other, 60);
  std::atomic<int> asked{0};
  // One rank alone is told to, once. What layer 0 says holds from layer 2 on.
  const StepControl control{.should_stop = [&](int) { return asked++ == 0; }, .on_layer = {}};
  const auto results = ring_.Run(plan, control);
  int64_t pairs = 0;
  for (const RankStepResult& result : results) {
    EXPECT_EQ(result.stopped_mask, 1u);
    EXPECT_TRUE(result.faults.empty());
    pairs += result.work.attention_pairs;
  }
  EXPECT_EQ(pairs, 61 * kLayers + 2 * 90 * 91 / 2);
  const auto logits = ring_.Logits(results);
  ASSERT_EQ(logits.size(), 1u);
  ExpectLogitsNear(logits[0], GpuText().logits[60], kGpuTolerance);
}

// The first step of a shape runs plainly, the second is captured, the others replay it.
TEST_P(GpuTokensTest, DecodeStepsBecomeGraphsOfEqualBits) {
  const auto& a = Cached(50);
  const auto& b = Cached(70);
  const auto& c = Cached(33);
  constexpr int kStages = 4 * kLayers;
  const auto plain = Decode({{&a, 50}, {&b, 70}, {&c, 33}});
  EXPECT_EQ(Replayed(), 0);
  const auto captured = Decode({{&a, 50}, {&b, 70}, {&c, 33}});
  EXPECT_EQ(Replayed(), kStages);
  const auto replayed = Decode({{&a, 50}, {&b, 70}, {&c, 33}});
  EXPECT_EQ(Replayed(), 2 * kStages);
  EXPECT_EQ(captured, plain);
  EXPECT_EQ(replayed, plain);
  // Other tokens, another number of them in the same bucket, other pages: the same graphs.
  Decode({{&a, 51}, {&b, 71}, {&c, 34}});
  Decode({{&b, 72}, {&c, 35}, {&a, 52}});
  EXPECT_EQ(Replayed(), 4 * kStages);
}

TEST_P(GpuTokensTest, OtherShapesRunPlainlyFirst) {
  const auto& a = Cached(50);
  const auto& b = Cached(70);
  Decode({{&a, 50}});
  Decode({{&a, 51}});
  const int64_t one = Replayed();
  EXPECT_GT(one, 0);
  Decode({{&a, 52}, {&b, 70}});
  EXPECT_EQ(Replayed(), one);
  Decode({{&a, 53}});
  EXPECT_EQ(Replayed(), 2 * one);
  Decode({{&a, 54}, {&b, 71}});
  EXPECT_EQ(Replayed(), 3 * one);
}

TEST_P(GpuTokensTest, MoreShapesThanAreKeptStillCompute) {
  const auto& a = Cached(60);
  const auto& b = Prompt(100);
  for (int turn = 0; turn < 2; ++turn) {
    for (const int64_t tokens : {1, 2, 4, 7, 13, 30}) {
      StepPlan plan = ring_.NewPlan();
      ring_.AddChunk(plan, b, {{0, tokens}}, TokenMode::kReplicated, RingStrategy::kPassKv);
      ring_.AddDecode(plan, a, 60);
      const auto logits = ring_.Logits(ring_.Run(plan));
      ASSERT_EQ(logits.size(), 2u);
      ExpectLogitsNear(logits[0], GpuText().logits[static_cast<size_t>(tokens - 1)], kGpuTolerance);
      ExpectLogitsNear(logits[1], GpuText().logits[60], kGpuTolerance);
    }
    Decode({{&a, 61}});
  }
}

TEST(GpuTokens, FaultsOfGraphsAreNamed) {
  ResetGpus(1, 4);
  RingHarness ring(GpuText().model, GpuRing(1));
  const auto& prompt = ring.AddSequence(GpuText().Prefix(60), SnakeSpec(1, kPage));
  StepPlan cold = ring.NewPlan();
  ring.AddChunk(cold, prompt, {{0, 50}}, TokenMode::kHome, RingStrategy::kPassKv);
  ring.Run(cold);
  for (int step = 0; step < 4; ++step) {
    StepPlan plan = ring.NewPlan();
    ring.AddDecode(plan, prompt, 50);
    if (step == 3) plan.freed = {{prompt.pages[0][0]}};
    const auto results = ring.RunEach({plan});
    ASSERT_EQ(results[0].faults.size(), step == 3 ? 1u : 0u);
    for (const ValueFault& fault : results[0].faults) {
      EXPECT_EQ(fault.round, ValueFault::kTokenAttention);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuTokensTest, testing::ValuesIn(GpuCounts()));

}  // namespace
}  // namespace ringfill
