// The whole engine on tiny random models, held to the plain reference for any number of ranks.
#include "engine/engine.h"

#include <cmath>
#include <random>

#include "base/machine.h"
#include "engine/engine_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/reference_model.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

class EngineRanksTest : public testing::TestWithParam<int> {};

TEST_P(EngineRanksTest, AnyPromptLengthMatchesTheReference) {
  const int n = GetParam();
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  EngineRunner runner(path, SmallOptions(n));
  for (int length : {1, 2, 15, 16, 17, 2 * n - 1, 2 * n + 1, 129, 16 * 2 * n, 300}) {
    if (length < 1) continue;
    SCOPED_TRACE(length);
    const auto prompt = RandomPrompt(static_cast<size_t>(length), tiny.vocab, 7);
    const Outcome outcome = runner.Run(Greedy(prompt, 5));
    ASSERT_EQ(outcome.tokens.size(), 5u);
    ExpectMatchesReference(runner.engine().model(), prompt, outcome, 1e-3);
  }
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
}

TEST_P(EngineRanksTest, PromptScoresMatchTheReference) {
  TinyModelOptions tiny;
  EngineRunner runner(WriteTinyModel(tiny), SmallOptions(GetParam()));
  for (size_t length : {1u, 2u, 300u}) {
    Request request;
    request.kind = RequestKind::kScore;
    request.prompt = RandomPrompt(length, tiny.vocab, 11);
    const Outcome outcome = runner.Run(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    ASSERT_EQ(outcome.done.prompt_logprobs.size(), length - 1);
    const auto logits = ReferenceLogits(runner.engine().model(), request.prompt);
    for (size_t i = 0; i + 1 < length; ++i) {
      EXPECT_NEAR(outcome.done.prompt_logprobs[i],
                  ReferenceLogprob(logits[i], request.prompt[i + 1]), 1e-3);
    }
  }
}

TEST_P(EngineRanksTest, SeveralRequestsAtOnceDoNotDisturbEachOther) {
  TinyModelOptions tiny;
  EngineRunner runner(WriteTinyModel(tiny), SmallOptions(GetParam()));
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t i = 0; i < 12; ++i) {
    prompts.push_back(RandomPrompt(1 + 37 * i, tiny.vocab, i));
    auto client = Client::Start(runner.engine(), Greedy(prompts.back(), 6 + static_cast<int>(i)));
    ASSERT_TRUE(client.ok()) << client.status();
    clients.push_back(*std::move(client));
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    SCOPED_TRACE(i);
    const Outcome outcome = clients[i]->Finish();
    EXPECT_EQ(outcome.tokens.size(), 6 + i);
    ExpectMatchesReference(runner.engine().model(), prompts[i], outcome, 1e-3);
  }
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineRanksTest, testing::Values(1, 2, 3, 4, 5, 8));

struct Geometry {
  int layers, heads, kv_heads, head_dim;
  WeightType type;
  bool tied;
};

class EngineGeometryTest : public testing::TestWithParam<Geometry> {};

TEST_P(EngineGeometryTest, MatchesTheReference) {
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
  for (int ranks : {1, 3}) {
    EngineRunner runner(path, SmallOptions(ranks));
    const auto prompt = RandomPrompt(130, tiny.vocab, 5);
    ExpectMatchesReference(runner.engine().model(), prompt, runner.Run(Greedy(prompt, 3)), 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EngineGeometryTest,
                         testing::Values(Geometry{1, 4, 4, 64, WeightType::kF32, true},
                                         Geometry{3, 9, 3, 64, WeightType::kQ4_1, true},
                                         Geometry{2, 8, 2, 80, WeightType::kQ4_0, false},
                                         Geometry{2, 8, 1, 128, WeightType::kQ8_0, false},
                                         Geometry{2, 4, 2, 32, WeightType::kF16, true},
                                         Geometry{2, 4, 1, 96, WeightType::kBF16, false}));

// Every instruction set that the machine has, both types.
class EngineIsaTest : public testing::TestWithParam<CpuIsa> {};

TEST_P(EngineIsaTest, MatchesTheReference) {
  if (GetParam() > DetectCpuIsa()) GTEST_SKIP() << "this machine lacks " << CpuIsaName(GetParam());
  TinyModelOptions tiny;
  tiny.head_dim = 64;
  tiny.SetMatrixTypes(WeightType::kQ4_1);
  const std::string path = WriteTinyModel(tiny);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    EngineOptions options = SmallOptions(2);
    options.isa = GetParam();
    options.dtype = dtype;
    EngineRunner runner(path, options);
    const auto prompt = RandomPrompt(200, tiny.vocab, 3);
    ExpectMatchesReference(runner.engine().model(), prompt, runner.Run(Greedy(prompt, 4)),
                           dtype == DType::kF32 ? 1e-3 : 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, EngineIsaTest,
                         testing::Values(CpuIsa::kBaseline, CpuIsa::kAvx2, CpuIsa::kAvx512,
                                         CpuIsa::kAvx512Bf16));

TEST(EngineTest, ChunkSizeAndThreadsDoNotChangeTheAnswer) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  const auto prompt = RandomPrompt(400, tiny.vocab, 21);
  for (int64_t chunk : {1, 7, 64, 1000}) {
    for (int threads : {1, 4}) {
      EngineOptions options = SmallOptions(2);
      options.chunk_tokens = chunk;
      options.threads = threads;
      EngineRunner runner(path, options);
      ExpectMatchesReference(runner.engine().model(), prompt, runner.Run(Greedy(prompt, 2)), 1e-3);
    }
  }
}

TEST(EngineTest, DecodeGoesOnBeyondItsReserve) {
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(3);
  options.decode_reserve_tokens = 1;
  EngineRunner runner(WriteTinyModel(tiny), options);
  const auto prompt = RandomPrompt(40, tiny.vocab, 2);
  const Outcome outcome = runner.Run(Greedy(prompt, 120));
  EXPECT_EQ(outcome.tokens.size(), 120u);
  ExpectMatchesReference(runner.engine().model(), prompt, outcome, 1e-3);
}

TEST(EngineTest, StopsAtMaxTokensStopIdsAndStopStrings) {
  TinyModelOptions tiny;
  EngineRunner runner(WriteTinyModel(tiny), SmallOptions(2));
  const auto prompt = RandomPrompt(20, tiny.vocab, 4);
  const Outcome plain = runner.Run(Greedy(prompt, 12));
  EXPECT_EQ(plain.done.finish_reason, FinishReason::kLength);
  EXPECT_EQ(plain.done.usage.completion_tokens, 12);
  EXPECT_EQ(plain.done.usage.prompt_tokens, 20);

  Request by_id = Greedy(prompt, 12);
  by_id.stop.stop_ids = {plain.ids()[5]};
  const Outcome stopped = runner.Run(by_id);
  EXPECT_EQ(stopped.done.finish_reason, FinishReason::kStop);
  const auto ids = plain.ids();
  const auto first = std::find(ids.begin(), ids.end(), ids[5]);
  EXPECT_EQ(stopped.ids(), std::vector<TokenId>(ids.begin(), first));

  by_id.stop.min_tokens = 12;
  EXPECT_EQ(runner.Run(by_id).tokens.size(), 12u);
}

TEST(EngineTest, RefusesWhatItCannotServe) {
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(2);
  options.max_context_tokens = 100;
  EngineRunner runner(WriteTinyModel(tiny), options);
  EXPECT_EQ(runner.Run(Greedy({}, 1)).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(runner.Run(Greedy({tiny.vocab}, 1)).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(runner.Run(Greedy(RandomPrompt(101, tiny.vocab, 1), 1)).status.code(),
            absl::StatusCode::kInvalidArgument);
  runner.engine().BeginDrain();
  EXPECT_EQ(runner.Run(Greedy({5}, 1)).status.code(), absl::StatusCode::kUnavailable);

  EngineOptions small = SmallOptions(1);
  small.kv_memory_bytes = 1 << 15;
  EngineRunner tight(WriteTinyModel(tiny), small);
  EXPECT_EQ(tight.Run(Greedy(RandomPrompt(500, tiny.vocab, 1), 1)).status.code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(EngineTest, BadOptionsAreNamed) {
  TinyModelOptions tiny;
  auto model = LoadModelOrDie(WriteTinyModel(tiny));
  auto tokenizer = LoadTokenizerOrDie(*model);
  auto error = [&](auto change) {
    EngineOptions options = SmallOptions(2);
    change(options);
    Metrics metrics;
    auto engine = Engine::Create(options, model, tokenizer, metrics);
    return engine.ok() ? std::string() : std::string(engine.status().message());
  };
  EXPECT_THAT(error([](EngineOptions& o) { o.ranks = 0; }), testing::HasSubstr("ranks.count"));
  EXPECT_THAT(error([](EngineOptions& o) { o.page_tokens = 17; }),
              testing::HasSubstr("kv.page_tokens"));
  EXPECT_THAT(error([](EngineOptions& o) { o.stripe_tokens = 24; }),
              testing::HasSubstr("sharding.stripe_tokens"));
  for (int64_t bytes : {int64_t{1}, int64_t{1} << 50}) {
    EXPECT_THAT(error([bytes](EngineOptions& o) { o.kv_memory_bytes = bytes; }),
                testing::HasSubstr("kv.memory_bytes"));
  }
}

// The leader of ranks on other hosts, or in other containers, has no pages of its own.
TEST(EngineTest, APoolMayBeLargerThanTheMemoryOfALeaderWithoutRanks) {
  const ModelConfig model = LoadModelOrDie(WriteTinyModel({}))->config();
  for (const bool elsewhere : {false, true}) {
    EngineOptions options = SmallOptions(4);
    options.kv_memory_bytes = 2 * UsableMemory();
    options.workers_elsewhere = elsewhere;
    EngineInfo info;
    const absl::Status settled = SettleOptions(model, options, info);
    EXPECT_EQ(settled.ok(), elsewhere) << settled;
    EXPECT_THAT(std::string(settled.message()),
                testing::HasSubstr(elsewhere ? "" : "this process may have"));
  }
}

TEST(EngineTest, CancelInMidPrefillReleasesPages) {
  TinyModelOptions tiny;
  tiny.layers = 6;
  tiny.context_length = 1 << 20;
  EngineOptions options = SmallOptions(3);
  options.chunk_tokens = 4096;
  options.kv_memory_bytes = 512 << 20;
  EngineRunner runner(WriteTinyModel(tiny), options);
  auto client = Client::Start(runner.engine(), Greedy(RandomPrompt(60000, tiny.vocab, 9), 4));
  ASSERT_TRUE(client.ok()) << client.status();
  // Some progress has been made, then the client goes away.
  while (true) {
    const RequestEvent event = (*client)->Next();
    if (std::holds_alternative<ProgressEvent>(event)) break;
  }
  // What it holds shows while its first step runs.
  EXPECT_EQ(runner.engine().Status().running, 1);
  EXPECT_GT(runner.engine().Status().ranks[0].pages_used, 1000);
  (*client)->outbox().Close();
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
  // The engine serves on.
  const auto prompt = RandomPrompt(50, tiny.vocab, 1);
  ExpectMatchesReference(runner.engine().model(), prompt, runner.Run(Greedy(prompt, 3)), 1e-3);
}

TEST(EngineTest, ADeadlineInMidPrefillEndsTheRequest) {
  TinyModelOptions tiny;
  tiny.context_length = 1 << 20;
  EngineOptions options = SmallOptions(2);
  options.kv_memory_bytes = 512 << 20;
  EngineRunner runner(WriteTinyModel(tiny), options);
  Request request = Greedy(RandomPrompt(100000, tiny.vocab, 9), 4);
  request.deadline = Clock::Real().Now() + std::chrono::milliseconds(50);
  EXPECT_EQ(runner.Run(request).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
}

TEST(EngineTest, AClientThatDoesNotReadPausesOnlyItself) {
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(2);
  options.outbox_events = 4;
  EngineRunner runner(WriteTinyModel(tiny), options);
  const auto prompt = RandomPrompt(30, tiny.vocab, 1);
  auto slow = Client::Start(runner.engine(), Greedy(prompt, 50));
  ASSERT_TRUE(slow.ok());
  // Others are served while the slow client's outbox is full.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(runner.Run(Greedy(prompt, 20)).tokens.size(), 20u);
  EXPECT_TRUE((*slow)->outbox().full());
  EXPECT_EQ((*slow)->Finish().tokens.size(), 50u);
}

TEST(EngineTest, WhenThePoolRunsDryTheYoungestEndsAndTheOthersFinish) {
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(1);
  options.decode_reserve_tokens = 0;
  // Ten pages of [layers 2][k, v][2 heads][16 x 16 floats].
  options.kv_memory_bytes = 10 * 2 * 2 * 2 * 16 * 16 * 4;
  EngineRunner runner(WriteTinyModel(tiny), options);
  const auto prompt = RandomPrompt(60, tiny.vocab, 6);  // four pages
  auto first = Client::Start(runner.engine(), Greedy(prompt, 80));
  auto second = Client::Start(runner.engine(), Greedy(prompt, 80));
  auto third = Client::Start(runner.engine(), Greedy(RandomPrompt(30, tiny.vocab, 1), 2));
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_EQ((*first)->Finish().tokens.size(), 80u);
  const Outcome ended = (*second)->Finish();
  EXPECT_EQ(ended.status.code(), absl::StatusCode::kResourceExhausted) << ended.status;
  EXPECT_FALSE(ended.tokens.empty());
  EXPECT_EQ((*third)->Finish().tokens.size(), 2u);
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
}

TEST(EngineTest, DestroyingTheEngineFailsWhatIsLeft) {
  TinyModelOptions tiny;
  tiny.context_length = 1 << 20;
  EngineOptions options = SmallOptions(2);
  options.kv_memory_bytes = 512 << 20;
  auto runner = std::make_unique<EngineRunner>(WriteTinyModel(tiny), options);
  auto client = Client::Start(runner->engine(), Greedy(RandomPrompt(100000, tiny.vocab, 9), 4));
  ASSERT_TRUE(client.ok());
  runner.reset();
  EXPECT_EQ((*client)->Finish().status.code(), absl::StatusCode::kCancelled);
}

TEST(EngineTest, ChoosesByMeasuredFiguresAndWeighsByThem) {
  TinyModelOptions tiny;
  for (int ranks : {1, 3}) {
    EngineOptions options = SmallOptions(ranks);
    options.measure = true;
    options.weigh_by_speed = true;
    EngineRunner runner(WriteTinyModel(tiny), options);
    const auto prompt = RandomPrompt(700, tiny.vocab, 3);
    ExpectMatchesReference(runner.engine().model(), prompt, runner.Run(Greedy(prompt, 4)), 1e-3);
    int slots = 0;
    for (const RankStatus& rank : runner.engine().Status().ranks) slots += rank.slots;
    EXPECT_EQ(slots, 4 * ranks);
  }
}

TEST(EngineTest, UnevenRanksTakeTheirShare) {
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(3);
  options.rank_weights = {1, 2, 3};
  options.mode = TokenMode::kHome;
  EngineRunner runner(WriteTinyModel(tiny), options);
  const auto prompt = RandomPrompt(2304, tiny.vocab, 3);  // six periods of 2 * 12 stripes
  const Outcome outcome = runner.Run(Greedy(prompt, 1));
  ExpectMatchesReference(runner.engine().model(), prompt, outcome, 1e-3);
  ASSERT_EQ(outcome.done.ranks.size(), 3u);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(outcome.done.ranks[r].kv_pages, 24 * static_cast<int64_t>(r + 1)) << "rank " << r;
  }
}

TEST(EngineTest, ProgressAscendsToThePromptsEnd) {
  TinyModelOptions tiny;
  EngineRunner runner(WriteTinyModel(tiny), SmallOptions(2));
  const Outcome outcome = runner.Run(Greedy(RandomPrompt(3000, tiny.vocab, 9), 1));
  ASSERT_FALSE(outcome.progress.empty());
  int64_t last = 0;
  for (const ProgressEvent& p : outcome.progress) {
    EXPECT_GE(p.processed_tokens, last);
    EXPECT_EQ(p.total_tokens, 3000);
    EXPECT_GE(p.eta_s, 0);
    last = p.processed_tokens;
  }
  EXPECT_EQ(last, 3000);
  EXPECT_GT(outcome.done.timings.prefill_ms, 0);
  ASSERT_EQ(outcome.done.ranks.size(), 2u);
  for (const RankShare& share : outcome.done.ranks) {
    EXPECT_GT(share.busy_ms, 0);
    // 3000 of 16-token stripes over two ranks, and a decode reserve of nothing.
    EXPECT_NEAR(static_cast<double>(share.kv_pages), 94, 1);
  }
}

}  // namespace
}  // namespace ringfill
