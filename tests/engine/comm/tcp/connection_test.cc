#include "engine/comm/tcp/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "tests/engine/comm/tcp/sessions.h"
#include "tests/testing/fault_proxy.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Instant In(Duration from_now) { return Clock::Real().Now() + from_now; }
Instant Soon() { return In(seconds(60)); }

Credentials Leader() {
  Credentials credentials = RankCredentials(TestSecret(), 0);
  credentials.own.role = PeerRole::kLeader;
  credentials.peer_role = PeerRole::kWorker;
  return credentials;
}
Credentials Worker() {
  Credentials credentials = RankCredentials(TestSecret(), 3);
  credentials.own.role = PeerRole::kWorker;
  credentials.peer_role = PeerRole::kLeader;
  return credentials;
}

// A leader and a worker, the worker's bytes through a proxy.
struct Pair {
  explicit Pair(const Connection::Options& options = {}, const FaultPlan& plan = {}) {
    std::unique_ptr<Listener> listener = Listener::Bind().value();
    proxy = FaultProxy::Start(listener->address(), plan);
    std::thread accepting([&] {
      leader = std::make_unique<Connection>(listener->Accept(Leader(), Soon()).value(), options);
    });
    worker = Connection::Connect(proxy->address(), Worker(), Soon()).value();
    accepting.join();
  }
  std::unique_ptr<FaultProxy> proxy;
  std::unique_ptr<Connection> leader, worker;
};

Bytes Numbered(size_t bytes, int number) {
  Bytes made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 7 + number);
  return made;
}

TEST(ConnectionTest, MessagesOfAllSizesArriveWholeAndInOrder) {
  Pair pair;
  const size_t sizes[] = {0, 1, 4095, kMaxFramePayload, kMaxFramePayload + 1, 5 << 20, 0, 3};
  std::thread sending([&] {
    for (size_t i = 0; i < std::size(sizes); ++i) {
      ASSERT_TRUE(pair.leader->Send(i, Numbered(sizes[i], i), Soon()).ok());
    }
  });
  for (size_t i = 0; i < std::size(sizes); ++i) {
    const auto message = pair.worker->Receive(Soon());
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(message->type, i);
    EXPECT_EQ(message->payload, Numbered(sizes[i], i));
  }
  sending.join();
}

TEST(ConnectionTest, BothDirectionsAndManySendersAtOnce) {
  Pair pair;
  constexpr int kSenders = 3, kEach = 200;
  std::vector<std::thread> threads;
  for (int sender = 0; sender < kSenders; ++sender) {
    threads.emplace_back([&, sender] {
      for (int i = 0; i < kEach; ++i) {
        ASSERT_TRUE(pair.leader->Send(sender, Numbered(i * 37, sender), Soon()).ok());
        ASSERT_TRUE(pair.worker->Send(sender, Numbered(i * 11, sender), Soon()).ok());
      }
    });
  }
  const auto receive = [&](Connection& connection, int factor) {
    int seen[kSenders] = {};
    for (int i = 0; i < kSenders * kEach; ++i) {
      const auto message = connection.Receive(Soon());
      ASSERT_TRUE(message.ok()) << message.status();
      const int sender = message->type;
      EXPECT_EQ(message->payload, Numbered(seen[sender]++ * factor, sender));
    }
  };
  threads.emplace_back([&] { receive(*pair.worker, 37); });
  receive(*pair.leader, 11);
  for (std::thread& thread : threads) thread.join();
}

TEST(ConnectionTest, ADeadlineOfReceiveLosesNothing) {
  FaultPlan slow;
  slow.fault = Fault::kTrickle;
  slow.delay = std::chrono::microseconds(300);
  Pair pair;
  pair.proxy->Set(slow);
  EXPECT_TRUE(absl::IsDeadlineExceeded(pair.leader->Receive(In(milliseconds(1))).status()));
  ASSERT_TRUE(pair.worker->Send(4, BytesOf("slowly, byte by byte"), Soon()).ok());
  int expired = 0;
  absl::StatusOr<Connection::Message> message;
  do {
    message = pair.leader->Receive(In(milliseconds(2)));
    expired += absl::IsDeadlineExceeded(message.status());
  } while (absl::IsDeadlineExceeded(message.status()));
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->payload, BytesOf("slowly, byte by byte"));
  EXPECT_GT(expired, 2);
}

// Nobody reads: what does not fit the sockets is kept, in order, and nobody waits.
TEST(ConnectionTest, SendSomeNeverWaits) {
  Pair pair;
  FaultPlan plan;
  plan.fault = Fault::kDelay;
  plan.delay = milliseconds(100);
  pair.proxy->Set(plan);
  int whole = 0;
  constexpr int kMessages = 200;
  for (int i = 0; i < kMessages; ++i) {
    const auto sent = pair.worker->SendSome(i, Numbered(100000, i));
    ASSERT_TRUE(sent.ok()) << sent.status();
    whole += *sent;
  }
  EXPECT_LT(whole, kMessages);
  pair.proxy->Set({});
  std::thread flushing([&] { EXPECT_TRUE(pair.worker->Flush(Soon()).ok()); });
  for (int i = 0; i < kMessages; ++i) {
    const auto message = pair.leader->Receive(Soon());
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(message->type, i);
    EXPECT_EQ(message->payload, Numbered(100000, i));
  }
  flushing.join();
}

TEST(ConnectionTest, TooLargeMessagesAreRefusedBeforeRoomIsMade) {
  Connection::Options options;
  options.max_message_bytes = 1000;
  Pair pair(options);
  ASSERT_TRUE(pair.worker->Send(1, Bytes(1000), Soon()).ok());
  ASSERT_TRUE(pair.worker->Send(1, Bytes(1001), Soon()).ok());
  EXPECT_TRUE(pair.leader->Receive(Soon()).ok());
  EXPECT_TRUE(absl::IsDataLoss(pair.leader->Receive(Soon()).status()));
  EXPECT_TRUE(absl::IsDataLoss(pair.leader->Receive(Soon()).status()));
}

TEST(ConnectionTest, APeerThatGoesIsUnavailable) {
  Pair pair;
  ASSERT_TRUE(pair.worker->Send(1, BytesOf("last words"), Soon()).ok());
  pair.worker.reset();
  EXPECT_EQ(pair.leader->Receive(Soon())->payload, BytesOf("last words"));
  EXPECT_TRUE(absl::IsUnavailable(pair.leader->Receive(Soon()).status()));
  absl::Status status;
  while (status.ok()) status = pair.leader->Send(1, Bytes(1000), Soon());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(pair.leader->Send(1, Bytes(), Soon()), status);
}

TEST(ConnectionTest, CloseWakesWhoeverWaits) {
  Pair pair;
  std::atomic<int> waiting{0};
  std::thread receiving([&] {
    ++waiting;
    EXPECT_TRUE(absl::IsUnavailable(pair.leader->Receive(Soon()).status()));
  });
  std::thread sending([&] {
    ++waiting;
    absl::Status status;
    while (status.ok()) status = pair.leader->Send(1, Bytes(1 << 20), Soon());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  });
  while (waiting < 2) std::this_thread::yield();
  pair.leader->Close();
  receiving.join();
  sending.join();
  absl::StatusOr<Connection::Message> message;
  do message = pair.worker->Receive(Soon());
  while (message.ok());
  EXPECT_TRUE(absl::IsUnavailable(message.status())) << message.status();
}

TEST(ConnectionTest, ASenderDoesNotWaitForeverForAPeerThatDoesNotRead) {
  Pair pair;
  FaultPlan plan;
  plan.fault = Fault::kBlackhole;
  pair.proxy->Set(plan);
  absl::Status status;
  for (int i = 0; status.ok() && i < 100; ++i) {
    status = pair.worker->Send(1, Bytes(1 << 20), In(milliseconds(50)));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(pair.worker->Send(1, Bytes(), Soon()), status);
}

TEST(ConnectionTest, FaultsOnTheWireAreFound) {
  for (const Fault fault : {Fault::kFlip, Fault::kReplay, Fault::kDrop, Fault::kCut, Fault::kEnd}) {
    for (const int64_t after : {0, 10, 63, 64, 200, 5000}) {
      Pair pair;
      FaultPlan plan;
      plan.fault = fault;
      plan.after_bytes = after;
      plan.flip_bit = static_cast<int>(after % 8);
      pair.proxy->Set(plan);
      std::thread sending([&] {
        absl::Status status;
        for (int i = 0; status.ok() && i < 100; ++i) {
          status = pair.worker->Send(i, Numbered(100, i), Soon());
        }
      });
      int good = 0;
      absl::StatusOr<Connection::Message> message;
      while ((message = pair.leader->Receive(Soon())).ok()) {
        EXPECT_EQ(message->type, good);
        EXPECT_EQ(message->payload, Numbered(100, good));
        ++good;
      }
      const bool closed = fault == Fault::kCut || fault == Fault::kEnd;
      EXPECT_EQ(message.status().code(),
                closed ? absl::StatusCode::kUnavailable : absl::StatusCode::kDataLoss)
          << message.status() << " fault " << static_cast<int>(fault) << " after " << after;
      EXPECT_LE(good, after / 164);
      pair.leader->Close();
      sending.join();
    }
  }
}

}  // namespace
}  // namespace ringfill
