// The whole engine over ranks that are processes: the answers of threads.
#include "engine/worker/process_workers.h"

#include <signal.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"
#include "tests/engine/worker/process_ring.h"
#include "tests/testing/reference_model.h"

namespace ringfill {
namespace {

class ProcessRanksTest : public testing::TestWithParam<int> {};

TEST_P(ProcessRanksTest, AnswersAsTheReferenceDoes) {
  const int ranks = GetParam();
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  ProcessRing ring(path, SmallOptions(ranks), RosterForTests(path));
  EXPECT_EQ(ring.Pids().size(), static_cast<size_t>(ranks));
  for (const size_t length : {1u, 17u, 300u, 1000u}) {
    SCOPED_TRACE(length);
    const auto prompt = RandomPrompt(length, tiny.vocab, 7);
    const Outcome outcome = ring.runner().Run(Greedy(prompt, 6));
    ASSERT_EQ(outcome.tokens.size(), 6u);
    ExpectMatchesReference(ring.engine().model(), prompt, outcome, 1e-3);
  }
  EXPECT_EQ(ring.runner().PagesUsedWhenIdle(), 0);
  EXPECT_EQ(ring.engine().Status().failed_steps, 0);
  EXPECT_EQ(ring.worker_metrics().started.Value(), ranks);
}

TEST_P(ProcessRanksTest, ProgressAndScoresComeThrough) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  ProcessRing ring(path, SmallOptions(GetParam()), RosterForTests(path));
  Request request;
  request.kind = RequestKind::kScore;
  request.prompt = RandomPrompt(600, tiny.vocab, 11);
  const Outcome outcome = ring.runner().Run(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  ASSERT_EQ(outcome.done.prompt_logprobs.size(), 599u);
  EXPECT_FALSE(outcome.progress.empty());
  const auto logits = ReferenceLogits(ring.engine().model(), request.prompt);
  for (size_t i = 0; i + 1 < request.prompt.size(); ++i) {
    EXPECT_NEAR(outcome.done.prompt_logprobs[i], ReferenceLogprob(logits[i], request.prompt[i + 1]),
                1e-3);
  }
}

TEST_P(ProcessRanksTest, DocumentsComeThrough) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  EngineOptions options = SmallOptions(GetParam());
  options.chunk_tokens = 128;
  ProcessRing ring(path, options, RosterForTests(path));
  Request request = Greedy(RandomPrompt(300, tiny.vocab, 5), 5);
  request.document_starts = {0, 50, 131, 280};
  const Outcome outcome = ring.runner().Run(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  std::vector<TokenId> all = request.prompt;
  for (TokenId id : outcome.ids()) all.push_back(id);
  ExpectMatches(ReferenceLogits(ring.engine().model(), all, request.document_starts), 300, outcome,
                1e-3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ProcessRanksTest, testing::Values(1, 2, 3, 4, 5));

TEST(ProcessWorkersTest, RanksAreMeasuredAtStart) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  ProcessRing ring(path, MeasuredOptions(3), RosterForTests(path));
  const auto prompt = RandomPrompt(700, tiny.vocab, 7);
  const Outcome outcome = ring.runner().Run(Greedy(prompt, 3));
  ExpectMatchesReference(ring.engine().model(), prompt, outcome, 1e-3);
}

TEST(ProcessWorkersTest, WorkersEndWithTheirEngine) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  {
    ProcessRing ring(path, SmallOptions(2), RosterForTests(path));
    EXPECT_EQ(WorkersOf(getpid(), path).size(), 2u);
  }
  EXPECT_EQ(WorkersOf(getpid(), path).size(), 0u);
}

TEST(ProcessWorkersTest, WorkersHaveGroupsOfTheirOwnAndSpareTheTerminalsSignals) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  ProcessRing ring(path, SmallOptions(2), RosterForTests(path));
  for (const auto& [rank, pid] : ring.Pids()) {
    EXPECT_EQ(getpgid(pid), pid);
    EXPECT_NE(getpgid(pid), getpgid(0));
  }
}

TEST(ProcessWorkersTest, TwoEnginesOfOneProcessDoNotDisturbEachOther) {
  TinyModelOptions tiny;
  const std::string first_path = WriteTinyModel(tiny);
  tiny.seed = 2;
  const std::string second_path = WriteTinyModel(tiny);
  ProcessRing first(first_path, SmallOptions(2), RosterForTests(first_path));
  ProcessRing second(second_path, SmallOptions(3), RosterForTests(second_path));
  const auto prompt = RandomPrompt(900, tiny.vocab, 7);
  auto one = Client::Start(first.engine(), Greedy(prompt, 20));
  auto two = Client::Start(second.engine(), Greedy(prompt, 20));
  ASSERT_TRUE(one.ok() && two.ok());
  kill(second.Pids().at(1), SIGKILL);
  const Outcome undisturbed = (*one)->Finish();
  EXPECT_EQ(undisturbed.tokens.size(), 20u);
  ExpectMatchesReference(first.engine().model(), prompt, undisturbed, 1e-3);
  EXPECT_EQ(first.engine().Status().failed_steps, 0);
  const Outcome repaired = (*two)->Finish();
  EXPECT_EQ(repaired.tokens.size(), 20u);
  ExpectMatchesReference(second.engine().model(), prompt, repaired, 1e-3);
}

TEST(ProcessWorkersTest, AClientThatGoesAwayStopsTheWork) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  EngineOptions options = SmallOptions(2);
  options.chunk_tokens = 4096;
  ProcessRing ring(path, options, RosterForTests(path));
  auto client = Client::Start(ring.engine(), Greedy(RandomPrompt(4000, tiny.vocab, 1), 4));
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE(Eventually([&] { return ring.engine().Status().running == 1; }));
  (*client)->outbox().Close();
  EXPECT_EQ(ring.runner().PagesUsedWhenIdle(), 0);
  EXPECT_EQ(ring.runner().Run(Greedy(RandomPrompt(40, tiny.vocab, 1), 3)).tokens.size(), 3u);
  EXPECT_EQ(ring.engine().Status().failed_steps, 0);
}

}  // namespace
}  // namespace ringfill
