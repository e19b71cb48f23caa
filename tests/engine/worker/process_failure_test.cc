// Worker processes that are killed, stopped or starved, and leaders that are killed.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"
#include "tests/engine/worker/process_ring.h"

namespace ringfill {
namespace {

constexpr int kRounds = 20;
constexpr size_t kPromptTokens = 3000;
constexpr int kNewTokens = 24;
// From the kill to the request's end, and how much of it is not the repair's: computing the rest.
constexpr double kOutcomeSeconds = 5;

// Reads `n` events, fewer when the request ends before.
void ReadEvents(Client& client, int n) {
  for (int i = 0; i < n && !client.ended(); ++i) client.Next();
}

struct Tally {
  int right = 0, unavailable = 0, killed = 0;
  double slowest_s = 0;
};

// One request during which a worker is killed: after some of its events, and a random moment more.
void KillDuringRequest(ProcessRing& ring, int ranks, const std::vector<TokenId>& prompt,
                       const std::vector<TokenId>& expected, std::mt19937& rng, Tally& tally) {
  const int64_t recomputed = ring.engine().Status().recomputed_tokens;
  auto client = Client::Start(ring.engine(), Greedy(prompt, kNewTokens));
  ASSERT_TRUE(client.ok()) << client.status();
  // Some two dozen of progress, then as many tokens: kills hit the prefill and the decode alike.
  ReadEvents(**client, static_cast<int>(rng() % 45));
  const Instant moment = Clock::Real().Now() + std::chrono::microseconds(rng() % 20000);
  while (Clock::Real().Now() < moment) {
  }
  const auto pids = ring.Pids();
  const int victim = static_cast<int>(rng() % static_cast<uint32_t>(ranks));
  ASSERT_TRUE(pids.contains(victim));
  const Instant killed = Clock::Real().Now();
  kill(pids.at(victim), SIGKILL);
  ++tally.killed;
  const Outcome outcome = (*client)->Finish();
  tally.slowest_s = std::max(tally.slowest_s, Seconds(Clock::Real().Now() - killed));
  if (!outcome.status.ok()) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable) << outcome.status;
    ++tally.unavailable;
    return;
  }
  EXPECT_EQ(outcome.ids(), expected);
  ++tally.right;
  const int64_t again = ring.engine().Status().recomputed_tokens - recomputed;
  const auto tokens = static_cast<int64_t>(prompt.size()) + kNewTokens;
  EXPECT_LE(again, tokens / ranks + 256);
}

class ProcessKillTest : public testing::TestWithParam<uint32_t> {};

TEST_P(ProcessKillTest, KilledWorkersCostTheirShareAndAreReplaced) {
  constexpr int kRanks = 3;
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  ProcessRing ring(path, SmallOptions(kRanks), RosterForTests(path));
  const auto prompt = RandomPrompt(kPromptTokens, tiny.vocab, 3);
  const Outcome whole = ring.runner().Run(Greedy(prompt, kNewTokens));
  ASSERT_EQ(whole.tokens.size(), static_cast<size_t>(kNewTokens));
  ExpectMatchesReference(ring.engine().model(), prompt, whole, 1e-3);
  std::mt19937 rng(GetParam());
  Tally tally;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    KillDuringRequest(ring, kRanks, prompt, whole.ids(), rng, tally);
    // The next request is served, whatever became of this one, and the replacement comes.
    EXPECT_TRUE(ring.runner().Run(Greedy({9, 8, 7}, 2)).status.ok());
    ASSERT_TRUE(AwaitRanks(ring, kRanks));
  }
  std::printf("%d killed: %d right, %d unavailable, slowest outcome %.2f s\n", tally.killed,
              tally.right, tally.unavailable, tally.slowest_s);
  EXPECT_EQ(tally.right + tally.unavailable, kRounds);
  EXPECT_GE(tally.right, kRounds * 8 / 10);
  EXPECT_LT(tally.slowest_s, kOutcomeSeconds);
  EXPECT_EQ(ring.worker_metrics().lost[static_cast<size_t>(LossReason::kSignal)]->Value(),
            tally.killed);
  EXPECT_EQ(LostTotal(ring), tally.killed);
  EXPECT_EQ(ring.worker_metrics().started.Value(), kRanks + tally.killed);
  EXPECT_EQ(ring.runner().PagesUsedWhenIdle(), 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ProcessKillTest, testing::Values(17, 18, 19));

TEST(ProcessFailureTest, TheOnlyWorkerIsReplaced) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  ProcessRing ring(path, SmallOptions(1), RosterForTests(path));
  const auto prompt = RandomPrompt(600, tiny.vocab, 3);
  auto client = Client::Start(ring.engine(), Greedy(prompt, 200));
  ASSERT_TRUE(client.ok());
  ReadEvents(**client, 10);
  kill(ring.Pids().at(0), SIGKILL);
  const Outcome outcome = (*client)->Finish();
  if (outcome.status.ok()) {
    EXPECT_EQ(outcome.tokens.size(), 200u);
  } else {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  }
  ASSERT_TRUE(AwaitRanks(ring, 1));
  ExpectMatchesReference(ring.engine().model(), prompt, ring.runner().Run(Greedy(prompt, 4)), 1e-3);
}

TEST(ProcessFailureTest, AWorkerLostWhileNothingRunsCostsNoRequest) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  ProcessRing ring(path, SmallOptions(3), RosterForTests(path));
  ASSERT_TRUE(ring.engine().WaitIdle(std::chrono::seconds(10)));
  kill(ring.Pids().at(1), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return LostTotal(ring) == 1; }));
  const auto prompt = RandomPrompt(600, tiny.vocab, 3);
  const Outcome outcome = ring.runner().Run(Greedy(prompt, 4));
  ExpectMatchesReference(ring.engine().model(), prompt, outcome, 1e-3);
  EXPECT_EQ(ring.engine().Status().failed_steps, 0);
}

TEST(ProcessFailureTest, AStoppedWorkerIsNoticedAndReplaced) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  RosterOptions roster = RosterForTests(path);
  roster.heartbeat_timeout = std::chrono::milliseconds(1500);
  ProcessRing ring(path, SmallOptions(3), roster);
  const auto prompt = RandomPrompt(kPromptTokens, tiny.vocab, 3);
  for (int victim = 0; victim < 3; ++victim) {
    SCOPED_TRACE(victim);
    auto client = Client::Start(ring.engine(), Greedy(prompt, kNewTokens));
    ASSERT_TRUE(client.ok());
    ReadEvents(**client, 4);
    const double lost = LostTotal(ring);
    const Instant stopped = Clock::Real().Now();
    kill(ring.Pids().at(victim), SIGSTOP);
    EXPECT_TRUE(Eventually([&] { return LostTotal(ring) > lost; }));
    const double seconds = Seconds(Clock::Real().Now() - stopped);
    std::printf("a stopped worker was noticed after %.2f s\n", seconds);
    EXPECT_LT(seconds, 2.5);
    const Outcome outcome = (*client)->Finish();
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens.size(), static_cast<size_t>(kNewTokens));
    ExpectMatchesReference(ring.engine().model(), prompt, outcome, 1e-3);
    ASSERT_TRUE(AwaitRanks(ring, 3));
  }
  EXPECT_EQ(ring.worker_metrics().lost[static_cast<size_t>(LossReason::kSilent)]->Value(), 3);
}

TEST(ProcessFailureTest, BusyCoresAreNoAlarm) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  ProcessRing ring(path, SmallOptions(3), RosterForTests(path));
  const auto prompt = RandomPrompt(kPromptTokens, tiny.vocab, 3);
  const BusyCores busy(4);
  const Instant end = Clock::Real().Now() + std::chrono::seconds(8);
  int served = 0;
  while (Clock::Real().Now() < end) {
    const Outcome outcome = ring.runner().Run(Greedy(prompt, 8));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    ++served;
  }
  EXPECT_GT(served, 0);
  EXPECT_EQ(LostTotal(ring), 0);
  EXPECT_EQ(ring.worker_metrics().dead_links.Value(), 0);
  EXPECT_EQ(ring.engine().Status().failed_steps, 0);
}

// Figures and weights of ranks of which nobody is left.
TEST(ProcessFailureTest, AllWorkersAtOnceAreReplaced) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  ProcessRing ring(path, MeasuredOptions(2), RosterForTests(path));
  for (const auto& [rank, pid] : ring.Pids()) kill(pid, SIGSTOP);
  for (const auto& [rank, pid] : ring.Pids()) kill(pid, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return LostTotal(ring) == 2; }));
  ASSERT_TRUE(AwaitRanks(ring, 2));
  const auto prompt = RandomPrompt(600, tiny.vocab, 3);
  ExpectMatchesReference(ring.engine().model(), prompt, ring.runner().Run(Greedy(prompt, 4)), 1e-3);
}

// A newcomer is taken for the mean of the others, which is one here.
TEST(ProcessFailureTest, MeasuredRatesFollowTheRing) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  ProcessRing ring(path, MeasuredOptions(2), RosterForTests(path));
  const auto rate = [&](const char* rank) {
    return GaugeOf(ring, "ringfill_rank_measured_operations_per_second", rank);
  };
  const double kept = rate("0");
  EXPECT_GT(kept, 0);
  kill(ring.Pids().at(1), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return LostTotal(ring) == 1; }));
  ASSERT_TRUE(AwaitRanks(ring, 2));
  EXPECT_EQ(rate("0"), kept);
  EXPECT_EQ(rate("1"), kept);
}

// The ring cannot form until the worker that does not answer is given up.
TEST(ProcessFailureTest, RequestsEndWhileTheRingForms) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  RosterOptions roster = RosterForTests(path);
  roster.heartbeat_timeout = std::chrono::seconds(30);
  roster.first_backoff = roster.most_backoff = std::chrono::minutes(5);
  ProcessRing ring(path, SmallOptions(3), roster);
  ASSERT_TRUE(ring.engine().WaitIdle(std::chrono::seconds(10)));
  const std::map<int, pid_t> pids = ring.Pids();
  kill(pids.at(1), SIGSTOP);
  kill(pids.at(2), SIGKILL);
  ASSERT_TRUE(Eventually([&] { return LostTotal(ring) == 1; }));
  Request late = Greedy({5, 6, 7}, 4);
  late.deadline = Clock::Real().Now() + std::chrono::milliseconds(300);
  auto waits = Client::Start(ring.engine(), late);
  auto leaves = Client::Start(ring.engine(), Greedy({5, 6, 7}, 4));
  ASSERT_TRUE(waits.ok() && leaves.ok());
  (*leaves)->outbox().Close();
  EXPECT_TRUE(absl::IsDeadlineExceeded((*waits)->Finish().status));
  EXPECT_TRUE(ring.engine().WaitIdle(std::chrono::seconds(1)));
  EXPECT_EQ(ring.engine().Status().ranks.size(), 3u);  // it has not formed yet
  EXPECT_FALSE(ring.engine().Status().ring_formed);
  EXPECT_TRUE(Eventually([&] { return ring.engine().Status().ranks.size() == 1; }));
  EXPECT_TRUE(ring.engine().Status().ring_formed);
  const auto prompt = RandomPrompt(600, tiny.vocab, 3);
  ExpectMatchesReference(ring.engine().model(), prompt, ring.runner().Run(Greedy(prompt, 4)), 1e-3);
}

// Attempts that would take longer than any test does.
class PatientFormingTest : public testing::Test {
 protected:
  PatientFormingTest() : path_(WriteTinyModel(TinyModelOptions())) {
    RosterOptions roster = RosterForTests(path_);
    roster.heartbeat_timeout = std::chrono::minutes(10);
    roster.first_backoff = roster.most_backoff = std::chrono::minutes(10);
    ring_ = std::make_unique<ProcessRing>(path_, SmallOptions(3), roster,
                                          [](ProcessWorkersOptions& options) {
                                            options.form_timeout = std::chrono::minutes(5);
                                            options.reform_limit = std::chrono::minutes(10);
                                          });
    EXPECT_TRUE(ring_->engine().WaitIdle(std::chrono::seconds(10)));
    pids_ = ring_->Pids();
    kill(pids_.at(1), SIGSTOP);
    kill(pids_.at(2), SIGKILL);
    // Now rank 0 waits for rank 1.
    EXPECT_TRUE(Eventually([&] { return !ring_->engine().Status().ring_formed; }));
    EXPECT_EQ(RingRanks(), 0);
  }
  double RingRanks() { return GaugeOf(*ring_, "ringfill_ring_ranks"); }

  const std::string path_;
  std::unique_ptr<ProcessRing> ring_;
  std::map<int, pid_t> pids_;
};

TEST_F(PatientFormingTest, AWorkerThatDiesEndsTheAttemptForAll) {
  kill(pids_.at(1), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return ring_->engine().Status().ring_formed; }));
  EXPECT_EQ(ring_->engine().Status().ranks.size(), 1u);
  EXPECT_EQ(RingRanks(), 1);
  EXPECT_TRUE(Eventually([&] { return LostTotal(*ring_) == 2; }));
  const auto prompt = RandomPrompt(600, TinyModelOptions().vocab, 3);
  ExpectMatchesReference(ring_->engine().model(), prompt, ring_->runner().Run(Greedy(prompt, 4)),
                         1e-3);
}

TEST_F(PatientFormingTest, AnEngineThatEndsDoesNotWaitForIt) {
  const Instant limit = Clock::Real().Now() + std::chrono::minutes(1);
  auto client = Client::Start(ring_->engine(), Greedy({5, 6, 7}, 4));
  ASSERT_TRUE(client.ok());
  ring_.reset();
  EXPECT_LT(Clock::Real().Now(), limit);
  EXPECT_TRUE(absl::IsCancelled((*client)->Finish().status));
}

}  // namespace
}  // namespace ringfill
