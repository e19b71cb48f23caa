// The whole engine on emulated GPUs, held to the plain reference.
#include <variant>

#include "gtest/gtest.h"
#include "tests/engine/cuda/gpu_engine.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/reference_model.h"

namespace ringfill {
namespace {

class GpuEngineTest : public testing::TestWithParam<int> {
 protected:
  GpuEngineTest() { ResetGpus(ranks(), 11); }
  int ranks() const { return GetParam(); }
};

TEST_P(GpuEngineTest, PromptsAndScoresMatchTheReference) {
  const TinyModelOptions tiny = GpuTinyModel();
  auto runner = GpuEngine(WriteTinyModel(tiny), SmallOptions(ranks()));
  for (const size_t length : {1u, 17u, 130u}) {
    SCOPED_TRACE(length);
    const auto prompt = RandomPrompt(length, tiny.vocab, 7);
    const Outcome outcome = runner->Run(Greedy(prompt, 4));
    ASSERT_EQ(outcome.tokens.size(), 4u) << outcome.status;
    ExpectMatchesReference(runner->engine().model(), prompt, outcome, kGpuTolerance);
    EXPECT_GT(outcome.done.ranks[0].busy_ms, 0);
  }
  Request request;
  request.kind = RequestKind::kScore;
  request.prompt = RandomPrompt(60, tiny.vocab, 11);
  const Outcome outcome = runner->Run(request);
  ASSERT_EQ(outcome.done.prompt_logprobs.size(), 59u) << outcome.status;
  const auto logits = ReferenceLogits(runner->engine().model(), request.prompt);
  for (size_t i = 0; i < 59; ++i) {
    EXPECT_NEAR(outcome.done.prompt_logprobs[i], ReferenceLogprob(logits[i], request.prompt[i + 1]),
                kGpuTolerance);
  }
  EXPECT_EQ(runner->PagesUsedWhenIdle(), 0);
}

TEST_P(GpuEngineTest, ALostRankEndsNoRequestOfTheOthers) {
  const TinyModelOptions tiny = GpuTinyModel();
  EngineOptions options = SmallOptions(ranks());
  // Steps 1 to 3 belong to the first request.
  options.fault = [last = ranks() - 1](int rank, uint64_t step) {
    return rank == last && last > 0 && step == 5 ? absl::UnavailableError("the GPU is gone")
                                                 : absl::OkStatus();
  };
  auto runner = GpuEngine(WriteTinyModel(tiny), options);
  for (const size_t length : {20u, 90u, 33u}) {
    SCOPED_TRACE(length);
    const auto prompt = RandomPrompt(length, tiny.vocab, 3);
    ExpectMatchesReference(runner->engine().model(), prompt, runner->Run(Greedy(prompt, 3)),
                           kGpuTolerance);
  }
}

TEST_P(GpuEngineTest, RequestsAtOnceAndADepartureDoNotDisturbEachOther) {
  const TinyModelOptions tiny = GpuTinyModel();
  EngineOptions options = SmallOptions(ranks());
  options.chunk_tokens = 64;
  auto runner = GpuEngine(WriteTinyModel(tiny), options);
  // Leaves while its prompt is read.
  auto leaving = Client::Start(runner->engine(), Greedy(RandomPrompt(900, tiny.vocab, 9), 4));
  ASSERT_TRUE(leaving.ok()) << leaving.status();
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t i = 0; i < 5; ++i) {
    prompts.push_back(RandomPrompt(1 + 29 * i, tiny.vocab, i));
    auto client = Client::Start(runner->engine(), Greedy(prompts.back(), 2 + static_cast<int>(i)));
    ASSERT_TRUE(client.ok()) << client.status();
    clients.push_back(*std::move(client));
  }
  while (!std::holds_alternative<ProgressEvent>((*leaving)->Next())) {
  }
  (*leaving)->outbox().Close();
  for (size_t i = 0; i < clients.size(); ++i) {
    SCOPED_TRACE(i);
    const Outcome outcome = clients[i]->Finish();
    EXPECT_EQ(outcome.tokens.size(), 2 + i);
    ExpectMatchesReference(runner->engine().model(), prompts[i], outcome, kGpuTolerance);
  }
  EXPECT_EQ(runner->PagesUsedWhenIdle(), 0);
  EXPECT_EQ(runner->engine().Status().failed_steps, 0);
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuEngineTest, testing::ValuesIn(GpuCounts()));

TEST(GpuUnevenTest, RanksTakeTheirShare) {
  if (GpuCounts().size() < 3) GTEST_SKIP() << "too few GPUs";
  ResetGpus(3, 12);
  const TinyModelOptions tiny = GpuTinyModel();
  EngineOptions options = SmallOptions(3);
  options.rank_weights = {1, 2, 3};
  options.mode = TokenMode::kHome;
  auto runner = GpuEngine(WriteTinyModel(tiny), options);
  const auto prompt = RandomPrompt(384, tiny.vocab, 3);  // a period of 2 * 12 stripes
  const Outcome outcome = runner->Run(Greedy(prompt, 1));
  ExpectMatchesReference(runner->engine().model(), prompt, outcome, kGpuTolerance);
  ASSERT_EQ(outcome.done.ranks.size(), 3u);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(outcome.done.ranks[r].kv_pages, 4 * static_cast<int64_t>(r + 1)) << "rank " << r;
  }
}

// Heads of every size that GPUs take, groups of every kind, weights of every stored type.
struct Geometry {
  int layers, heads, kv_heads, head_dim;
  WeightType type;
  bool tied;
};

class GpuGeometryTest : public testing::TestWithParam<Geometry> {};

TEST_P(GpuGeometryTest, MatchesTheReference) {
  const Geometry& g = GetParam();
  TinyModelOptions tiny;
  tiny.layers = g.layers;
  tiny.heads = g.heads;
  tiny.kv_heads = g.kv_heads;
  tiny.head_dim = g.head_dim;
  tiny.width = 96;
  tiny.tied = g.tied;
  tiny.rope_freqs = g.heads == 8;
  tiny.SetMatrixTypes(g.type);
  const std::string path = WriteTinyModel(tiny);
  for (const int ranks : GpuCounts()) {
    SCOPED_TRACE(ranks);
    ResetGpus(ranks, static_cast<uint64_t>(g.head_dim));
    auto runner = GpuEngine(path, SmallOptions(ranks));
    const auto prompt = RandomPrompt(75, tiny.vocab, 5);
    const Outcome outcome = runner->Run(Greedy(prompt, 3));
    ASSERT_EQ(outcome.tokens.size(), 3u) << outcome.status;
    ExpectMatchesReference(runner->engine().model(), prompt, outcome, kGpuTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuGeometryTest,
                         testing::Values(Geometry{1, 4, 4, 64, WeightType::kF32, true},
                                         Geometry{3, 9, 3, 64, WeightType::kQ4_1, true},
                                         Geometry{2, 8, 2, 80, WeightType::kQ4_0, false},
                                         Geometry{2, 4, 1, 96, WeightType::kBF16, false},
                                         Geometry{2, 8, 1, 128, WeightType::kQ8_0, false},
                                         Geometry{1, 6, 2, 256, WeightType::kF16, true}));

}  // namespace
}  // namespace ringfill
