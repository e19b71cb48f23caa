// What surrounds the attention of a pass: stops that all ranks agree on, progress, faults, failed
// ranks, and what results say about the work.
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "gmock/gmock.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;
constexpr int kLayers = 8;
constexpr RingStrategy kStrategies[] = {RingStrategy::kPassKv, RingStrategy::kGatherKv,
                                        RingStrategy::kPassQ, RingStrategy::kOrdered};

const PassTestModel& DeepText() {
  static const auto* const text = [] {
    TinyModelOptions options;
    options.layers = kLayers;
    return new PassTestModel(options, 130);
  }();
  return *text;
}

class ControlTest : public testing::TestWithParam<RingStrategy> {};

TEST_P(ControlTest, AStopThatOneRankSeesStopsTheChunkOnAllAndNoOther) {
  const PassTestModel& text = DeepText();
  for (const int n : {1, 2, 3, 5}) {
    for (const TokenMode mode : {TokenMode::kHome, TokenMode::kDealt}) {
      RingHarness ring(text.model, {.ranks = n});
      const auto& kept = ring.AddSequence(text.Prefix(130), SnakeSpec(n, kPage));
      const auto& stopped = ring.AddSequence(text.Prefix(70), SnakeSpec(n, kPage));
      StepPlan plan = ring.NewPlan();
      ring.AddChunk(plan, stopped, {{0, 70}}, mode, GetParam());
      ring.AddChunk(plan, kept, {{0, 130}}, mode, GetParam());
      // Exactly one question is answered with yes: some rank sees it at some layer.
      std::atomic<int> asked{0};
      StepControl control;
      control.should_stop = [&](int chunk) { return chunk == 0 && asked.fetch_add(1) == n + 1; };
      const auto results = ring.Run(plan, control);
      const auto logits = ring.Logits(results);
      for (const RankStepResult& result : results) EXPECT_EQ(result.stopped_mask, 1u);
      ASSERT_EQ(logits.size(), 1u) << n;
      ExpectLogitsNear(logits[0], text.logits[129]);
    }
  }
}

TEST_P(ControlTest, ATraceShowsOperationsTransfersAndTheMemoryTaken) {
  const PassTestModel& text = DeepText();
  RingHarness ring(text.model, {.ranks = 2});
  const auto& prompt = ring.AddSequence(text.Prefix(130), SnakeSpec(2, kPage));
  for (int r = 0; r < 2; ++r) {
    TraceBuffer& trace = ring.rank(r).device().trace();
    ring.rank(r).comm().TraceTo(&trace);
    trace.Enable(true);
  }
  for (const bool warm : {false, true}) {
    StepPlan plan = ring.NewPlan();
    ring.AddChunk(plan, prompt, {{0, 130}}, TokenMode::kHome, GetParam());
    const auto results = ring.Run(plan);
    for (int r = 0; r < 2; ++r) {
      int64_t taken = 0;
      std::map<TraceLane, int> spans;
      for (const TraceSpan& span : results[static_cast<size_t>(r)].trace) {
        ++spans[span.lane];
        EXPECT_EQ(span.label.kind == OpKind::kAllocate, span.lane == TraceLane::kMemory);
        if (span.lane == TraceLane::kMemory) taken += span.label.bytes;
      }
      EXPECT_GT(spans[TraceLane::kCompute], kLayers);
      EXPECT_GE(spans[TraceLane::kComm], kLayers);
      const MemoryBytes memory = ring.rank(r).Memory();
      EXPECT_EQ(taken, warm ? 0 : memory[static_cast<size_t>(MemoryPool::kBuffers)]);
    }
  }
}

TEST_P(ControlTest, APassEndsEarlyWhenAllIsStopped) {
  const PassTestModel& text = DeepText();
  for (const int n : {1, 3}) {
    for (const int first_layer : {0, 3}) {
      RingHarness ring(text.model, {.ranks = n});
      const auto& prompt = ring.AddSequence(text.Prefix(100), SnakeSpec(n, kPage));
      StepPlan plan = ring.NewPlan();
      ring.AddChunk(plan, prompt, {{0, 100}}, TokenMode::kHome, GetParam());
      std::atomic<int> asked{0};
      std::atomic<int> layers{0};
      StepControl control;
      control.should_stop = [&](int) { return asked.fetch_add(1) >= first_layer * n; };
      control.on_layer = [&](int done) { layers = done; };
      const auto results = ring.Run(plan, control);
      EXPECT_TRUE(ring.Logits(results).empty());
      int64_t halves = 0;
      for (const RankStepResult& result : results) {
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.stopped_mask, 1u);
        halves += result.work.product_rows;
      }
      EXPECT_LT(layers, kLayers);
      // The host is two layers ahead, and no further; ranks ask at about the same time.
      EXPECT_LT(halves, 100 * 2 * (first_layer + 3));
      // The shared weights were given back: the next pass runs.
      StepPlan again = ring.NewPlan();
      ring.AddChunk(again, prompt, {{0, 100}}, TokenMode::kHome, GetParam());
      const auto logits = ring.Logits(ring.Run(again));
      ASSERT_EQ(logits.size(), 1u);
      ExpectLogitsNear(logits[0], text.logits[99]);
    }
  }
}

TEST_P(ControlTest, ProgressNamesEveryLayerOnce) {
  const PassTestModel& text = DeepText();
  RingHarness ring(text.model, {.ranks = 3});
  const auto& prompt = ring.AddSequence(text.Prefix(100), SnakeSpec(3, kPage));
  StepPlan plan = ring.NewPlan();
  ring.AddChunk(plan, prompt, {{0, 100}}, TokenMode::kDealt, GetParam());
  std::vector<int> seen, expected;
  StepControl control;
  control.on_layer = [&](int done) { seen.push_back(done); };
  ring.Run(plan, control);
  for (int layer = 1; layer <= kLayers; ++layer) expected.push_back(layer);
  EXPECT_EQ(seen, expected);
}

TEST_P(ControlTest, AFaultIsNamedAndStaysWithItsChunk) {
  const PassTestModel& text = DeepText();
  for (const int n : {1, 2, 4}) {
    RingHarness ring(text.model, {.ranks = n});
    const auto& sound = ring.AddSequence(text.Prefix(100), SnakeSpec(n, kPage));
    // Nobody has computed its prefix: its pages hold NaN.
    const auto& broken = ring.AddSequence(text.Prefix(120), SnakeSpec(n, kPage));
    StepPlan plan = ring.NewPlan();
    ring.AddChunk(plan, sound, {{0, 100}}, TokenMode::kHome, GetParam());
    ring.AddChunk(plan, broken, {{60, 120}}, TokenMode::kDealt, GetParam());
    const auto results = ring.Run(plan);
    const auto logits = ring.Logits(results);
    ASSERT_EQ(logits.size(), 2u);
    ExpectLogitsNear(logits[0], text.logits[99]);
    int faults = 0;
    for (const RankStepResult& result : results) {
      for (const ValueFault& fault : result.faults) {
        ++faults;
        EXPECT_EQ(fault.entry, 1);
        EXPECT_EQ(fault.layer, 0);
        EXPECT_GE(fault.round, 0);
      }
    }
    EXPECT_GT(faults, 0);
  }
}

TEST_P(ControlTest, ARankAtAnotherStepIsRefusedAndTheNextEpochIsSound) {
  const PassTestModel& text = DeepText();
  for (const int n : {2, 3, 5}) {
    RingHarness ring(text.model, {.ranks = n});
    const auto& prompt = ring.AddSequence(text.Prefix(100), SnakeSpec(n, kPage));
    StepPlan plan = ring.NewPlan();
    ring.AddChunk(plan, prompt, {{0, 100}}, TokenMode::kHome, GetParam());
    ExpectAnotherStepIsRefused(ring, plan, n - 1, -1);
    ring.Reform();
    StepPlan again = ring.NewPlan();
    ring.AddChunk(again, prompt, {{0, 100}}, TokenMode::kHome, GetParam());
    const auto logits = ring.Logits(ring.Run(again));
    ASSERT_EQ(logits.size(), 1u);
    ExpectLogitsNear(logits[0], text.logits[99]);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, ControlTest, testing::ValuesIn(kStrategies));

TEST(PassResultTest, CountsBytesRoundsAndWork) {
  const PassTestModel& text = DeepText();
  const int n = 4;
  const int64_t tokens = 128;  // two stripes a rank
  RingHarness ring(text.model, {.ranks = n});
  const auto& prompt = ring.AddSequence(text.Prefix(tokens), SnakeSpec(n, kPage));
  StepPlan plan = ring.NewPlan();
  PrefillChunk& chunk =
      ring.AddChunk(plan, prompt, {{0, tokens}}, TokenMode::kHome, RingStrategy::kPassKv);
  ScoreAll(prompt.tokens, chunk);
  const auto results = ring.Run(plan);
  const size_t shard = 2 * ring.rank(0).geometry().LayerBytes();
  int64_t pairs = 0;
  for (const RankStepResult& result : results) {
    ASSERT_TRUE(result.status.ok()) << result.status;
    const auto rounds = static_cast<size_t>(kLayers * (n - 1));
    EXPECT_EQ(result.ring_bytes, static_cast<int64_t>(rounds * (sizeof(RoundHeader) + shard)));
    EXPECT_EQ(result.round_seconds.size(), rounds);
    EXPECT_GT(result.transfer_s, 0);
    // The all-gather of the last hidden row is no transfer of the ring.
    EXPECT_DOUBLE_EQ(result.transfer_s, std::accumulate(result.round_seconds.begin(),
                                                        result.round_seconds.end(), 0.0));
    EXPECT_GT(result.prefill_busy_s, 0);
    EXPECT_EQ(result.work.product_rows, 2 * kLayers * tokens / n);
    pairs += result.work.attention_pairs;
  }
  EXPECT_EQ(pairs, kLayers * tokens * (tokens + 1) / 2);
}

// Every buffer of a pass: what grows with a rank's rows, and shards of one layer.
TEST(PassResultTest, BuffersFollowTheFormula) {
  const std::shared_ptr<const Model> model = DeepText().model;
  const int n = 4;
  const int64_t tokens = 1024;
  // The pool, and what is sized once for a thread.
  const std::vector<std::string> kElsewhere = {"kv pages",          "expanded weights",
                                               "tile scratch",      "product scratch",
                                               "attention scratch", "output head"};
  for (const RingStrategy strategy : kStrategies) {
    for (const TokenMode mode : {TokenMode::kHome, TokenMode::kDealt}) {
      RingHarness ring(model, {.ranks = n});
      const auto& prompt =
          ring.AddSequence(RandomTokens(tokens, model->config().vocab, 1), SnakeSpec(n, kPage));
      StepPlan plan = ring.NewPlan();
      ring.AddChunk(plan, prompt, {{0, tokens}}, mode, strategy);
      ASSERT_EQ(ring.Logits(ring.Run(plan)).size(), 1u);
      Device& device = ring.rank(0).device();
      const size_t header = sizeof(RoundHeader);
      const size_t rows = tokens / n;
      const size_t page = ring.rank(0).geometry().LayerBytes();
      const size_t shard = header + rows / kPage * page;
      const size_t queries = header + device.QueryBytes(rows);
      const size_t states = device.StateBytes(rows);
      std::map<std::string, size_t> formula = {
          {"activations", rows * static_cast<size_t>(model->config().width) * sizeof(float)},
          {"angles", device.AngleBytes(rows)},
          {"queries", queries},
          {"states", states}};
      if (strategy == RingStrategy::kPassKv) formula["ring shards"] = 2 * shard;
      if (strategy == RingStrategy::kGatherKv) formula["gathered shards"] = n * shard;
      if (strategy == RingStrategy::kPassQ) {
        formula["ring queries"] = 2 * queries;
        formula["ring states"] = 2 * (header + states);
        formula["returned states"] = header + states;
      }
      // The whole text fits one window here; a header has a page's room.
      if (strategy == RingStrategy::kOrdered) {
        formula["ordered windows"] = 2 * (tokens / kPage + n) * page;
      }
      if (mode == TokenMode::kDealt) {
        // A quarter of the dealt rows is at home on each rank, its own among them.
        const size_t row = device.KvRowBytes();
        formula["kv outbox"] = rows * row + n * row;
        formula["kv inbox"] = (rows - rows / n) * row + (n - 1) * header;
      }
      for (const Device::MemoryUse& use : device.Memory()) {
        const auto at = formula.find(use.what);
        if (at == formula.end()) {
          EXPECT_THAT(kElsewhere, testing::Contains(use.what)) << "a buffer without a formula";
          continue;
        }
        EXPECT_EQ(use.peak_bytes, at->second) << use.what;
        formula.erase(at);
      }
      EXPECT_TRUE(formula.empty()) << formula.begin()->first << " is missing";
    }
  }
}

// Counted on devices, T new tokens over a long cached prefix.
TEST(PassResultTest, DealtWorkBalancesOverACachedPrefix) {
  TinyModelOptions options;
  options.layers = 1;
  const std::shared_ptr<const Model> model = LoadModelOrDie(WriteTinyModel(options));
  const int n = 4;
  const int64_t prefix = 2048;
  for (const int64_t residue : {0, 5, 16, 33, 63}) {
    for (const RingStrategy strategy : kStrategies) {
      for (const int64_t tokens : {64, 256}) {
        RingHarness ring(model, {.ranks = n});
        const auto& prompt = ring.AddSequence(
            RandomTokens(static_cast<size_t>(prefix + residue + tokens), options.vocab, 3),
            SnakeSpec(n, 64));
        StepPlan plan = ring.NewPlan();
        ring.AddChunk(plan, prompt, {{prefix + residue, prefix + residue + tokens}},
                      TokenMode::kDealt, strategy);
        ScoreAll(prompt.tokens, plan.chunks[0]);
        double sum[2] = {0, 0}, most[2] = {0, 0};
        for (const RankStepResult& result : ring.Run(plan)) {
          ASSERT_TRUE(result.status.ok()) << result.status;
          const double work[2] = {static_cast<double>(result.work.product_rows),
                                  static_cast<double>(result.work.attention_pairs)};
          for (int i = 0; i < 2; ++i) {
            sum[i] += work[i];
            most[i] = std::max(most[i], work[i]);
          }
        }
        for (int i = 0; i < 2; ++i) {
          EXPECT_LE(most[i], 1.10 * sum[i] / n)
              << (i == 0 ? "rows" : "pairs") << " of " << tokens << " over " << prefix + residue
              << " by " << RingStrategyName(strategy);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringfill
