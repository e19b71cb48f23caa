#include "engine/cost/cost_chooser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace ringfill {
namespace {

ModelShape EightB() {
  ModelShape shape;
  shape.layers = 32;
  shape.width = 4096;
  shape.ffn_width = 14336;
  shape.heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.vocab = 128256;
  return shape;
}

DeviceFigures Gpu() {
  DeviceFigures f;
  f.product_flops_per_s = 600e12;
  f.expand_weights_per_s = 1.5e12;
  f.large_tile = {192, 400e12};
  f.small_tile = {1, 6e12};
  f.token_bytes_per_s = 2.5e12;
  f.token_flops_per_s = 150e12;
  f.copy_bytes_per_s = 1.2e12;
  f.op_overhead_s = 4e-6;
  return f;
}

PrefillChunk Chunk(int64_t cached, int64_t tokens) {
  PrefillChunk chunk;
  chunk.spans = {{cached, cached + tokens}};
  chunk.wants_logits = true;
  return chunk;
}

PlacementSpec Snake(int ranks) { return {128, Placement(ranks, 128).slot_map()}; }

CostModel Model(int ranks, LinkFigures link, CostOptions options = {}) {
  options.shape = EightB();
  return CostModel(options, Figures::Uniform(ranks, Gpu(), link));
}

TEST(CostChooser, PicksTheFieldsOwnAnswers) {
  const CostModel model = Model(8, {5e-6, 100e9});
  const CostChooser chooser(model);
  EXPECT_EQ(chooser.Choose(Chunk(0, 32768), Snake(8), 8),
            (Way{TokenMode::kHome, RingStrategy::kPassKv}));
  EXPECT_EQ(chooser.Choose(Chunk(1 << 20, 2048), Snake(8), 8).strategy, RingStrategy::kPassQ);
  EXPECT_EQ(chooser.Choose(Chunk(65536, 1), Snake(8), 8).mode, TokenMode::kReplicated);
  // At home, two of the ranks have three of the eighteen stripes of a chat turn.
  EXPECT_EQ(chooser.Choose(Chunk(4096, 2242), Snake(8), 8).mode, TokenMode::kDealt);
}

TEST(CostChooser, TiesGoToTheSimplest) {
  // Nothing but computing takes time, so gathering saves nothing.
  const CostModel model = Model(4, {0, 1e18});
  const CostChooser::Explanation explained =
      CostChooser(model).Explain(Chunk(0, 65536), Snake(4), 4);
  EXPECT_EQ(explained.chosen, (Way{TokenMode::kHome, RingStrategy::kPassKv}));
  double best = explained.options[0].seconds;
  for (const Prediction& option : explained.options) best = std::min(best, option.seconds);
  EXPECT_LE(explained.options[0].seconds, best * (1 + CostChooser::kTieShare));
}

TEST(CostChooser, OffersOnlyWhatTheChunkMayUse) {
  auto has = [](const std::vector<Prediction>& options, TokenMode mode, RingStrategy strategy) {
    for (const Prediction& option : options) {
      if (option.way == Way{mode, strategy}) return true;
    }
    return false;
  };
  const CostModel model = Model(4, {5e-6, 100e9}, {.shape = {}, .max_replicated_tokens = 64});
  const Placement placement(4, 128);
  EXPECT_EQ(model.PredictAll(Chunk(0, 64), placement).size(), 7u);
  PrefillChunk scored = Chunk(0, 64);
  scored.score = true;
  EXPECT_FALSE(
      has(model.PredictAll(scored, placement), TokenMode::kReplicated, RingStrategy::kPassKv));
  EXPECT_FALSE(has(model.PredictAll(Chunk(0, 65), placement), TokenMode::kReplicated,
                   RingStrategy::kPassKv));
  // 1M tokens of a layer are 4 GiB.
  const std::vector<Prediction> large = model.PredictAll(Chunk(1 << 20, 64), placement);
  EXPECT_FALSE(has(large, TokenMode::kHome, RingStrategy::kGatherKv));
  EXPECT_TRUE(has(large, TokenMode::kHome, RingStrategy::kPassQ));
  const CostModel alone = Model(1, {5e-6, 100e9});
  EXPECT_EQ(alone.PredictAll(Chunk(0, 64), Placement(1, 128)).size(), 2u);
  EXPECT_EQ(alone.PredictAll(Chunk(0, 6400), Placement(1, 128)).size(), 1u);
}

TEST(CostChooser, ExplainsEveryOption) {
  const CostModel model = Model(2, {5e-6, 100e9});
  const std::string text = CostChooser(model).Explain(Chunk(8192, 64), Snake(2), 2).ToString();
  EXPECT_THAT(text, testing::StartsWith("64 new tokens at 8192 over 2 ranks: "));
  for (const char* way : {"home pass-kv", "home gather-kv", "home pass-q", "dealt pass-kv",
                          "dealt gather-kv", "dealt pass-q", "replicated"}) {
    EXPECT_THAT(text, testing::HasSubstr(way));
  }
  EXPECT_THAT(text, testing::ContainsRegex("\\*[a-z]"));
}

TEST(CostChooser, IsDeterministicAndThreadSafe) {
  const CostModel model = Model(8, {5e-6, 100e9});
  const CostChooser chooser(model);
  const Way expected = chooser.Choose(Chunk(8192, 777), Snake(8), 8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(chooser.Choose(Chunk(8192, 777), Snake(8), 8), expected);
        PlacementSpec other = Snake(8);
        other.stripe_tokens = 128 * (1 + i % 3);
        (void)chooser.Choose(Chunk(0, 512), other, 8);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The rule of "Context Parallelism for Scalable Million-Token Inference" (Algorithm 1): pass-KV
// when T / (T + P) >= 2 * KV heads / heads, for links so slow that nothing hides. Our pass-Q also
// returns float32 states, so its bytes a token are q + state; the crossover moves accordingly.
TEST(CostModel, SlowLinksCrossOverWhereTheBytesAreEqual) {
  const ModelShape shape = EightB();
  const CostModel model = Model(4, {0, 1e6});
  const Placement placement(4, 128);
  const auto kv = static_cast<double>(KvRowBytes(shape));
  const auto q = static_cast<double>(QueryBytes(shape, 1) + StateBytes(shape, 1));
  const int64_t tokens = 4096;
  // Shards of (T + P) / 4 tokens against queries and states of T / 4.
  const auto cached = static_cast<int64_t>(static_cast<double>(tokens) * (q / kv - 1));
  auto seconds = [&](int64_t before, RingStrategy strategy) {
    return model.Predict(Chunk(before, tokens), placement, {TokenMode::kHome, strategy}).seconds;
  };
  EXPECT_LT(seconds(cached / 2, RingStrategy::kPassKv), seconds(cached / 2, RingStrategy::kPassQ));
  EXPECT_GT(seconds(cached * 3 / 2, RingStrategy::kPassKv),
            seconds(cached * 3 / 2, RingStrategy::kPassQ));
}

// The ring is hidden where a round's attention takes longer than its shard: 4 * d operations a row
// and key, so 4 * T / N * (heads * d) / C >= 2 * KV heads * d * bytes / BW a cached key.
TEST(CostModel, TheRingHidesFromTheBoundOn) {
  const ModelShape shape = EightB();
  const double flops = 400e12;
  const int n = 4;
  const int64_t cached = 1 << 20;
  const int64_t tokens = 4096;
  // The bandwidth at which a round's transfer takes as long as its attention.
  const double bound = flops * static_cast<double>(n * KvRowBytes(shape)) /
                       (4.0 * static_cast<double>(tokens * shape.q_width()));
  auto exposed = [&](double bytes_per_s) {
    const CostModel model = Model(n, {0, bytes_per_s});
    const Prediction p = model.Predict(Chunk(cached, tokens), Placement(n, 128),
                                       {TokenMode::kHome, RingStrategy::kPassKv});
    return 1 - p.busy_s / p.seconds;
  };
  EXPECT_LT(exposed(1.3 * bound), 0.02);
  // With half the operations, as "2 B^2 d" has it, this would count as hidden.
  EXPECT_GT(exposed(0.6 * bound), 0.2);
}

TEST(OpCost, FitsBothMeasuredTiles) {
  ModelShape shape = EightB();
  DeviceFigures f = Gpu();
  f.large_tile = {192, 4e12};
  f.small_tile = {4, 1e12};
  const OpCost cost(shape, f);
  const double flops = 4.0 * 128 * 8;  // of a row and key, all KV heads
  // 48 tokens of 4 heads are the large tile; one token is the small one.
  EXPECT_NEAR(cost.AttendTile(48 * 1000, 1000), flops * 192 * 1000 / 4e12, 1e-12);
  EXPECT_NEAR(cost.AttendTile(1000, 1000), flops * 4 * 1000 / 1e12, 1e-12);
}

TEST(OpCost, NoiseMakesNoCostNegative) {
  DeviceFigures f = Gpu();
  f.small_tile = {4, 2 * f.large_tile.flops_per_s};  // faster than the large one
  const OpCost cost(EightB(), f);
  EXPECT_GT(cost.AttendTile(1000, 1000), 0);
  EXPECT_GT(cost.AttendTile(48000, 1000), 0);
  f.small_tile = {4, f.large_tile.flops_per_s / 1000};  // far slower than any linear time
  EXPECT_GT(OpCost(EightB(), f).AttendTile(48000, 1000), 0);
}

TEST(Figures, RanksOfANodeShareItsUplink) {
  const Figures figures =
      Figures::OfNodes(8, 4, Gpu(), {1e-6, 400e9}, {.latency_s = 1e-5, .bytes_per_s = 40e9});
  EXPECT_DOUBLE_EQ(figures.Link(0, 1).bytes_per_s, 400e9);
  EXPECT_DOUBLE_EQ(figures.Link(3, 4).bytes_per_s, 40e9);  // alone in a shift by one
  EXPECT_DOUBLE_EQ(figures.Link(0, 4).bytes_per_s, 10e9);  // four leave in a shift by four
  EXPECT_DOUBLE_EQ(figures.Link(6, 1).bytes_per_s, 40e9 / 3);
  EXPECT_DOUBLE_EQ(figures.Link(7, 0).latency_s, 1e-5);
}

}  // namespace
}  // namespace ringfill
