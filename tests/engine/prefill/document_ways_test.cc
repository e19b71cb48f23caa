// Prompts of several documents in every mode, strategy and layout over any number of ranks: against
// the plain reference under the same mask, and against each document alone.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;
constexpr int kStripe = 2 * kPage;
constexpr RingStrategy kStrategies[] = {RingStrategy::kPassKv, RingStrategy::kGatherKv,
                                        RingStrategy::kPassQ, RingStrategy::kOrdered};

struct Way {
  TokenMode mode;
  RingStrategy strategy;
  std::string Name() const {
    return absl::StrCat(std::string(TokenModeName(mode)), " ",
                        std::string(RingStrategyName(strategy)));
  }
};

std::vector<Way> Ways() {
  std::vector<Way> out{{TokenMode::kReplicated, RingStrategy::kPassKv}};
  for (const TokenMode mode : {TokenMode::kHome, TokenMode::kDealt}) {
    for (const RingStrategy strategy : kStrategies) out.push_back({mode, strategy});
  }
  return out;
}

std::vector<PlacementSpec> Layouts(int n, int64_t tokens) {
  return {SnakeSpec(n, kStripe),
          ContiguousSpec(n, tokens, kPage),
          ZigzagSpec(n, tokens, kPage),
          TokenStripesSpec(n),
          SnakeSpec(n, 24),
          {kPage, {n - 1}}};
}

bool Fits(const PlacementSpec& spec, const Way& way) {
  return way.strategy != RingStrategy::kOrdered || spec.stripe_tokens % kPage == 0;
}

// The beginning of TinyText as documents, and what the reference says of it.
PassTestModel Documents(int64_t tokens, const std::vector<int64_t>& starts) {
  PassTestModel out = TinyText();
  out.text.resize(static_cast<size_t>(tokens));
  out.logits = ReferenceLogits(*out.model, out.text, starts);
  return out;
}

int64_t PairsOf(const std::vector<RankStepResult>& results) {
  int64_t pairs = 0;
  for (const RankStepResult& result : results) pairs += result.work.attention_pairs;
  return pairs;
}

int64_t BytesOf(const std::vector<RankStepResult>& results) {
  int64_t bytes = 0;
  for (const RankStepResult& result : results) bytes += result.ring_bytes;
  return bytes;
}

class DocumentWaysTest : public testing::TestWithParam<int> {};

TEST_P(DocumentWaysTest, EveryPositionMatchesTheBlockDiagonalReference) {
  const int n = GetParam();
  // Documents within a page, over several stripes, of one token, that begin where a page, a stripe,
  // a chunk begins; the first one is not named.
  const std::vector<int64_t> starts{3, 21, 22, 64, 77, 100, 112, 179};
  const int64_t tokens = 191, cut = 77;
  static const PassTestModel* const text = new PassTestModel(Documents(tokens, starts));
  int64_t pairs = 0;
  for (int64_t p = 0, start = 0; p < cut; ++p) {
    if (std::find(starts.begin(), starts.end(), p) != starts.end()) start = p;
    pairs += p + 1 - start;
  }
  RingHarness ring(text->model, {.ranks = n});
  for (const PlacementSpec& spec : Layouts(n, tokens)) {
    for (const Way& way : Ways()) {
      if (!Fits(spec, way)) continue;
      SCOPED_TRACE(absl::StrCat(way.Name(), ", stripes of ", spec.stripe_tokens));
      const bool scores = way.mode != TokenMode::kReplicated;
      RingHarness::Sequence& prompt = ring.AddSequence(text->text, spec);
      prompt.document_starts = starts;
      StepPlan first = ring.NewPlan();
      PrefillChunk& chunk = ring.AddChunk(first, prompt, {{0, cut}}, way.mode, way.strategy);
      if (scores) ScoreAll(prompt.tokens, chunk);
      const auto results = ring.Run(first);
      if (scores) ExpectScores(*text, first, 0, results);
      const auto logits = ring.Logits(results);
      ASSERT_EQ(logits.size(), 1u);
      ExpectLogitsNear(logits[0], text->logits[static_cast<size_t>(cut - 1)]);
      // What nobody sees was not computed.
      EXPECT_EQ(PairsOf(results), pairs * text->model->config().layers);
      // Only the last position is asked for: most rows sit out the last layer.
      StepPlan second = ring.NewPlan();
      ring.AddChunk(second, prompt, {{cut, tokens}}, way.mode, way.strategy);
      const auto last = ring.Logits(ring.Run(second));
      ASSERT_EQ(last.size(), 1u);
      ExpectLogitsNear(last[0], text->logits.back());
      // And decode sees the last document.
      StepPlan third = ring.NewPlan();
      ring.AddDecode(third, prompt, tokens - 1);
      const auto decode_results = ring.Run(third);
      const auto decoded = ring.Logits(decode_results);
      ASSERT_EQ(decoded.size(), 1u);
      ExpectLogitsNear(decoded[0], text->logits.back());
      EXPECT_EQ(PairsOf(decode_results), (tokens - 179) * text->model->config().layers);
      ring.Release(prompt);
    }
  }
}

// Positions run on through the prompt, so this also says that only their differences matter.
TEST_P(DocumentWaysTest, ADocumentAtAnyResidueIsTheDocumentAlone) {
  const int n = GetParam();
  const PassTestModel& text = TinyText();
  constexpr int64_t kLength = 23;
  RingHarness ring(text.model, {.ranks = n});
  const std::vector<Way> ways = Ways();
  size_t turn = 0;
  for (int64_t start = 1; start <= 2 * kStripe; ++start) {
    const std::vector<TokenId> alone(text.text.begin() + start,
                                     text.text.begin() + start + kLength);
    const auto expected = ReferenceLogits(*text.model, alone);
    for (int i = 0; i < 3; ++i) {
      const Way& way = ways[turn++ % ways.size()];
      // In one chunk with what comes before, or cut from it before, at, behind the beginning.
      const int64_t cut = i == 2 ? 0 : std::max<int64_t>(0, start + 7 * i - 5 + start % 6);
      SCOPED_TRACE(absl::StrCat(way.Name(), ", begins at ", start, ", cut at ", cut));
      RingHarness::Sequence& prompt =
          ring.AddSequence(text.Prefix(start + kLength), SnakeSpec(n, kStripe));
      prompt.document_starts = {start / 2, start};
      if (start / 2 == 0) prompt.document_starts.erase(prompt.document_starts.begin());
      if (cut > 0) {
        StepPlan before = ring.NewPlan();
        ring.AddChunk(before, prompt, {{0, cut}}, way.mode, way.strategy).wants_logits = false;
        ASSERT_TRUE(ring.Run(before)[0].status.ok());
      }
      StepPlan plan = ring.NewPlan();
      ring.AddChunk(plan, prompt, {{cut, start + kLength}}, way.mode, way.strategy);
      const auto logits = ring.Logits(ring.Run(plan));
      ASSERT_EQ(logits.size(), 1u);
      ExpectLogitsNear(logits[0], expected.back());
      ring.Release(prompt);
    }
  }
}

TEST_P(DocumentWaysTest, HolesInAnyDocumentAreFilled) {
  const int n = GetParam();
  const std::vector<int64_t> starts{0, 40, 85, 150, 225};
  const PassTestModel text = Documents(230, starts);
  RingHarness ring(text.model, {.ranks = n});
  for (const Way& way : Ways()) {
    if (way.mode == TokenMode::kReplicated) continue;
    SCOPED_TRACE(way.Name());
    RingHarness::Sequence& prompt = ring.AddSequence(text.text, SnakeSpec(n, kStripe));
    prompt.document_starts = starts;
    StepPlan cold = ring.NewPlan();
    ring.AddChunk(cold, prompt, {{0, 220}}, TokenMode::kHome, RingStrategy::kPassKv);
    ring.Run(cold);
    StepPlan plan = ring.NewPlan();
    std::vector<Span> lost{{32, 64}, {80, 96}, {128, 160}};
    ring.LosePages(plan, prompt, lost);
    lost.push_back({220, 230});
    ScoreAll(text.text, ring.AddChunk(plan, prompt, lost, way.mode, way.strategy));
    ExpectScores(text, plan, 0, ring.RunEach(std::vector<StepPlan>(static_cast<size_t>(n), plan)));
    ring.Release(prompt);
  }
}

TEST_P(DocumentWaysTest, PackedWithOtherPromptsAndDecodes) {
  const int n = GetParam();
  const std::vector<int64_t> starts{0, 9, 50, 51, 90};
  const PassTestModel text = Documents(130, starts);
  const PassTestModel& plain = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  const std::vector<Way> ways = Ways();
  StepPlan before = ring.NewPlan(), plan = ring.NewPlan();
  std::vector<const std::vector<float>*> expected;
  for (size_t i = 0; i < 2 * ways.size(); ++i) {
    const bool documents = i % 2 == 0;
    const Way& way = ways[i / 2];
    const auto end = static_cast<int64_t>(60 + 4 * i);
    const int64_t prefix = static_cast<int64_t>(13 * i) % 60;
    RingHarness::Sequence& prompt = ring.AddSequence(plain.Prefix(end), SnakeSpec(n, kStripe));
    if (documents) prompt.document_starts = {0, 9, 50, 51, 90};
    while (documents && prompt.document_starts.back() >= end) prompt.document_starts.pop_back();
    if (prefix > 0) {
      ring.AddChunk(before, prompt, {{0, prefix}}, TokenMode::kHome, RingStrategy::kGatherKv)
          .wants_logits = false;
    }
    ring.AddChunk(plan, prompt, {{prefix, end}}, way.mode, way.strategy);
    expected.push_back(&(documents ? text : plain).logits[static_cast<size_t>(end - 1)]);
  }
  for (const int64_t at : {8, 9, 50, 120}) {
    for (const bool documents : {true, false}) {
      RingHarness::Sequence& prompt = ring.AddSequence(plain.Prefix(at + 1), SnakeSpec(n, kStripe));
      if (documents) prompt.document_starts = starts;
      ring.AddChunk(before, prompt, {{0, at}}, TokenMode::kDealt, RingStrategy::kPassQ)
          .wants_logits = false;
      ring.AddDecode(plan, prompt, at);
      expected.push_back(&(documents ? text : plain).logits[static_cast<size_t>(at)]);
    }
  }
  EXPECT_TRUE(ring.Logits(ring.Run(before)).empty());
  const auto logits = ring.Logits(ring.Run(plan));
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectLogitsNear(logits[i], *expected[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DocumentWaysTest, testing::Values(1, 2, 3, 4, 5));

// A chunk in the last document moves no KV of those before it.
TEST(DocumentShardsTest, LeaveOutWhatNobodySees) {
  constexpr int n = 3;
  const PassTestModel& text = TinyText();
  RingHarness ring(text.model, {.ranks = n});
  for (const RingStrategy strategy :
       {RingStrategy::kPassKv, RingStrategy::kGatherKv, RingStrategy::kOrdered}) {
    SCOPED_TRACE(std::string(RingStrategyName(strategy)));
    int64_t bytes[2];
    for (const bool documents : {false, true}) {
      // Beyond the first window of the ordered strategy.
      std::vector<TokenId> tokens = RandomTokens(1400, text.model->config().vocab, 3);
      RingHarness::Sequence& prompt = ring.AddSequence(std::move(tokens), SnakeSpec(n, kStripe));
      if (documents) prompt.document_starts = {1200};
      StepPlan cold = ring.NewPlan();
      ring.AddChunk(cold, prompt, {{0, 1300}}, TokenMode::kHome, RingStrategy::kGatherKv);
      ring.Run(cold);
      StepPlan plan = ring.NewPlan();
      ring.AddChunk(plan, prompt, {{1300, 1400}}, TokenMode::kHome, strategy);
      bytes[documents ? 1 : 0] = BytesOf(ring.Run(plan));
      ring.Release(prompt);
    }
    const int64_t share = strategy == RingStrategy::kOrdered ? 2 : 4;
    EXPECT_LT(share * bytes[1], bytes[0]);
  }
}

// Logits of the end of a prompt whose documents begin at `starts`, in strict numerics.
std::vector<float> StrictRun(const std::shared_ptr<const Model>& model, int n,
                             const std::vector<int64_t>& starts, const std::vector<int64_t>& ends,
                             TokenMode mode) {
  RingHarnessOptions options{.ranks = n, .pages_per_rank = 600};
  options.model.strict = true;
  RingHarness ring(model, options);
  RingHarness::Sequence& prompt = ring.AddSequence(
      RandomTokens(static_cast<size_t>(ends.back()), model->config().vocab, 5), SnakeSpec(n, 32));
  prompt.document_starts = starts;
  std::vector<float> last;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    StepPlan plan = ring.NewPlan();
    ring.AddChunk(plan, prompt, {{begin, end}}, mode, RingStrategy::kOrdered);
    const auto logits = ring.Logits(ring.Run(plan));
    EXPECT_EQ(logits.size(), 1u);
    if (logits.size() == 1) last = logits[0];
    begin = end;
  }
  return last;
}

TEST(DocumentStrictTest, RanksChunksAndModesDoNotShowInABit) {
  TinyModelOptions tiny;
  tiny.layers = 2;
  tiny.head_dim = 80;
  const auto model = LoadModelOrDie(WriteTinyModel(tiny));
  const std::vector<int64_t> starts{5, 700, 1231};
  const std::vector<float> alone = StrictRun(model, 1, starts, {2700}, TokenMode::kHome);
  for (const int n : {2, 3, 5}) {
    SCOPED_TRACE(n);
    ExpectEqualBits(StrictRun(model, n, starts, {2700}, TokenMode::kDealt), alone);
    ExpectEqualBits(StrictRun(model, n, starts, {690, 1240, 2048, 2699, 2700}, TokenMode::kHome),
                    alone);
  }
  // What lies in the documents before does not show either.
  ExpectEqualBits(StrictRun(model, 2, {1231}, {2700}, TokenMode::kHome), alone);
}

}  // namespace
}  // namespace ringfill
