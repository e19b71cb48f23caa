// Links between two workers that go dark or slow while both still talk to the leader.
#include <cstdio>
#include <map>

#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"
#include "tests/engine/worker/process_ring.h"
#include "tests/testing/fault_proxy.h"

namespace ringfill {
namespace {

constexpr int kRanks = 3;
constexpr size_t kPromptTokens = 3000;
constexpr int kNewTokens = 8;
constexpr Duration kHeartbeat = std::chrono::milliseconds(1500);

// A proxy on the way between each two seats.
class LinkProxies {
 public:
  std::string Route(int from, int to, const std::string& address) {
    if (from >= to) return address;  // who calls is the lower one
    MutexLock lock(&mutex_);
    Way& way = ways_[{from, to}];
    if (way.to != address) way = {address, FaultProxy::Start(address, way.plan), way.plan};
    return way.proxy->address();
  }
  void Set(int from, int to, const FaultPlan& plan) {
    MutexLock lock(&mutex_);
    Way& way = ways_.at({from, to});
    way.plan = plan;
    way.proxy->Set(plan);
  }

 private:
  struct Way {
    std::string to;
    std::unique_ptr<FaultProxy> proxy;
    FaultPlan plan;
  };
  Mutex mutex_;
  std::map<std::pair<int, int>, Way> ways_ ABSL_GUARDED_BY(mutex_);
};

class ProcessLinksTest : public testing::Test {
 protected:
  ProcessLinksTest() : path_(WriteTinyModel(TinyModelOptions())) {
    RosterOptions roster = RosterForTests(path_);
    roster.heartbeat_timeout = kHeartbeat;
    ring_ = std::make_unique<ProcessRing>(
        path_, SmallOptions(kRanks), roster, [this](ProcessWorkersOptions& options) {
          options.link_faults.first_backoff = std::chrono::seconds(3);
          options.route = [this](int from, int to, const std::string& address) {
            return proxies_.Route(from, to, address);
          };
        });
    prompt_ = RandomPrompt(kPromptTokens, TinyModelOptions().vocab, 3);
  }

  std::unique_ptr<Client> Begin() {
    auto client = Client::Start(ring_->engine(), Greedy(prompt_, kNewTokens));
    EXPECT_TRUE(client.ok()) << client.status();
    for (int i = 0; i < 4; ++i) (*client)->Next();
    return *std::move(client);
  }
  void ExpectRight(const Outcome& outcome) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens.size(), static_cast<size_t>(kNewTokens));
    ExpectMatchesReference(ring_->engine().model(), prompt_, outcome, 1e-3);
  }
  double dead_links() { return ring_->worker_metrics().dead_links.Value(); }
  size_t ranks() { return ring_->engine().Status().ranks.size(); }

  const std::string path_;
  LinkProxies proxies_;
  std::unique_ptr<ProcessRing> ring_;
  std::vector<TokenId> prompt_;
};

constexpr FaultPlan kDark = {.fault = Fault::kBlackhole};

TEST_F(ProcessLinksTest, ADarkLinkCostsOneOfItsRanksUntilItWorksAgain) {
  const std::unique_ptr<Client> client = Begin();
  const Instant dark = Clock::Real().Now();
  proxies_.Set(0, 1, kDark);
  ASSERT_TRUE(Eventually([&] { return dead_links() >= 1; }));
  const double noticed = Seconds(Clock::Real().Now() - dark);
  ExpectRight(client->Finish());
  std::printf("a dark link was noticed after %.2f s, the request ended after %.2f s\n", noticed,
              Seconds(Clock::Real().Now() - dark));
  EXPECT_LT(noticed, 2 * Seconds(kHeartbeat));
  EXPECT_EQ(ranks(), 2u);
  EXPECT_EQ(LostTotal(*ring_), 0);
  // It stays at that: each return that fails is later than the one before.
  const uint64_t epoch = ring_->engine().Status().epoch;
  EXPECT_TRUE(Eventually([&] {
    ring_->runner().Run(Greedy({5, 6, 7}, 1));
    return ring_->engine().Status().epoch > epoch;
  }));
  EXPECT_EQ(ranks(), 2u);
  EXPECT_EQ(ring_->engine().Status().epoch, epoch + 1);
  ExpectRight(ring_->runner().Run(Greedy(prompt_, kNewTokens)));
  EXPECT_EQ(ring_->engine().Status().failed_steps, 1);
  proxies_.Set(0, 1, {});
  EXPECT_TRUE(AwaitRanks(*ring_, kRanks));
  ExpectRight(ring_->runner().Run(Greedy(prompt_, kNewTokens)));
  EXPECT_EQ(ring_->engine().Status().failed_steps, 1);
  EXPECT_EQ(LostTotal(*ring_), 0);
}

TEST_F(ProcessLinksTest, TheRankThatNobodyReachesGoes) {
  const std::unique_ptr<Client> client = Begin();
  proxies_.Set(0, 1, kDark);
  proxies_.Set(0, 2, kDark);
  ExpectRight(client->Finish());
  EXPECT_EQ(ranks(), 2u);
  EXPECT_EQ(ring_->engine().Status().failed_steps, 1);
  EXPECT_EQ(LostTotal(*ring_), 0);
}

TEST_F(ProcessLinksTest, ALinkThatGoesDarkBetweenRequestsIsRepairedBeforeTheNext) {
  ASSERT_TRUE(ring_->engine().WaitIdle(std::chrono::seconds(10)));
  proxies_.Set(1, 2, kDark);
  ASSERT_TRUE(Eventually([&] { return ranks() == 2; }));
  EXPECT_EQ(dead_links(), 1);
  ExpectRight(ring_->runner().Run(Greedy(prompt_, kNewTokens)));
  EXPECT_EQ(ring_->engine().Status().failed_steps, 0);
}

TEST_F(ProcessLinksTest, ALinkThatWasDarkForAMomentCostsNobody) {
  const std::unique_ptr<Client> client = Begin();
  proxies_.Set(0, 2, kDark);
  ASSERT_TRUE(Eventually([&] { return dead_links() >= 1; }));
  proxies_.Set(0, 2, {});
  ExpectRight(client->Finish());
  EXPECT_TRUE(AwaitRanks(*ring_, kRanks));
  EXPECT_EQ(LostTotal(*ring_), 0);
}

// Throttled and delayed links, with every core busy besides.
TEST_F(ProcessLinksTest, SlowLinksAndBusyCoresAreNoAlarm) {
  FaultPlan slow;
  slow.fault = Fault::kDelay;
  slow.delay = std::chrono::milliseconds(20);
  proxies_.Set(0, 1, slow);
  slow.direction = FaultPlan::Direction::kToCaller;
  proxies_.Set(0, 2, slow);
  slow.fault = Fault::kTrickle;
  slow.delay = std::chrono::microseconds(20);
  proxies_.Set(1, 2, slow);
  const BusyCores busy(2);
  const Instant end = Clock::Real().Now() + 4 * kHeartbeat;
  do ExpectRight(ring_->runner().Run(Greedy(prompt_, kNewTokens)));
  while (Clock::Real().Now() < end);
  EXPECT_EQ(dead_links(), 0);
  EXPECT_EQ(LostTotal(*ring_), 0);
  EXPECT_EQ(ring_->engine().Status().failed_steps, 0);
}

}  // namespace
}  // namespace ringfill
