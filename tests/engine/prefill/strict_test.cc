// Position order and fixed product tiles: equal bits whatever the ranks, chunks and neighbours.

#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int64_t kTokens = 2700;  // over several windows' cuts

class StrictTest : public testing::Test {
 protected:
  static RingHarnessOptions Options(int n) {
    RingHarnessOptions options;
    options.ranks = n;
    options.pages_per_rank = 600;
    options.model.strict = true;
    return options;
  }
  static const Model& SharedModel() { return *ModelPtr(); }
  static std::shared_ptr<const Model> ModelPtr() {
    static const auto* const model = [] {
      TinyModelOptions options;
      options.layers = 2;
      options.head_dim = 80;  // a pass of the kernel is no divisor of a cut
      return new std::shared_ptr<const Model>(LoadModelOrDie(WriteTinyModel(options)));
    }();
    return *model;
  }
  static std::vector<TokenId> Text() {
    return RandomTokens(kTokens, SharedModel().config().vocab, 5);
  }

  // Computes the text in chunks that end at `ends`, beside `neighbours` other prompts; the logits
  // of its last position.
  static std::vector<float> Run(int n, int stripe, const std::vector<int64_t>& ends, TokenMode mode,
                                int neighbours) {
    RingHarness ring(ModelPtr(), Options(n));
    const auto& prompt = ring.AddSequence(Text(), SnakeSpec(n, stripe));
    std::vector<const RingHarness::Sequence*> others;
    for (int i = 0; i < neighbours; ++i) {
      others.push_back(&ring.AddSequence(
          RandomTokens(static_cast<size_t>(37 + 61 * i), SharedModel().config().vocab, 50),
          SnakeSpec(n, stripe)));
    }
    std::vector<float> last;
    int64_t begin = 0;
    for (const int64_t end : ends) {
      StepPlan plan = ring.NewPlan();
      for (const RingHarness::Sequence* other : others) {
        ring.AddChunk(plan, *other, {{0, static_cast<int64_t>(other->tokens.size())}}, mode,
                      RingStrategy::kOrdered)
            .wants_logits = false;
      }
      ring.AddChunk(plan, prompt, {{begin, end}}, mode, RingStrategy::kOrdered);
      const auto logits = ring.Logits(ring.Run(plan));
      EXPECT_EQ(logits.size(), 1u);
      if (logits.size() == 1) last = logits[0];
      begin = end;
    }
    return last;
  }
};

TEST_F(StrictTest, RanksChunksModesAndNeighboursDoNotShowInABit) {
  const std::vector<float> alone = Run(1, 64, {kTokens}, TokenMode::kHome, 0);
  for (const int n : {2, 3, 5}) {
    SCOPED_TRACE(n);
    ExpectEqualBits(Run(n, 64, {kTokens}, TokenMode::kHome, 0), alone);
    ExpectEqualBits(Run(n, 16, {1000, 1001, 2048, kTokens}, TokenMode::kDealt, 3), alone);
  }
  ExpectEqualBits(Run(1, 64, {17, 1024, 2650, kTokens}, TokenMode::kDealt, 2), alone);
}

TEST_F(StrictTest, ADecodedTokenIsAChunkOfOne) {
  const std::vector<float> alone = Run(1, 64, {kTokens}, TokenMode::kHome, 0);
  for (const int n : {1, 2, 4}) {
    for (const TokenMode mode : {TokenMode::kHome, TokenMode::kDealt}) {
      ExpectEqualBits(Run(n, 32, {kTokens - 1, kTokens}, mode, 1), alone);
    }
  }
}

// More than one window, several chunks in one.
TEST_F(StrictTest, LongTextsMatchTheRing) {
  const int n = 3;
  const auto text = RandomTokens(9000, SharedModel().config().vocab, 6);
  std::vector<std::vector<std::vector<float>>> logits;
  for (const RingStrategy strategy : {RingStrategy::kPassKv, RingStrategy::kOrdered}) {
    RingHarness ring(ModelPtr(), Options(n));
    StepPlan plan = ring.NewPlan();
    for (const int64_t length : {9000, 600, 1}) {
      const auto& prompt =
          ring.AddSequence({text.begin(), text.begin() + length}, SnakeSpec(n, 64));
      ring.AddChunk(plan, prompt, {{0, length}}, TokenMode::kHome, strategy);
    }
    logits.push_back(ring.Logits(ring.Run(plan)));
  }
  ASSERT_EQ(logits[0].size(), 3u);
  ASSERT_EQ(logits[1].size(), 3u);
  for (size_t i = 0; i < 3; ++i) ExpectLogitsNear(logits[1][i], logits[0][i]);
}

}  // namespace
}  // namespace ringfill
