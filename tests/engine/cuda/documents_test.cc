// Prompts of several documents on emulated GPUs: a sample of modes, strategies and layouts on 1 to
// 4 devices, against the plain reference under the same mask.
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/engine/cuda/gpu_ring.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;
constexpr int64_t kTokens = 91;
constexpr int64_t kCut = 39;

// Documents within a page, over several stripes, of one token, that begin where a page and where a
// chunk begins; the first one is not named.
const std::vector<int64_t> kStarts{3, 21, 22, 32, kCut, 64, 79};

// Long enough to hold whole pages, which a library's attention takes.
const std::vector<int64_t> kLongStarts{5, 70};

PassTestModel* MakeDocuments(const std::vector<int64_t>& starts) {
  auto* const out = new PassTestModel(GpuTinyModel(), static_cast<size_t>(kTokens));
  out->logits = ReferenceLogits(*out->model, out->text, starts);
  return out;
}
const PassTestModel& GpuDocuments(bool of_long_ones) {
  static const auto* const text = MakeDocuments(kStarts);
  static const auto* const text_of_long_ones = MakeDocuments(kLongStarts);
  return of_long_ones ? *text_of_long_ones : *text;
}

int64_t PairsOf(const std::vector<RankStepResult>& results) {
  int64_t pairs = 0;
  for (const RankStepResult& result : results) pairs += result.work.attention_pairs;
  return pairs;
}

// Of positions [0, end), each with those of its document up to itself.
int64_t PairsBefore(const std::vector<int64_t>& starts, int64_t end) {
  int64_t pairs = 0, start = 0;
  for (int64_t p = 0; p < end; ++p) {
    if (std::find(starts.begin(), starts.end(), p) != starts.end()) start = p;
    pairs += p + 1 - start;
  }
  return pairs;
}

class GpuDocumentsTest : public testing::TestWithParam<GpuCase> {
 protected:
  GpuDocumentsTest() : ring_(documents().model, Ring()) {}
  int ranks() const { return std::get<0>(GetParam()); }
  // Attention beside a library's, or by the kernels alone.
  bool library() const { return std::get<1>(GetParam()); }
  const PassTestModel& documents() const { return GpuDocuments(library()); }
  const std::vector<int64_t>& starts() const { return library() ? kLongStarts : kStarts; }
  RingHarnessOptions Ring() const {
    ResetGpus(ranks(), 5);
    OfferFusedAttention(library());
    return GpuRing(ranks());
  }

  // The prompt in two chunks and a decode of its last token.
  void Run(const PlacementSpec& spec, TokenMode mode, RingStrategy strategy) {
    const PassTestModel& text = documents();
    const int layers = text.model->config().layers;
    const bool scores = mode != TokenMode::kReplicated;
    RingHarness::Sequence& prompt = ring_.AddSequence(text.text, spec);
    prompt.document_starts = starts();
    StepPlan first = ring_.NewPlan();
    PrefillChunk& chunk = ring_.AddChunk(first, prompt, {{0, kCut}}, mode, strategy);
    if (scores) ScoreAll(prompt.tokens, chunk);
    const auto results = ring_.Run(first);
    if (scores) ExpectScores(text, first, 0, results, kGpuTolerance);
    ExpectLast(results, kCut - 1);
    // What nobody sees was not computed.
    EXPECT_EQ(PairsOf(results), PairsBefore(starts(), kCut) * layers);
    // Only the last position is asked for: most rows sit out the last layer.
    StepPlan second = ring_.NewPlan();
    ring_.AddChunk(second, prompt, {{kCut, kTokens}}, mode, strategy);
    ExpectLast(ring_.Run(second), kTokens - 1);
    StepPlan third = ring_.NewPlan();
    ring_.AddDecode(third, prompt, kTokens - 1);
    const auto decoded = ring_.Run(third);
    ExpectLast(decoded, kTokens - 1);
    EXPECT_EQ(PairsOf(decoded), (kTokens - starts().back()) * layers);
    ring_.Release(prompt);
  }

  void ExpectLast(const std::vector<RankStepResult>& results, int64_t position) {
    const auto logits = ring_.Logits(results);
    ASSERT_EQ(logits.size(), 1u);
    ExpectLogitsNear(logits[0], documents().logits[static_cast<size_t>(position)], kGpuTolerance);
  }

  RingHarness ring_;
};

TEST_P(GpuDocumentsTest, EveryPositionMatchesTheBlockDiagonalReference) {
  constexpr RingStrategy kStrategies[] = {RingStrategy::kPassKv, RingStrategy::kGatherKv,
                                          RingStrategy::kPassQ, RingStrategy::kOrdered};
  const PlacementSpec snake = SnakeSpec(ranks(), 2 * kPage);
  const int64_t tried = FusedPairs();
  for (const TokenMode mode : {TokenMode::kHome, TokenMode::kDealt}) {
    for (const RingStrategy strategy : kStrategies) {
      SCOPED_TRACE(absl::StrCat(std::string(TokenModeName(mode)), " ",
                                std::string(RingStrategyName(strategy))));
      Run(snake, mode, strategy);
    }
  }
  if (FusedPairs() >= 0) {
    EXPECT_EQ(FusedPairs() > tried, library());
  }
}

TEST_P(GpuDocumentsTest, InOtherLayoutsAndReplicated) {
  for (const PlacementSpec& spec : {SnakeSpec(ranks(), kPage), ZigzagSpec(ranks(), kTokens, kPage),
                                    TokenStripesSpec(ranks())}) {
    SCOPED_TRACE(absl::StrCat("stripes of ", spec.stripe_tokens));
    Run(spec, TokenMode::kHome, RingStrategy::kPassKv);
    Run(spec, TokenMode::kReplicated, RingStrategy::kPassKv);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuDocumentsTest, testing::ValuesIn(GpuCases(2)), GpuCaseName);

}  // namespace
}  // namespace ringfill
