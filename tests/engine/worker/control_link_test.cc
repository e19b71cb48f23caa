#include "engine/worker/control_link.h"

#include <optional>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/tcp/sessions.h"

namespace ringfill {
namespace {

Instant Soon() { return Clock::Real().Now() + std::chrono::seconds(60); }

Credentials CredentialsOf(PeerRole own, PeerRole peer) {
  Credentials credentials = RankCredentials(TestSecret(), 0);
  credentials.own.role = own;
  credentials.peer_role = peer;
  return credentials;
}

// A link, and the plain connection at its other end.
class ControlLinkTest : public testing::Test {
 protected:
  ControlLinkTest() {
    const std::unique_ptr<Listener> listener = Listener::Bind().value();
    std::thread accepting([&] {
      const Credentials leader = CredentialsOf(PeerRole::kLeader, PeerRole::kWorker);
      near_ = std::make_unique<Connection>(listener->Accept(leader, Soon()).value());
    });
    far_ = Connection::Connect(listener->address(),
                               CredentialsOf(PeerRole::kWorker, PeerRole::kLeader), Soon())
               .value();
    accepting.join();
  }

  std::unique_ptr<ControlLink> Start(Duration silence_limit) {
    auto link = std::make_unique<ControlLink>(
        std::move(near_), silence_limit,
        ControlLink::Handler{.on_message = [](const ControlMessage&) {},
                             .on_end =
                                 [this](const absl::Status& why) {
                                   MutexLock lock(&mutex_);
                                   end_ = why;
                                   ended_.SignalAll();
                                 }});
    link->Start();
    return link;
  }
  bool ended() {
    MutexLock lock(&mutex_);
    return end_.has_value();
  }
  absl::Status AwaitEnd() {
    MutexLock lock(&mutex_);
    while (!end_.has_value() && ended_.WaitUntil(&mutex_, Soon())) {
    }
    return end_.value_or(absl::OkStatus());
  }

  std::unique_ptr<Connection> near_, far_;
  Mutex mutex_;
  CondVar ended_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

constexpr Duration kPatient = std::chrono::minutes(10);

// Small ones go by the caller's thread, large ones by the link's: neither waits, and the link ends
// by name.
TEST_F(ControlLinkTest, APeerThatDoesNotReadEndsTheLinkAndHoldsNobodyUp) {
  const auto link = Start(kPatient);
  const auto small =
      std::make_shared<EncodedControl>(EncodeControl(StepMessage{std::string(20 << 10, 'x')}));
  size_t sent = 0;
  const Instant start = Clock::Real().Now();
  while (!ended() && Clock::Real().Now() < Soon() && sent < 100000) {
    link->Send(small);
    ++sent;
  }
  EXPECT_LT(Clock::Real().Now() - start, std::chrono::seconds(30));
  const absl::Status end = AwaitEnd();
  EXPECT_EQ(end.code(), absl::StatusCode::kResourceExhausted) << end;
  EXPECT_THAT(std::string(end.message()), testing::HasSubstr("the peer does not read"));
  EXPECT_GT(sent, ControlLink::kMaxQueued);
}

TEST_F(ControlLinkTest, WhatWaitsIsSentInOrder) {
  const auto link = Start(kPatient);
  constexpr int kMessages = 600;
  for (int i = 0; i < kMessages; ++i) {
    const size_t bytes = i % 7 == 0 ? 40 << 10 : 10 << 10;
    link->Send(StepMessage{std::to_string(i) + std::string(bytes, 'x')});
  }
  for (int next = 0; next < kMessages;) {
    const auto message = far_->Receive(Soon());
    ASSERT_TRUE(message.ok()) << message.status();
    const auto decoded = DecodeControl(message->type, message->payload);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const auto* step = std::get_if<StepMessage>(&*decoded);
    if (step == nullptr) continue;  // beats
    EXPECT_EQ(std::stoi(step->plan), next++);
  }
  EXPECT_TRUE(link->Flush(Soon()));
  EXPECT_FALSE(ended());
}

TEST_F(ControlLinkTest, APeerThatSaysNothingIsSilent) {
  const auto link = Start(std::chrono::milliseconds(300));
  EXPECT_TRUE(absl::IsUnavailable(AwaitEnd()));
  EXPECT_TRUE(link->silent());
}

}  // namespace
}  // namespace ringfill
