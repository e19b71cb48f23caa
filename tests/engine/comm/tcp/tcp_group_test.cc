// Groups over tcp: how they form, and what broken peers and networks do to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/comm/tcp/tcp.h"
#include "tests/engine/comm/transports.h"
#include "tests/testing/fault_proxy.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Ends = std::vector<std::unique_ptr<Communicator>>;

const Secret& GroupSecret() {
  static const Secret secret = Secret::FromBytes("what all ranks know").value();
  return secret;
}

// Listeners of `ranks` ranks. Rank r is called through proxies[r].
struct Site {
  explicit Site(int ranks) : ends(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      listeners.push_back(Listener::Bind().value());
      proxies.push_back(FaultProxy::Start(listeners.back()->address()));
      members.push_back(proxies.back()->address());
    }
  }
  ~Site() { ends.clear(); }

  TcpGroupOptions Options(int rank, uint64_t epoch = 1) const {
    TcpGroupOptions options;
    options.rank = rank;
    options.members = members;
    options.cluster = 9;
    options.epoch = epoch;
    options.secret = &GroupSecret();
    options.deadline = Soon();
    return options;
  }
  Credentials CredentialsOf(int rank, uint64_t epoch) const {
    Credentials credentials;
    credentials.secret = &GroupSecret();
    credentials.own = {PeerRole::kRank, 9, epoch, static_cast<uint32_t>(rank),
                       static_cast<uint32_t>(members.size())};
    return credentials;
  }
  // Succeeds once rank `to` accepts calls, which it then goes on with.
  absl::StatusOr<ProvenSocket> Call(int to, int from, uint64_t epoch) const {
    return ConnectProven(listeners[to]->address(), CredentialsOf(from, epoch), Soon());
  }
  // All ranks at once, each with its options changed by `change`.
  std::vector<absl::Status> Form(uint64_t epoch = 1,
                                 const std::function<void(TcpGroupOptions&)>& change = nullptr,
                                 std::vector<std::vector<int>>* missing = nullptr) {
    std::vector<absl::Status> statuses(members.size());
    std::vector<std::thread> threads;
    ends.clear();
    ends.resize(members.size());
    for (size_t rank = 0; rank < members.size(); ++rank) {
      threads.emplace_back([&, rank] {
        TcpGroupOptions options = Options(rank, epoch);
        if (change) change(options);
        auto made = FormTcpGroup(*listeners[rank], options,
                                 missing != nullptr ? &(*missing)[rank] : nullptr);
        statuses[rank] = made.status();
        if (made.ok()) ends[rank] = *std::move(made);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  // Runs `fn` on one thread a rank.
  std::vector<absl::Status> Run(const LocalRing::RankFunction& fn) {
    std::vector<absl::Status> statuses(ends.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = fn(*ends[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::unique_ptr<FaultProxy>> proxies;
  std::vector<std::string> members;
  Ends ends;
};

// A rank that forms a group for as long as it takes.
class Forming {
 public:
  Forming(Listener& listener, TcpGroupOptions options) {
    options.deadline = In(std::chrono::hours(1));
    options.stop = &stop_;
    thread_ = std::thread([this, &listener, options] {
      status_ = FormTcpGroup(listener, options, &missing_).status();
    });
  }
  ~Forming() { GiveUp().IgnoreError(); }

  absl::Status GiveUp() {
    stop_.Wake();
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  const std::vector<int>& missing() const { return missing_; }  // after GiveUp

 private:
  Waker stop_;
  absl::Status status_;
  std::vector<int> missing_;
  std::thread thread_;
};

// Turns of ring exchanges and all-gathers, all checked.
absl::Status Traffic(Communicator& comm, int turns, size_t bytes, Duration limit) {
  Buffer send(comm, bytes), recv(comm, bytes), part(comm, 100), parts(comm, 100 * comm.size());
  for (int turn = 0; turn < turns; ++turn) {
    FillPattern(send, turn * 8 + comm.rank());
    FillPattern(part, turn * 9 + comm.rank());
    const Instant deadline = Clock::Real().Now() + limit;
    RF_RETURN_IF_ERROR(
        Exchange(comm, ExchangeOf(Next(comm), Previous(comm), send, recv, deadline)));
    RF_RETURN_IF_ERROR(CheckPattern(recv, turn * 8 + Previous(comm), "received"));
    RF_RETURN_IF_ERROR(AllGather(comm, GatherOf(part, parts, deadline)));
    for (int peer = 0; peer < comm.size(); ++peer) {
      RF_RETURN_IF_ERROR(
          CheckPattern(std::span(parts).subspan(peer * 100, 100), turn * 9 + peer, "gathered"));
    }
  }
  return absl::OkStatus();
}

TEST(TcpFormTest, EpochAfterEpochOverTheSameListeners) {
  Site site(3);
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    ExpectAllOk(site.Form(epoch));
    ExpectAllOk(site.Run([](Communicator& comm) { return Traffic(comm, 3, 1000, seconds(60)); }));
  }
}

TEST(TcpFormTest, ARankWithAnotherSecretIsNotLetIn) {
  Site site(3);
  const Secret other = Secret::Random();
  const auto statuses = site.Form(1, [&](TcpGroupOptions& options) {
    if (options.rank == 1) options.secret = &other;
    options.deadline = In(milliseconds(300));
  });
  for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok());
}

TEST(TcpFormTest, AnotherDeploymentWithTheSameSecretIsNotLetIn) {
  Site site(2);
  const auto statuses = site.Form(1, [&](TcpGroupOptions& options) {
    if (options.rank == 1) options.cluster = 10;
    options.deadline = In(milliseconds(300));
  });
  for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok());
}

TEST(TcpFormTest, WhoIsAtAnOldEpochIsToldAndHoldsNobodyUp) {
  Site site(2);
  absl::Status stale;
  std::thread late([&] {
    TcpGroupOptions options = site.Options(0, 4);
    stale = FormTcpGroup(*site.listeners[0], options).status();
  });
  std::thread form([&] {
    auto made = FormTcpGroup(*site.listeners[1], site.Options(1, 5));
    EXPECT_TRUE(made.ok()) << made.status();
    site.ends[1] = *std::move(made);
  });
  late.join();
  EXPECT_EQ(stale.code(), absl::StatusCode::kFailedPrecondition) << stale;
  EXPECT_THAT(std::string(stale.message()), testing::HasSubstr("epoch 5"));
  auto made = FormTcpGroup(*site.listeners[0], site.Options(0, 5));
  form.join();
  ASSERT_TRUE(made.ok()) << made.status();
  site.ends[0] = *std::move(made);
  ExpectAllOk(site.Run([](Communicator& comm) { return comm.Barrier(Soon()); }));
}

TEST(TcpFormTest, ACalledRankAtAnOldEpochLearnsOfIt) {
  Site site(2);
  absl::Status stale;
  std::thread called(
      [&] { stale = FormTcpGroup(*site.listeners[1], site.Options(1, 4)).status(); });
  std::thread caller([&] {
    auto made = FormTcpGroup(*site.listeners[0], site.Options(0, 5));
    EXPECT_TRUE(made.ok()) << made.status();
  });
  called.join();
  EXPECT_EQ(stale.code(), absl::StatusCode::kFailedPrecondition) << stale;
  auto made = FormTcpGroup(*site.listeners[1], site.Options(1, 5));
  EXPECT_TRUE(made.ok()) << made.status();
  caller.join();
}

TEST(TcpFormTest, WrongAddressesAreFound) {
  Site site(3);
  std::vector<std::vector<int>> missing(3);
  const auto statuses = site.Form(
      1,
      [&](TcpGroupOptions& options) {
        if (options.rank == 0) std::swap(options.members[1], options.members[2]);
        options.deadline = In(milliseconds(500));
      },
      &missing);
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kFailedPrecondition) << statuses[0];
  EXPECT_THAT(missing[0], testing::Not(testing::IsEmpty()));
  EXPECT_THAT(missing[0], testing::IsSubsetOf({1, 2}));
}

// The caller has a wrong address, and finds that out by itself.
TEST(TcpFormTest, ACallThatIsMeantForAnotherRankHarmsNobody) {
  Site site(3);
  std::vector<absl::Status> statuses(3);
  std::vector<std::thread> threads;
  const auto form = [&](size_t rank) {
    threads.emplace_back([&, rank] {
      auto made = FormTcpGroup(*site.listeners[rank], site.Options(static_cast<int>(rank)));
      statuses[rank] = made.status();
      if (made.ok()) site.ends[rank] = *std::move(made);
    });
  };
  form(1);
  EXPECT_TRUE(site.Call(1, 2, 1).ok());
  form(0);
  form(2);
  for (std::thread& thread : threads) thread.join();
  ExpectAllOk(statuses);
}

// A link that cannot be made keeps nobody else from connecting, and both of its ends name it.
TEST(TcpFormTest, SaysWhoIsMissing) {
  Site site(4);
  FaultPlan dark;
  dark.fault = Fault::kBlackhole;
  site.proxies[1]->Set(dark);  // on the way from rank 0 alone
  std::vector<std::vector<int>> missing(4);
  const auto statuses = site.Form(
      1, [](TcpGroupOptions& options) { options.deadline = In(milliseconds(1000)); }, &missing);
  EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[0])) << statuses[0];
  EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[1])) << statuses[1];
  EXPECT_TRUE(statuses[2].ok()) << statuses[2];
  EXPECT_TRUE(statuses[3].ok()) << statuses[3];
  EXPECT_THAT(missing, testing::ElementsAre(testing::ElementsAre(1), testing::ElementsAre(0),
                                            testing::IsEmpty(), testing::IsEmpty()));
}

TEST(TcpFormTest, AMissingRankEndsTheCallAtItsDeadline) {
  Site site(3);
  const Instant start = Clock::Real().Now();
  absl::Status statuses[2];
  std::vector<std::thread> threads;
  for (int rank : {1, 2}) {
    threads.emplace_back([&, rank] {
      TcpGroupOptions options = site.Options(rank);
      options.deadline = In(milliseconds(100));
      statuses[rank - 1] = FormTcpGroup(*site.listeners[rank], options).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_LT(Clock::Real().Now() - start, seconds(10));
}

// By somebody who has a newer group to form, say, while the rank awaits an answer to its calls, a
// call, or both.
TEST(TcpFormTest, ACallThatIsGivenUpEnds) {
  for (const int rank : {0, 1, 2}) {
    SCOPED_TRACE(rank);
    Site site(3);
    FaultPlan dark;
    dark.fault = Fault::kBlackhole;
    for (const auto& proxy : site.proxies) proxy->Set(dark);
    Forming forming(*site.listeners[rank], site.Options(rank));
    for (int called = rank + 1; called < 3; ++called) {
      while (site.proxies[called]->faults() == 0) std::this_thread::yield();
    }
    EXPECT_TRUE(rank == 0 || site.Call(rank, 0, 0).ok());  // of an old epoch
    EXPECT_TRUE(absl::IsCancelled(forming.GiveUp())) << forming.GiveUp();
    EXPECT_THAT(forming.missing(), testing::IsEmpty());
    // The listener is as good as new.
    for (const auto& proxy : site.proxies) proxy->Set({});
    ExpectAllOk(site.Form(2));
  }
}

// Nobody is there: it connects and pauses in turn.
TEST(TcpFormTest, ACallThatIsRefusedAgainAndAgainCanBeGivenUp) {
  Site site(2);
  TcpGroupOptions options = site.Options(0);
  options.members[1] = Listener::Bind().value()->address();
  Forming forming(*site.listeners[0], options);
  EXPECT_TRUE(absl::IsCancelled(forming.GiveUp()));
}

TEST(TcpFormTest, ACallToARankAtAnOldEpochCanBeGivenUp) {
  Site site(2);
  Forming forming(*site.listeners[0], site.Options(0, 5));
  for (int again = 0; again < 2; ++again) {
    EXPECT_TRUE(site.listeners[1]->Accept(site.CredentialsOf(1, 4), Soon()).ok());
  }
  EXPECT_TRUE(absl::IsCancelled(forming.GiveUp()));
}

// Its backlog is full: the connection is not made.
TEST(TcpFormTest, ACallThatIsNotTakenCanBeGivenUp) {
  Site site(2);
  const Fd full = ListenTcp({"127.0.0.1", 0}).value();
  ASSERT_EQ(listen(full.get(), 0), 0);
  const HostPort at = LocalAddress(full).value();
  std::vector<absl::StatusOr<Fd>> callers;
  do {
    callers.push_back(ConnectTcp(at, In(milliseconds(200))));
  } while (callers.back().ok());
  ASSERT_TRUE(absl::IsDeadlineExceeded(callers.back().status())) << callers.back().status();
  TcpGroupOptions options = site.Options(0);
  options.members[1] = HostPortText(at);
  Forming forming(*site.listeners[0], options);
  EXPECT_TRUE(absl::IsCancelled(forming.GiveUp()));
}

// Others of which nothing can be heard do not hold up what is known.
TEST(TcpFormTest, AnErrorForGoodEndsTheCallAtOnce) {
  Site site(3);
  TcpGroupOptions options = site.Options(1);
  options.deadline = In(std::chrono::hours(1));
  options.members[2] = "no address";
  std::vector<int> missing;
  const absl::Status status = FormTcpGroup(*site.listeners[1], options, &missing).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(missing, testing::ElementsAre(2));
}

// Every fault at many places in the traffic, on any connection: no rank hangs, none sees wrong
// bytes, and the failure is of the right kind on all of them.
struct FaultCase {
  Fault fault;
  absl::StatusCode code;
};
class TcpFaultTest : public testing::TestWithParam<FaultCase> {};

TEST_P(TcpFaultTest, IsFoundInTimeOnEveryRank) {
  const Fault fault = GetParam().fault;
  const absl::StatusCode code = GetParam().code;
  const int64_t places[] = {0, 1, 63, 64, 200, 5000, 100000, 300000, 1000000};
  for (const int ranks : {2, 3}) {
    for (const int64_t place : places) {
      Site site(ranks);
      ExpectAllOk(site.Form());
      FaultPlan plan;
      plan.fault = fault;
      plan.after_bytes = place;
      plan.flip_bit = static_cast<int>(place % 8);
      plan.direction =
          place % 3 == 1 ? FaultPlan::Direction::kToCaller : FaultPlan::Direction::kToTarget;
      plan.delay = milliseconds(20);
      site.proxies[ranks - 1]->Set(plan);  // on the way from all the others
      const Duration limit = milliseconds(400);
      const bool timed = code == absl::StatusCode::kDeadlineExceeded;
      std::vector<Duration> took(ranks);
      const auto statuses = site.Run([&](Communicator& comm) {
        const Instant start = Clock::Real().Now();
        const absl::Status status = Traffic(comm, 1000, 200000, timed ? limit : seconds(60));
        took[comm.rank()] = Clock::Real().Now() - start;
        return status;
      });
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(statuses[rank].code(), code)
            << "rank " << rank << " of " << ranks << " place " << place << ": " << statuses[rank];
        EXPECT_LT(took[rank], seconds(20));
      }
    }
  }
}

std::string FaultName(const testing::TestParamInfo<FaultCase>& info) {
  const char* const names[] = {"none", "delay", "trickle", "blackhole", "cut",
                               "end",  "flip",  "replay",  "drop"};
  return names[static_cast<int>(info.param.fault)];
}

INSTANTIATE_TEST_SUITE_P(
    All, TcpFaultTest,
    testing::Values(FaultCase{Fault::kFlip, absl::StatusCode::kDataLoss},
                    FaultCase{Fault::kReplay, absl::StatusCode::kDataLoss},
                    FaultCase{Fault::kDrop, absl::StatusCode::kDataLoss},
                    FaultCase{Fault::kCut, absl::StatusCode::kUnavailable},
                    FaultCase{Fault::kEnd, absl::StatusCode::kUnavailable},
                    FaultCase{Fault::kBlackhole, absl::StatusCode::kDeadlineExceeded},
                    FaultCase{Fault::kTrickle, absl::StatusCode::kDeadlineExceeded}),
    FaultName);

// Links that are watched, with what each rank finds dead.
class TcpWatchTest : public testing::Test {
 protected:
  static constexpr Duration kLimit = milliseconds(1000);

  void Form() {
    ExpectAllOk(site_.Form(1, [this](TcpGroupOptions& options) {
      options.silence_limit = kLimit;
      options.on_dead_link = [this, rank = options.rank](int peer) {
        MutexLock lock(&mutex_);
        found_.emplace_back(rank, peer);
        changed_.SignalAll();
      };
    }));
  }
  std::pair<int, int> AwaitDead() {
    MutexLock lock(&mutex_);
    while (found_.empty() && changed_.WaitUntil(&mutex_, Soon())) {
    }
    return found_.empty() ? std::pair(-1, -1) : found_.front();
  }
  size_t dead() {
    MutexLock lock(&mutex_);
    return found_.size();
  }
  // Until so many bytes more have come through a proxy.
  void AwaitBytes(const FaultProxy& proxy, int64_t bytes) {
    const int64_t enough = proxy.bytes() + bytes;
    const Instant limit = Soon();
    MutexLock lock(&mutex_);
    while (proxy.bytes() < enough && Clock::Real().Now() < limit) {
      changed_.WaitUntil(&mutex_, In(milliseconds(5)));
    }
    EXPECT_GE(proxy.bytes(), enough);
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::pair<int, int>> found_ ABSL_GUARDED_BY(mutex_);
  Site site_{3};
};

constexpr FaultPlan kDark = {.fault = Fault::kBlackhole};

TEST_F(TcpWatchTest, ALinkThatGoesDarkBetweenTransfersIsFound) {
  Form();
  ExpectAllOk(site_.Run([](Communicator& comm) { return Traffic(comm, 3, 1000, seconds(60)); }));
  const Instant start = Clock::Real().Now();
  site_.proxies[1]->Set(kDark);  // between 0 and 1 alone
  const auto [from, to] = AwaitDead();
  EXPECT_LT(Clock::Real().Now() - start, 10 * kLimit);
  EXPECT_EQ(from + to, 1) << from << " says it of " << to;
  for (const absl::Status& status : site_.Run([](Communicator& c) { return c.Barrier(Soon()); })) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("is dead"));
  }
}

TEST_F(TcpWatchTest, ALinkThatGoesDarkWhileOthersWaitIsFound) {
  Form();
  // On the lane and on the calling thread.
  for (const absl::Status& status : site_.Run([&](Communicator& comm) {
         if (comm.rank() == 2) site_.proxies[2]->Set(kDark);
         if (comm.rank() == 0) return comm.Barrier(Soon());
         Buffer send(comm, 100), recv(comm, 100);
         return Exchange(comm, ExchangeOf(Next(comm), Previous(comm), send, recv));
       })) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("heard nothing from rank"));
  }
  EXPECT_GE(dead(), 1u);
}

TEST_F(TcpWatchTest, RanksThatSayNothingForLongAreAlive) {
  Form();
  // Beats of many times the limit: 64 bytes every quarter of a second, each way.
  AwaitBytes(*site_.proxies[1], 2 * 64 * 16);
  EXPECT_EQ(dead(), 0u);
  ExpectAllOk(site_.Run([](Communicator& comm) { return Traffic(comm, 3, 1000, seconds(60)); }));
}

TEST_F(TcpWatchTest, ASlowLinkThatMovesBytesIsAlive) {
  Form();
  FaultPlan slow;
  slow.fault = Fault::kTrickle;
  slow.delay = milliseconds(1);
  site_.proxies[2]->Set(slow);
  // Some 3 s of it each way, three times the limit.
  ExpectAllOk(site_.Run([](Communicator& comm) { return Traffic(comm, 1, 2500, seconds(60)); }));
  EXPECT_EQ(dead(), 0u);
}

TEST(TcpNetworkTest, ASlowNetworkIsNoFailure) {
  Site site(3);
  ExpectAllOk(site.Form());
  FaultPlan plan;
  plan.fault = Fault::kDelay;
  plan.delay = milliseconds(3);
  for (const auto& proxy : site.proxies) proxy->Set(plan);
  ExpectAllOk(site.Run([](Communicator& comm) { return Traffic(comm, 10, 300000, seconds(60)); }));
}

// The part of an all-gather that comes a call early and slowly, so that its call begins between
// its first byte and its last.
TEST(TcpNetworkTest, AnEarlyPartMayStillBeComingWhenItsCallBegins) {
  Site site(2);
  ExpectAllOk(site.Form());
  FaultPlan slow;
  slow.fault = Fault::kTrickle;
  slow.delay = std::chrono::microseconds(100);
  site.proxies[1]->Set(slow);
  const int64_t before = site.proxies[1]->bytes();
  ExpectAllOk(site.Run([&](Communicator& comm) -> absl::Status {
    Buffer one(0, 1), other(0, 1), part(0, 1000), parts(0, 2000);
    FillPattern(part, comm.rank());
    const auto held = Pending();
    std::vector<EventPtr> after;
    if (comm.rank() == 0) after.push_back(held);
    // Keeps rank 1's lane reading.
    const TransferPtr exchange =
        comm.StartExchange(ExchangeOf(Next(comm), Previous(comm), one, other, Soon(), after));
    while (comm.rank() == 1 && site.proxies[1]->bytes() < before + 300) std::this_thread::yield();
    const TransferPtr gather = comm.StartAllGather(GatherOf(part, parts));
    RF_RETURN_IF_ERROR(gather->Await(Soon()));
    held->Complete(absl::OkStatus());
    RF_RETURN_IF_ERROR(exchange->Await(Soon()));
    RF_RETURN_IF_ERROR(CheckPattern(std::span(parts).first(1000), 0, "rank 0's part"));
    return CheckPattern(std::span(parts).subspan(1000), 1, "rank 1's part");
  }));
}

TEST(TcpNetworkTest, ARankThatGoesIsNamed) {
  Site site(3);
  ExpectAllOk(site.Form());
  std::atomic<int> waiting{0};
  std::vector<absl::Status> statuses(2);
  std::vector<std::thread> threads;
  for (const int rank : {0, 2}) {
    threads.emplace_back([&, rank] {
      ++waiting;
      statuses[rank / 2] = site.ends[rank]->Barrier(Soon());
    });
  }
  while (waiting < 2) std::this_thread::yield();
  FaultPlan cut;
  cut.fault = Fault::kCut;
  site.proxies[2]->Set(cut);
  cut.direction = FaultPlan::Direction::kToCaller;
  site.proxies[1]->Set(cut);
  site.ends[1]->Abort(absl::CancelledError("to make bytes flow"));
  for (std::thread& thread : threads) thread.join();
  // Rank 1's abort was cut off, so that its death is what the others see.
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("is gone"));
  }
}

TEST(TcpNetworkTest, ARankThatLeavesInOrderFailsOnlyWhatNeedsIt) {
  Site site(3);
  ExpectAllOk(site.Form());
  site.ends[1].reset();
  Buffer send(0, 100), recv(0, 100);
  const TransferPtr one = site.ends[0]->StartExchange(ExchangeOf(2, 2, send, recv));
  Buffer send2(0, 100), recv2(0, 100);
  const TransferPtr two = site.ends[2]->StartExchange(ExchangeOf(0, 0, send2, recv2));
  EXPECT_TRUE(one->Await(Soon()).ok()) << one->Await(Soon());
  EXPECT_TRUE(two->Await(Soon()).ok()) << two->Await(Soon());
  const absl::Status status = site.ends[0]->Barrier(Soon());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 1"));
  EXPECT_EQ(site.ends[2]->Barrier(Soon()), status);
}

}  // namespace
}  // namespace ringfill
