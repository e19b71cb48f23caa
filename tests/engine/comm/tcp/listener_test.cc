#include "engine/comm/tcp/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/engine/comm/tcp/sessions.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Instant In(Duration from_now) { return Clock::Real().Now() + from_now; }
Instant Soon() { return In(seconds(60)); }

Fd Call(const Listener& listener) {
  return ConnectTcp(ParseHostPort(listener.address()).value(), Soon()).value();
}

TEST(ListenerTest, ListensOnLoopbackUnlessTold) {
  const auto listener = Listener::Bind().value();
  EXPECT_THAT(listener->address(), testing::StartsWith("127.0.0.1:"));
  EXPECT_TRUE(absl::IsUnavailable(Listener::Bind(listener->address()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Listener::Bind("nowhere").status()));
}

// Callers that say nothing, some more than are kept, do not hold up one that proves itself.
TEST(ListenerTest, SilentCallersHoldNobodyUp) {
  const auto listener = Listener::Bind().value();
  std::vector<Fd> silent;
  for (size_t i = 0; i < Listener::kMaxPending + 20; ++i) silent.push_back(Call(*listener));
  absl::StatusOr<ProvenSocket> called;
  std::thread calling([&] {
    called = ConnectProven(listener->address(), RankCredentials(TestSecret(), 0), Soon());
  });
  const Instant start = Clock::Real().Now();
  const auto accepted = listener->Accept(RankCredentials(TestSecret(), 1), Soon());
  EXPECT_LT(Clock::Real().Now() - start, Listener::kHandshakeLimit);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  calling.join();
  ASSERT_TRUE(called.ok()) << called.status();
  EXPECT_EQ(accepted->keys.send, called->keys.receive);
  EXPECT_GE(listener->refused(), 20);
}

TEST(ListenerTest, AcceptEndsAtItsDeadlineWhileSomebodyTrickles) {
  const auto listener = Listener::Bind().value();
  const Fd caller = Call(*listener);
  char byte = 'R';
  const iovec part = {&byte, 1};
  ASSERT_EQ(WriteSome(caller, std::span(&part, 1)).value(), 1u);
  const Instant start = Clock::Real().Now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      listener->Accept(RankCredentials(TestSecret(), 1), In(milliseconds(50))).status()));
  EXPECT_LT(Clock::Real().Now() - start, seconds(4));
}

// Handshakes go on from one Accept to the next while the credentials stay the same.
TEST(ListenerTest, CallersWaitFromOneAcceptToTheNext) {
  const auto listener = Listener::Bind().value();
  constexpr int kCallers = 5;
  std::vector<std::thread> threads;
  std::vector<absl::Status> statuses(kCallers);
  for (int i = 0; i < kCallers; ++i) {
    threads.emplace_back([&, i] {
      statuses[i] =
          ConnectProven(listener->address(), RankCredentials(TestSecret(), 0), Soon()).status();
    });
  }
  for (int i = 0; i < kCallers; ++i) {
    absl::Status status;
    do status = listener->Accept(RankCredentials(TestSecret(), 1), In(milliseconds(1))).status();
    while (absl::IsDeadlineExceeded(status));
    EXPECT_TRUE(status.ok()) << status;
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(listener->refused(), 0);
}

TEST(ListenerTest, CloseEndsAWaitingAccept) {
  const auto listener = Listener::Bind().value();
  std::thread closing([&] { listener->Close(); });
  EXPECT_TRUE(
      absl::IsCancelled(listener->Accept(RankCredentials(TestSecret(), 1), Soon()).status()));
  closing.join();
  EXPECT_TRUE(
      absl::IsCancelled(listener->Accept(RankCredentials(TestSecret(), 1), Soon()).status()));
}

TEST(ListenerTest, CallerWithAnotherSecretIsTurnedAwayWithoutAReason) {
  const auto listener = Listener::Bind().value();
  const Secret other = Secret::Random();
  std::thread accepting([&] {
    EXPECT_TRUE(absl::IsDeadlineExceeded(
        listener->Accept(RankCredentials(TestSecret(), 1), In(milliseconds(300))).status()));
  });
  const auto called = ConnectProven(listener->address(), RankCredentials(other, 0), Soon());
  EXPECT_TRUE(absl::IsUnavailable(called.status())) << called.status();
  accepting.join();
  EXPECT_EQ(listener->refused(), 1);
}

// Somebody who listens where a peer should and does not know the secret.
TEST(ListenerTest, CallerFindsOutAnImpostor) {
  const auto impostor = Listener::Bind().value();
  const Secret other = Secret::Random();
  std::thread accepting([&] {
    // It cannot check our proof, but it could go on as if it had.
    Handshake handshake(Handshake::Side::kAcceptor, RankCredentials(other, 1));
    absl::StatusOr<ProvenSocket> never =
        impostor->Accept(RankCredentials(other, 1), In(milliseconds(300)));
    EXPECT_FALSE(never.ok());
  });
  const auto called = ConnectProven(impostor->address(), RankCredentials(TestSecret(), 0), Soon());
  EXPECT_FALSE(called.ok());
  accepting.join();
}

TEST(ListenerTest, ConnectingIsTriedAgainUntilThePeerIsThere) {
  std::string address;
  {
    const auto gone = Listener::Bind().value();
    address = gone->address();
  }
  EXPECT_TRUE(absl::IsUnavailable(
      ConnectProven(address, RankCredentials(TestSecret(), 0), Soon()).status()));
  EXPECT_FALSE(
      ConnectProvenRetrying(address, RankCredentials(TestSecret(), 0), In(milliseconds(60))).ok());
  absl::StatusOr<ProvenSocket> called;
  std::thread calling(
      [&] { called = ConnectProvenRetrying(address, RankCredentials(TestSecret(), 0), Soon()); });
  const auto listener = Listener::Bind(address).value();
  EXPECT_TRUE(listener->Accept(RankCredentials(TestSecret(), 1), Soon()).ok());
  calling.join();
  EXPECT_TRUE(called.ok()) << called.status();
}

}  // namespace
}  // namespace ringfill
