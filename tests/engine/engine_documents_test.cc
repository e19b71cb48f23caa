// Prompts of several documents through the whole engine: every mode, strategy and layout, packed
// with others, over lost ranks and in strict numerics.
#include <map>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/reference_model.h"

namespace ringfill {
namespace {

constexpr int kNewTokens = 4;

// Around pages, stripes and chunks of SmallOptions; documents of one token, and of some hundred.
const std::vector<int64_t> kStarts{0, 5, 16, 17, 95, 96, 130, 261};
constexpr size_t kPromptTokens = 290;

TinyModelOptions Tiny() {
  TinyModelOptions tiny;
  tiny.layers = 2;
  tiny.heads = 9;
  tiny.kv_heads = 3;
  tiny.head_dim = 64;
  return tiny;
}

Request WithDocuments(Request request, std::vector<int64_t> starts) {
  request.document_starts = std::move(starts);
  return request;
}

// The reference under the mask, over what the engine chose; kept by the whole sequence.
const Logits& Reference(const Model& model, const std::vector<TokenId>& prompt,
                        const Outcome& outcome, const std::vector<int64_t>& starts) {
  static auto* const known = new std::map<std::vector<TokenId>, Logits>;
  std::vector<TokenId> all = prompt;
  for (TokenId id : outcome.ids()) all.push_back(id);
  const auto [found, is_new] = known->try_emplace(all);
  if (is_new) found->second = ReferenceLogits(model, all, starts);
  return found->second;
}

class EngineDocumentsTest : public testing::TestWithParam<int> {
 protected:
  static const std::string& Path() {
    static const auto* const path = new std::string(WriteTinyModel(Tiny()));
    return *path;
  }
  static std::vector<TokenId> Prompt() { return RandomPrompt(kPromptTokens, Tiny().vocab, 21); }

  static void ExpectAnswer(EngineRunner& runner, const Outcome& outcome) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    ASSERT_EQ(outcome.tokens.size(), static_cast<size_t>(kNewTokens));
    ExpectMatches(Reference(runner.engine().model(), Prompt(), outcome, kStarts), kPromptTokens,
                  outcome, 1e-3);
  }
};

TEST_P(EngineDocumentsTest, EveryWayAndLayoutMatchesTheReference) {
  const std::optional<RingStrategy> strategies[] = {RingStrategy::kPassKv, RingStrategy::kGatherKv,
                                                    RingStrategy::kPassQ, std::nullopt};
  for (Layout layout :
       {Layout::kSnake, Layout::kContiguous, Layout::kZigzag, Layout::kTokenStripes}) {
    for (std::optional<TokenMode> mode :
         {std::optional(TokenMode::kHome), std::optional(TokenMode::kDealt),
          std::optional(TokenMode::kReplicated), std::optional<TokenMode>()}) {
      for (const auto& strategy : strategies) {
        if (strategy.has_value() != (mode == TokenMode::kHome || mode == TokenMode::kDealt)) {
          continue;
        }
        EngineOptions options = SmallOptions(GetParam());
        options.chunk_tokens = 96;
        options.layout = layout;
        options.mode = mode;
        options.strategy = strategy;
        options.measure = !mode.has_value() && layout == Layout::kSnake;
        SCOPED_TRACE(absl::StrCat(std::string(LayoutName(layout)), ", mode ",
                                  mode.has_value() ? static_cast<int>(*mode) : -1));
        EngineRunner runner(Path(), options);
        ExpectAnswer(runner, runner.Run(WithDocuments(Greedy(Prompt(), kNewTokens), kStarts)));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(EngineDocumentsTest, ScoresAreThoseOfEachDocument) {
  EngineRunner runner(Path(), SmallOptions(GetParam()));
  Request request;
  request.kind = RequestKind::kScore;
  request.prompt = Prompt();
  const Outcome whole = runner.Run(WithDocuments(request, kStarts));
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  ASSERT_EQ(whole.done.prompt_logprobs.size(), kPromptTokens - 1);
  EXPECT_EQ(whole.done.predictions, static_cast<int64_t>(kPromptTokens - kStarts.size()));
  for (size_t d = 0; d < kStarts.size(); ++d) {
    const auto begin = static_cast<size_t>(kStarts[d]);
    const size_t end = d + 1 < kStarts.size() ? static_cast<size_t>(kStarts[d + 1]) : kPromptTokens;
    if (begin > 0) {
      EXPECT_EQ(whole.done.prompt_logprobs[begin - 1], 0);
    }
    Request alone = request;
    alone.prompt.assign(request.prompt.begin() + kStarts[d],
                        request.prompt.begin() + static_cast<int64_t>(end));
    const Outcome one = runner.Run(alone);
    ASSERT_EQ(one.done.prompt_logprobs.size(), end - begin - 1);
    EXPECT_EQ(one.done.predictions, static_cast<int64_t>(end - begin - 1));
    for (size_t i = 0; i < one.done.prompt_logprobs.size(); ++i) {
      EXPECT_NEAR(whole.done.prompt_logprobs[begin + i], one.done.prompt_logprobs[i], 1e-3);
    }
  }
}

TEST_P(EngineDocumentsTest, PackedWithOtherRequests) {
  EngineRunner runner(Path(), SmallOptions(GetParam()));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 6; ++i) {
    Request request = Greedy(Prompt(), kNewTokens);
    if (i % 2 == 0) request.document_starts = kStarts;
    clients.push_back(*Client::Start(runner.engine(), std::move(request)));
  }
  for (int i = 0; i < 6; ++i) {
    const Outcome outcome = clients[static_cast<size_t>(i)]->Finish();
    if (i % 2 == 0) {
      ExpectAnswer(runner, outcome);
    } else {
      ExpectMatchesReference(runner.engine().model(), Prompt(), outcome, 1e-3);
    }
  }
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineDocumentsTest, testing::Range(1, 6));

// The work of a prompt is the sum of its documents' squares, and the counters say so.
TEST(EngineDocumentWorkTest, IsTheSumOfSquares) {
  constexpr int64_t kTokens = 1024, kDocument = 64;
  EngineOptions options = SmallOptions(2);
  options.mode = TokenMode::kHome;
  EngineRunner runner(WriteTinyModel(Tiny()), options);
  Request request;
  request.kind = RequestKind::kScore;
  request.prompt = RandomPrompt(kTokens, Tiny().vocab, 4);
  for (int64_t p = 0; p < kTokens; p += kDocument) request.document_starts.push_back(p);
  ASSERT_TRUE(runner.Run(request).status.ok());
  double pairs = 0;
  for (const char* rank : {"0", "1"}) {
    pairs +=
        runner.metrics()
            .AddCounter("ringfill_attention_pairs_total",
                        "Pairs of a query token and a visible key, times layers", {{"rank", rank}})
            .Value();
  }
  EXPECT_EQ(pairs, Tiny().layers * kTokens / kDocument * (kDocument * (kDocument + 1) / 2));
}

// (ranks, step in which one is lost)
class EngineDocumentsLostRankTest : public testing::TestWithParam<std::tuple<int, uint64_t>> {};

TEST_P(EngineDocumentsLostRankTest, HolesAreFilledUnderTheSameMask) {
  const int ranks = std::get<0>(GetParam());
  const uint64_t lost_in = std::get<1>(GetParam());
  EngineOptions options = SmallOptions(ranks);
  options.chunk_tokens = 96;
  options.fault = [ranks, lost_in](int rank, uint64_t step) {
    return rank == ranks / 2 && step == lost_in ? absl::UnavailableError("lost") : absl::OkStatus();
  };
  EngineRunner runner(WriteTinyModel(Tiny()), options);
  const auto prompt = RandomPrompt(600, Tiny().vocab, 6);
  const std::vector<int64_t> starts{10, 100, 111, 300, 304, 590};
  const Outcome outcome = runner.Run(WithDocuments(Greedy(prompt, 20), starts));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  std::vector<TokenId> all = prompt;
  for (TokenId id : outcome.ids()) all.push_back(id);
  ExpectMatches(ReferenceLogits(runner.engine().model(), all, starts), prompt.size(), outcome,
                1e-3);
  EXPECT_GT(runner.engine().Status().recomputed_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Steps, EngineDocumentsLostRankTest,
                         testing::Combine(testing::Values(2, 4), testing::Values(3, 7, 12, 20)));

TEST(EngineDocumentsStrictTest, EqualBitsWhateverTheRanksTheChunksAndTheLosses) {
  const std::string path = WriteTinyModel(Tiny());
  const auto prompt = RandomPrompt(1300, Tiny().vocab, 12);
  const Request request = WithDocuments(Greedy(prompt, 12), {0, 3, 500, 1029, 1200});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<float> expected;
    for (const auto& [ranks, chunk, lost_in] : {std::tuple{1, 256, uint64_t{0}},
                                                {2, 96, 0},
                                                {3, 1000, 0},
                                                {5, 256, 0},
                                                {4, 256, 3},
                                                {4, 256, 9}}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, chunks of ", chunk));
      EngineOptions options = SmallOptions(ranks);
      options.strict = true;
      options.dtype = dtype;
      options.chunk_tokens = chunk;
      options.fault = [lost_in = lost_in](int rank, uint64_t step) {
        return rank == 1 && step == lost_in ? absl::UnavailableError("lost") : absl::OkStatus();
      };
      EngineRunner runner(path, options);
      const Outcome outcome = runner.Run(request);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      std::vector<float> bits;
      for (const TokenEvent& token : outcome.tokens) {
        bits.push_back(static_cast<float>(token.id));
        for (const TokenLogprob& top : token.top) bits.push_back(top.logprob);
      }
      if (expected.empty()) expected = bits;
      EXPECT_EQ(bits, expected);
    }
  }
}

}  // namespace
}  // namespace ringfill
