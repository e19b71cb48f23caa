// What clients and networks do to a daemon: each case ends with no page in use.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/test_daemon.h"

namespace ringfill {
namespace {

using grpc::StatusCode;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr auto kNoGrace = std::chrono::seconds(0);

// Events so large that a few thousand fill every buffer between daemon and client.
v1::GenerateRequest BulkyRequest(int max_tokens) {
  v1::GenerateRequest request = GenerateOf(TokenPrompt(20), max_tokens);
  request.set_logprobs(64);
  return request;
}

// Runs until the engine makes no more steps although a request runs.
bool EnginePauses(TestDaemon& daemon) {
  uint64_t last = 0;
  int same = 0;
  return Eventually([&] {
    const v1::GetStatusResponse status = daemon.Status();
    same = status.running() == 1 && status.steps() == last && last > 0 ? same + 1 : 0;
    last = status.steps();
    return same > 40;
  });
}

double Outcomes(TestDaemon& daemon, const std::string& outcome) {
  return daemon.Metric("ringfill_requests_total", "outcome=\"" + outcome + "\",rpc=\"Generate\"");
}

// The engine stopped early instead of finishing for nobody.
void ExpectWorkStopped(TestDaemon& daemon, int prompt_tokens, int max_tokens) {
  const double computed = daemon.Metric("ringfill_prefill_tokens_total") +
                          daemon.Metric("ringfill_decode_tokens_total");
  EXPECT_LT(computed, 0.8 * (prompt_tokens + max_tokens));
}

TEST(CancelTest, DuringPrefill) {
  TestDaemon daemon({"prefill.chunk_tokens=16"});
  grpc::ClientContext context;
  const auto reader =
      daemon.stub().Generate(&context, GenerateOf(TokenPrompt(kTinyContext - 100), 100));
  v1::GenerateEvent event;
  do {
    ASSERT_TRUE(reader->Read(&event));
  } while (!event.has_progress());
  EXPECT_TRUE(Eventually([&] { return daemon.PagesUsed() > 0; }));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(daemon.BecomesIdle());
  EXPECT_EQ(Outcomes(daemon, "cancelled"), 1);
  ExpectWorkStopped(daemon, kTinyContext - 100, 100);
}

TEST(CancelTest, DuringDecode) {
  TestDaemon daemon;
  grpc::ClientContext context;
  const auto reader =
      daemon.stub().Generate(&context, GenerateOf(TokenPrompt(20), kTinyContext - 20));
  v1::GenerateEvent event;
  for (int tokens = 0; tokens < 5;) {
    ASSERT_TRUE(reader->Read(&event));
    tokens += event.has_token();
  }
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(daemon.BecomesIdle());
  EXPECT_EQ(Outcomes(daemon, "cancelled"), 1);
  ExpectWorkStopped(daemon, 20, kTinyContext - 20);
}

TEST(CancelTest, OfAScore) {
  TestDaemon daemon({"prefill.chunk_tokens=16"});
  v1::ScoreRequest request;
  *request.mutable_prompt() = TokenPrompt(kTinyContext - 1);
  grpc::ClientContext context;
  std::thread canceller([&] {
    EXPECT_TRUE(Eventually([&] { return daemon.PagesUsed() > 0; }));
    context.TryCancel();
  });
  v1::ScoreResponse response;
  EXPECT_EQ(daemon.stub().Score(&context, request, &response).error_code(), StatusCode::CANCELLED);
  canceller.join();
  EXPECT_TRUE(daemon.BecomesIdle());
  ExpectWorkStopped(daemon, kTinyContext - 1, 0);
}

TEST(CancelTest, ByDeadline) {
  TestDaemon daemon;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(150));
  const auto reader =
      daemon.stub().Generate(&context, GenerateOf(TokenPrompt(20), kTinyContext - 20));
  for (v1::GenerateEvent event; reader->Read(&event);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(daemon.BecomesIdle());
  EXPECT_EQ(Outcomes(daemon, "deadline"), 1);
  ExpectWorkStopped(daemon, 20, kTinyContext - 20);
}

TEST(CancelTest, AtOnceManyTimes) {
  TestDaemon daemon;
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    const auto reader = daemon.stub().Generate(&context, GenerateOf(TokenPrompt(200, i), 50));
    if (i % 3 == 0) {
      v1::GenerateEvent event;
      reader->Read(&event);
    }
    context.TryCancel();
    reader->Finish();
  }
  EXPECT_TRUE(daemon.BecomesIdle());
  EXPECT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(10), 2)).status.ok());
}

class ConnectionLossTest : public ::testing::TestWithParam<bool> {};

TEST_P(ConnectionLossTest, FreesThePages) {
  const bool during_prefill = GetParam();
  TestDaemon daemon({"prefill.chunk_tokens=16"});
  CuttableProxy proxy(daemon.daemon().grpc_address());
  const auto stub = TestDaemon::Connect(proxy.address());
  grpc::ClientContext context;
  const auto reader =
      stub->Generate(&context, during_prefill ? GenerateOf(TokenPrompt(kTinyContext - 100), 100)
                                              : GenerateOf(TokenPrompt(20), kTinyContext - 20));
  v1::GenerateEvent event;
  do {
    ASSERT_TRUE(reader->Read(&event));
  } while (!(during_prefill ? event.has_progress() : event.has_token()));
  EXPECT_TRUE(Eventually([&] { return daemon.PagesUsed() > 0; }));
  proxy.Cut();
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(daemon.BecomesIdle());
  EXPECT_EQ(Outcomes(daemon, "cancelled"), 1);
  ExpectWorkStopped(daemon, 20, kTinyContext - 20);
}

INSTANTIATE_TEST_SUITE_P(PrefillAndDecode, ConnectionLossTest, ::testing::Bool());

TEST(SlowClientTest, PausesItsRequestAndLosesNothing) {
  TestDaemon daemon({"server.outbox_events=8"});
  constexpr int kTokens = 5000;
  grpc::ClientContext context;
  const auto reader = daemon.stub().Generate(&context, BulkyRequest(kTokens));
  ASSERT_TRUE(EnginePauses(daemon));
  EXPECT_LT(daemon.Status().steps(), static_cast<uint64_t>(kTokens));
  EXPECT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(30), 5)).status.ok());
  int tokens = 0;
  for (v1::GenerateEvent event; reader->Read(&event);) tokens += event.has_token();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, kTokens);
  EXPECT_TRUE(daemon.BecomesIdle());
}

TEST(SlowClientTest, IsCancelledAfterTheTimeout) {
  TestDaemon daemon({"server.outbox_events=8", "server.slow_client_timeout_s=0.3"});
  grpc::ClientContext context;
  const auto reader = daemon.stub().Generate(&context, BulkyRequest(5000));
  ASSERT_TRUE(Eventually([&] { return daemon.PagesUsed() > 0; }));
  EXPECT_TRUE(daemon.BecomesIdle());
  EXPECT_EQ(Outcomes(daemon, "cancelled"), 1);
  for (v1::GenerateEvent event; reader->Read(&event);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
}

TEST(ManyClientsTest, FiftyAtOnceGetTheirOwnAnswers) {
  TestDaemon daemon;
  constexpr int kClients = 50;
  constexpr int kPrompts = 10;
  std::vector<Generated> alone;
  for (int i = 0; i < kPrompts; ++i) {
    alone.push_back(Generate(daemon.stub(), GenerateOf(TokenPrompt(50 + 37 * i, i), 20)));
    ASSERT_TRUE(alone.back().status.ok());
  }
  std::vector<Generated> together(kClients);
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const auto stub = TestDaemon::Connect(daemon.daemon().grpc_address());
      const int p = i % kPrompts;
      together[i] = Generate(*stub, GenerateOf(TokenPrompt(50 + 37 * p, p), 20));
    });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < kClients; ++i) {
    ASSERT_TRUE(together[i].status.ok()) << i << ": " << together[i].status.error_message();
    EXPECT_EQ(together[i].tokens, alone[i % kPrompts].tokens) << i;
  }
  EXPECT_TRUE(daemon.BecomesIdle());
}

TEST(DrainTest, RunningRequestsFinishAndNewOnesAreRefused) {
  TestDaemon daemon({"server.outbox_events=8"});
  grpc::ClientContext context;
  const auto reader = daemon.stub().Generate(&context, BulkyRequest(3000));
  ASSERT_TRUE(EnginePauses(daemon));  // runs for as long as this test wants
  std::thread drain([&] { daemon.Shutdown(kHangLimit); });
  EXPECT_TRUE(Eventually([&] { return HealthOf(daemon.channel(), "") == "NOT_SERVING"; }));
  EXPECT_EQ(HealthOf(daemon.channel(), "ringfill.v1.Ringfill"), "NOT_SERVING");
  EXPECT_TRUE(Eventually([&] { return daemon.Status().draining(); }));
  const grpc::Status refused = Generate(daemon.stub(), GenerateOf(TokenPrompt(5), 1)).status;
  EXPECT_EQ(refused.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(RetryDelay(refused), 5);
  int tokens = 0;
  for (v1::GenerateEvent event; reader->Read(&event);) tokens += event.has_token();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 3000);
  drain.join();
}

TEST(DrainTest, WhatDoesNotFinishInTimeIsUnavailable) {
  TestDaemon daemon;
  grpc::ClientContext context;
  const auto reader =
      daemon.stub().Generate(&context, GenerateOf(TokenPrompt(20), kTinyContext - 20));
  v1::GenerateEvent event;
  while (reader->Read(&event) && !event.has_token()) {
  }
  std::thread drain([&] { daemon.Shutdown(kNoGrace); });
  while (reader->Read(&event)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("shutting down"));
  EXPECT_EQ(RetryDelay(status), 5);
  drain.join();
}

TEST(DrainTest, AClientThatDoesNotReadCannotHoldItUp) {
  TestDaemon daemon({"server.outbox_events=8"});
  grpc::ClientContext context;
  const auto reader = daemon.stub().Generate(&context, BulkyRequest(5000));
  ASSERT_TRUE(EnginePauses(daemon));
  daemon.Shutdown(kNoGrace);
  for (v1::GenerateEvent event; reader->Read(&event);) {
  }
  EXPECT_THAT(reader->Finish().error_code(), AnyOf(StatusCode::UNAVAILABLE, StatusCode::CANCELLED));
}

// Whatever still holds a call when the server has stopped must not outlive what the call refers to.
TEST(DrainTest, CutShortManyTimesWithCallsInFlight) {
  constexpr int kRounds = 20;
  constexpr int kCalls = 48;
  for (int round = 0; round < kRounds; ++round) {
    auto daemon =
        std::make_unique<TestDaemon>(std::vector<std::string>{"ranks.count=1", "metrics.listen="});
    const auto stub = TestDaemon::Connect(daemon->daemon().grpc_address());
    std::vector<grpc::Status> ends(kCalls);
    std::vector<std::thread> clients;
    std::atomic<int> under_way{0};
    for (int i = 0; i < kCalls; ++i) {
      clients.emplace_back([&, i] {
        grpc::ClientContext context;
        const auto reader = stub->Generate(&context, GenerateOf(TokenPrompt(10, i), 10000));
        v1::GenerateEvent event;
        if (reader->Read(&event)) ++under_way;
        while (reader->Read(&event)) {
        }
        ends[i] = reader->Finish();
      });
    }
    EXPECT_TRUE(Eventually([&] { return under_way == kCalls; }));
    daemon->Shutdown(kNoGrace);
    daemon.reset();
    for (std::thread& client : clients) client.join();
    for (const grpc::Status& end : ends) EXPECT_EQ(end.error_code(), StatusCode::UNAVAILABLE);
  }
}

}  // namespace
}  // namespace ringfill
