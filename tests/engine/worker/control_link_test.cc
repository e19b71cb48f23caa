#include "engine/worker/control_link.h"

#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <vector>

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

class HandClock final : public Clock {
 public:
  Instant Now() const override {
    MutexLock lock(&mutex_);
    ++looks_;
    looked_.SignalAll();
    return now_;
  }
  void Advance(Duration by) {
    MutexLock lock(&mutex_);
    now_ += by;
  }
  // Until the link's thread has seen what was set before, and is through with it.
  void AwaitLook() {
    MutexLock lock(&mutex_);
    const int64_t enough = looks_ + 2;
    while (looks_ < enough && looked_.WaitUntil(&mutex_, Soon())) {
    }
    EXPECT_GE(looks_, enough);
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar looked_;
  mutable int64_t looks_ ABSL_GUARDED_BY(mutex_) = 0;
  Instant now_ ABSL_GUARDED_BY(mutex_) = Instant() + std::chrono::hours(1);
};

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

  std::unique_ptr<ControlLink> Start(Duration silence_limit, const Clock& clock = Clock::Real()) {
    auto link = std::make_unique<ControlLink>(
        std::move(near_), silence_limit,
        ControlLink::Handler{.on_message = [this](const ControlMessage&) { on_message_(); },
                             .on_end =
                                 [this](const absl::Status& why) {
                                   MutexLock lock(&mutex_);
                                   end_ = why;
                                   ended_.SignalAll();
                                 }},
        clock);
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
  std::function<void()> on_message_ = [] {};
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
  EXPECT_FALSE(ended());
}

// Bytes that wait at both ends: what a socket has not read when it closes would reset it.
TEST_F(ControlLinkTest, TheLastMessageArrivesThoughThePeerGoesOnTalking) {
  auto link = Start(kPatient);
  for (int i = 0; i < 64; ++i) link->Send(StepMessage{std::string(60 << 10, 'x')});
  link->Finish(RefusedMessage{false, "last words"}, absl::AbortedError("finished"), kPatient);
  link->Send(ByeMessage{"too late"});
  std::thread destroys([&] { link.reset(); });
  const EncodedControl chatter = EncodeControl(TraceMessage{true});
  std::vector<ControlMessage> got;
  absl::Status status;
  while (true) {
    far_->SendSome(chatter.type, std::as_bytes(std::span(chatter.payload))).IgnoreError();
    const auto message = far_->Receive(Soon());
    status = message.status();
    if (!message.ok()) break;
    const auto decoded = DecodeControl(message->type, message->payload);
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    if (!std::holds_alternative<BeatMessage>(*decoded)) got.push_back(*decoded);
  }
  EXPECT_FALSE(ended());  // it waits for the peer
  far_->Close();
  destroys.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  ASSERT_EQ(got.size(), 65u);
  ASSERT_TRUE(std::holds_alternative<RefusedMessage>(got.back()));
  EXPECT_EQ(std::get<RefusedMessage>(got.back()).reason, "last words");
  EXPECT_EQ(AwaitEnd(), absl::AbortedError("finished"));
}

TEST_F(ControlLinkTest, APeerThatDoesNotCloseIsNotWaitedForLong) {
  auto link = Start(kPatient);
  link->Finish(ByeMessage{"good night"}, absl::AbortedError("finished"),
               std::chrono::milliseconds(50));
  link.reset();
  EXPECT_EQ(AwaitEnd(), absl::AbortedError("finished"));
}

class ControlLinkSilenceTest : public ControlLinkTest {
 protected:
  static constexpr Duration kLimit = std::chrono::milliseconds(400);
  static constexpr Duration kPause = std::chrono::seconds(100);

  // One look of the link's after the other.
  void Pass(Duration time) {
    for (Duration at{}; at < time; at += kLimit / 4) {
      clock_.Advance(kLimit / 4);
      clock_.AwaitLook();
    }
  }
  void FarSends(const ControlMessage& message) {
    const EncodedControl encoded = EncodeControl(message);
    EXPECT_TRUE(far_->Send(encoded.type, std::as_bytes(std::span(encoded.payload)), Soon()).ok());
  }
  void ExpectSilentSoon(const ControlLink& link) {
    clock_.Advance(kLimit / 4);
    EXPECT_TRUE(absl::IsUnavailable(AwaitEnd()));
    EXPECT_TRUE(link.silent());
  }

  HandClock clock_;
};

TEST_F(ControlLinkSilenceTest, APeerThatSaysNothingIsSilent) {
  const auto link = Start(kLimit, clock_);
  Pass(kLimit);
  EXPECT_FALSE(ended());
  ExpectSilentSoon(*link);
}

// A laptop that sleeps, or a virtual machine that is stopped: when they go on, leader and workers
// would find each other silent.
TEST_F(ControlLinkSilenceTest, TimeInWhichThisProcessStoodStillDoesNotCount) {
  const auto link = Start(kLimit, clock_);
  Pass(kLimit / 2);
  clock_.Advance(kPause);
  clock_.AwaitLook();
  EXPECT_FALSE(ended());
  // The rest of the limit, not a new one.
  Pass(kLimit / 4);
  EXPECT_FALSE(ended());
  ExpectSilentSoon(*link);
}

TEST_F(ControlLinkSilenceTest, NorDoesTimeInWhichItDoesNotListen) {
  std::promise<void> busy;
  on_message_ = [&] {
    clock_.Advance(kPause);
    busy.set_value();
  };
  const auto link = Start(kLimit, clock_);
  FarSends(TraceMessage{true});
  busy.get_future().wait();
  clock_.AwaitLook();
  EXPECT_FALSE(ended());
  Pass(kLimit / 2);
  EXPECT_FALSE(ended());
  Pass(kLimit / 4);
  ExpectSilentSoon(*link);
}

}  // namespace
}  // namespace ringfill
