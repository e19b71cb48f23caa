// The full cross of modes, strategies, layouts, transports and numbers of ranks over models of many
// geometries; and models with values that are hard on the arithmetic.
#include <cstring>
#include <limits>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;
constexpr int64_t kTokens = 75;
constexpr RingStrategy kStrategies[] = {RingStrategy::kPassKv, RingStrategy::kGatherKv,
                                        RingStrategy::kPassQ, RingStrategy::kOrdered};

// Every way to compute the text from `prefix` on, cold below it, over 1 to 5 ranks.
void CheckEveryWay(const PassTestModel& text, int64_t prefix, double tolerance, bool tcp) {
  const auto tokens = static_cast<int64_t>(text.text.size());
  for (const int n : {1, 2, 3, 4, 5}) {
    RingHarness ring(text.model, {.ranks = n, .tcp = tcp});
    const PlacementSpec specs[] = {SnakeSpec(n, kPage), ContiguousSpec(n, tokens, kPage),
                                   ZigzagSpec(n, tokens, kPage), TokenStripesSpec(n)};
    for (size_t s = 0; s < 4; ++s) {
      for (const RingStrategy strategy : kStrategies) {
        if (strategy == RingStrategy::kOrdered && specs[s].stripe_tokens % kPage != 0) continue;
        for (const TokenMode mode : {TokenMode::kHome, TokenMode::kDealt, TokenMode::kReplicated}) {
          const bool replicated = mode == TokenMode::kReplicated;
          if (replicated && strategy != RingStrategy::kPassKv) continue;
          SCOPED_TRACE(absl::StrCat("ranks ", n, ", layout ", s, ", ",
                                    std::string(RingStrategyName(strategy)), ", mode ",
                                    static_cast<int>(mode)));
          RingHarness::Sequence& prompt = ring.AddSequence(text.text, specs[s]);
          if (prefix > 0) {
            StepPlan cold = ring.NewPlan();
            ring.AddChunk(cold, prompt, {{0, prefix}}, mode, strategy).wants_logits = false;
            ASSERT_TRUE(ring.Run(cold)[0].status.ok());
          }
          StepPlan plan = ring.NewPlan();
          PrefillChunk& chunk = ring.AddChunk(plan, prompt, {{prefix, tokens}}, mode, strategy);
          if (!replicated) ScoreAll(text.text, chunk);
          const auto results = ring.Run(plan);
          const auto logits = ring.Logits(results);
          ASSERT_EQ(logits.size(), 1u);
          ExpectLogitsNear(logits[0], text.logits.back(), tolerance);
          if (!replicated) ExpectScores(text, plan, 0, results, tolerance);
          ring.Release(prompt);
        }
      }
    }
  }
}

struct Geometry {
  int layers, heads, kv_heads, head_dim;
};

class CrossTest : public testing::TestWithParam<std::tuple<Geometry, bool>> {};

TEST_P(CrossTest, EveryWayMatchesTheReference) {
  const auto& [g, tcp] = GetParam();
  TinyModelOptions options;
  options.layers = g.layers;
  options.heads = g.heads;
  options.kv_heads = g.kv_heads;
  options.head_dim = g.head_dim;
  CheckEveryWay(PassTestModel(options, static_cast<size_t>(kTokens)), 21, 1e-3, tcp);
}

INSTANTIATE_TEST_SUITE_P(
    Geometries, CrossTest,
    testing::Combine(testing::Values(Geometry{1, 4, 4, 64}, Geometry{2, 4, 4, 80},
                                     Geometry{1, 4, 4, 128}, Geometry{3, 9, 3, 64},
                                     Geometry{1, 9, 3, 80}, Geometry{1, 9, 3, 128},
                                     Geometry{1, 8, 2, 64}, Geometry{2, 8, 2, 80},
                                     Geometry{1, 8, 2, 128}, Geometry{2, 8, 1, 64},
                                     Geometry{1, 8, 1, 80}, Geometry{1, 8, 1, 128}),
                     testing::Bool()),
    [](const auto& param) {
      const Geometry& g = std::get<0>(param.param);
      return absl::StrCat(std::get<1>(param.param) ? "tcp_" : "local_", g.layers, "_", g.heads, "_",
                          g.kv_heads, "_", g.head_dim);
    });

// Where the floats of `row` lie in a model's file.
std::vector<std::byte>::iterator FindFloats(std::vector<std::byte>& file, const std::byte* row,
                                            size_t bytes) {
  const auto at = std::search(file.begin(), file.end(), row, row + bytes);
  EXPECT_NE(at, file.end());
  return at;
}

// Scores of a magnitude of 1e4: almost all weight on one key, and maxima that differ wildly between
// the ranks that merge.
TEST(HardValuesTest, ScoresOfTenThousand) {
  TinyModelOptions options;
  options.layers = 1;
  std::vector<std::byte> file = BuildTinyModel(options);
  {
    const auto plain = LoadModelOrDie(WriteTempFile(file, ".gguf"));
    const WeightMatrix& q = plain->layers()[0].q;
    for (int64_t r = 0; r < q.rows; ++r) {
      const size_t bytes = static_cast<size_t>(q.cols) * sizeof(float);
      std::vector<float> row(static_cast<size_t>(q.cols));
      std::memcpy(row.data(), q.Row(r), bytes);
      const auto at = FindFloats(file, q.Row(r), bytes);
      for (float& v : row) v *= 6000;
      std::memcpy(&*at, row.data(), bytes);
    }
  }
  PassTestModel text(TinyModelOptions{}, 1);
  text.model = LoadModelOrDie(WriteTempFile(file, ".gguf"));
  text.text = RandomTokens(static_cast<size_t>(kTokens), options.vocab, 4);
  text.logits = ReferenceLogits(*text.model, text.text);
  // A float32 score of 1e4 is good to about 1e-3, which is its weight's relative error.
  CheckEveryWay(text, 30, 1e-2, false);
}

// A weight that is not a number reaches only the prompts that use it.
TEST(HardValuesTest, ABrokenEmbeddingFailsItsPromptAlone) {
  TinyModelOptions options;
  options.tied = false;
  std::vector<std::byte> file = BuildTinyModel(options);
  constexpr TokenId kBroken = 300;
  {
    const auto plain = LoadModelOrDie(WriteTempFile(file, ".gguf"));
    const WeightMatrix& embedding = plain->embedding();
    const auto at = FindFloats(file, embedding.Row(kBroken),
                               static_cast<size_t>(embedding.cols) * sizeof(float));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(&*at, &nan, sizeof(nan));
  }
  const auto model = LoadModelOrDie(WriteTempFile(file, ".gguf"));
  std::vector<TokenId> sound = RandomTokens(90, kBroken, 4);
  std::vector<TokenId> broken = sound;
  broken[40] = kBroken;
  const auto reference = ReferenceLogits(*model, sound);
  for (const int n : {1, 3}) {
    for (const RingStrategy strategy : kStrategies) {
      for (const TokenMode mode : {TokenMode::kHome, TokenMode::kDealt, TokenMode::kReplicated}) {
        RingHarness ring(model, {.ranks = n});
        StepPlan plan = ring.NewPlan();
        ring.AddChunk(plan, ring.AddSequence(broken, SnakeSpec(n, kPage)), {{0, 90}}, mode,
                      strategy);
        ring.AddChunk(plan, ring.AddSequence(sound, SnakeSpec(n, kPage)), {{0, 90}}, mode,
                      strategy);
        const auto results = ring.Run(plan);
        const auto logits = ring.Logits(results);
        ASSERT_EQ(logits.size(), 2u);
        ExpectLogitsNear(logits[1], reference[89]);
        int faults = 0;
        for (const RankStepResult& result : results) {
          for (const ValueFault& fault : result.faults) {
            EXPECT_EQ(fault.entry, 0);
            ++faults;
          }
        }
        EXPECT_GT(faults, 0);
      }
    }
  }
}

}  // namespace
}  // namespace ringfill
