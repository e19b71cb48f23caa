#include "engine/request/outbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <variant>

namespace ringfill {
namespace {

RequestEvent Token(TokenId id) {
  TokenEvent event;
  event.id = id;
  return event;
}

RequestEvent Progress(int64_t processed) {
  ProgressEvent event;
  event.processed_tokens = processed;
  return event;
}

// A one-shot gate between two threads.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.SignalAll();
  }
  void Await() {
    MutexLock lock(&mutex_);
    while (!open_) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(OutboxTest, EventsComeOutInOrder) {
  Outbox outbox(2, nullptr);
  outbox.Push(AcceptedEvent{});
  outbox.Push(Progress(1));
  outbox.Push(Token(10));
  outbox.Push(Token(11));
  outbox.Push(DoneEvent{});
  EXPECT_TRUE(std::holds_alternative<AcceptedEvent>(*outbox.TryPop()));
  EXPECT_TRUE(std::holds_alternative<ProgressEvent>(*outbox.TryPop()));
  EXPECT_EQ(std::get<TokenEvent>(*outbox.TryPop()).id, 10);
  EXPECT_EQ(std::get<TokenEvent>(*outbox.TryPop()).id, 11);
  EXPECT_TRUE(std::holds_alternative<DoneEvent>(*outbox.TryPop()));
  EXPECT_FALSE(outbox.TryPop().has_value());
}

TEST(OutboxTest, FullCountsTokensOnly) {
  Outbox outbox(2, nullptr);
  outbox.Push(AcceptedEvent{});
  outbox.Push(Progress(1));
  outbox.Push(Token(1));
  EXPECT_FALSE(outbox.full());
  outbox.Push(Token(2));
  EXPECT_TRUE(outbox.full());
  outbox.Push(FailedEvent{absl::CancelledError("taken though it is full")});
  outbox.TryPop();
  outbox.TryPop();
  EXPECT_TRUE(outbox.full());
  outbox.TryPop();
  EXPECT_FALSE(outbox.full());
}

TEST(OutboxDeathTest, TokenIntoAFullOutboxIsOurBug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Outbox outbox(1, nullptr);
  outbox.Push(Token(1));
  EXPECT_DEATH(outbox.Push(Token(2)), "check failed");
}

TEST(OutboxTest, WaitingProgressIsReplacedByTheNewer) {
  Outbox outbox(4, nullptr);
  outbox.Push(AcceptedEvent{});
  for (int i = 1; i <= 1000; ++i) outbox.Push(Progress(i));
  EXPECT_TRUE(std::holds_alternative<AcceptedEvent>(*outbox.TryPop()));
  EXPECT_EQ(std::get<ProgressEvent>(*outbox.TryPop()).processed_tokens, 1000);
  EXPECT_FALSE(outbox.TryPop().has_value());
  outbox.Push(Progress(1001));
  EXPECT_EQ(std::get<ProgressEvent>(*outbox.TryPop()).processed_tokens, 1001);
}

TEST(OutboxTest, CallsBackOnceForEachTimeTheConsumerFoundItEmpty) {
  int calls = 0;
  Outbox outbox(10, [&] { ++calls; });
  outbox.Push(AcceptedEvent{});  // a consumer that never looked waits, too
  EXPECT_EQ(calls, 1);
  outbox.Push(Token(1));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(outbox.TryPop().has_value());
  EXPECT_TRUE(outbox.TryPop().has_value());
  outbox.Push(Token(2));  // emptied, but not found empty
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(outbox.TryPop().has_value());
  EXPECT_FALSE(outbox.TryPop().has_value());
  EXPECT_FALSE(outbox.TryPop().has_value());
  outbox.Push(Token(3));
  EXPECT_EQ(calls, 2);
  outbox.Push(DoneEvent{});
  EXPECT_EQ(calls, 2);
}

TEST(OutboxTest, CallbackMayPop) {
  std::optional<RequestEvent> popped;
  std::unique_ptr<Outbox> outbox;
  outbox = std::make_unique<Outbox>(1, [&] { popped = outbox->TryPop(); });
  outbox->Push(Token(5));
  ASSERT_TRUE(popped.has_value());
  EXPECT_EQ(std::get<TokenEvent>(*popped).id, 5);
}

TEST(OutboxTest, ClosedDropsEverythingAndStaysSilent) {
  int calls = 0;
  Outbox outbox(1, [&] { ++calls; });
  outbox.Push(Token(1));
  EXPECT_TRUE(outbox.full());
  EXPECT_FALSE(outbox.closed());
  outbox.Close();
  EXPECT_TRUE(outbox.closed());
  EXPECT_FALSE(outbox.full());
  EXPECT_FALSE(outbox.TryPop().has_value());
  for (int i = 0; i < 10; ++i) outbox.Push(Token(i));
  outbox.Push(DoneEvent{});
  outbox.Close();
  EXPECT_FALSE(outbox.TryPop().has_value());
  EXPECT_EQ(calls, 1);
}

TEST(OutboxTest, CloseFromTheCallbackReturns) {
  std::unique_ptr<Outbox> outbox;
  int calls = 0;
  outbox = std::make_unique<Outbox>(1, [&] {
    ++calls;
    outbox->Close();
  });
  outbox->Push(Token(1));
  EXPECT_TRUE(outbox->closed());
  outbox->Push(Token(2));
  EXPECT_EQ(calls, 1);
}

TEST(OutboxTest, CloseWaitsForACallbackOnAnotherThread) {
  Gate entered, may_return;
  std::atomic<bool> returned{false};
  Outbox outbox(1, [&] {
    entered.Open();
    may_return.Await();
    returned = true;
  });
  std::thread producer([&] { outbox.Push(Token(1)); });
  entered.Await();
  std::thread closer([&] {
    outbox.Close();
    EXPECT_TRUE(returned) << "Close returned while the callback ran";
  });
  while (!outbox.closed()) std::this_thread::yield();
  may_return.Open();
  closer.join();
  producer.join();
}

// A producer against a consumer that pops when called: everything arrives, in order, and no wake-up
// is lost. The callback touches plain memory that is destroyed after Close.
TEST(OutboxTest, ProducerAndConsumerThreads) {
  constexpr TokenId kTokens = 20000;
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  Outbox outbox(8, [&] {
    MutexLock lock(&mutex);
    ready = true;
    changed.Signal();
  });
  std::thread producer([&] {
    outbox.Push(AcceptedEvent{});
    for (int i = 0; i < 100; ++i) outbox.Push(Progress(i));
    for (TokenId id = 0; id < kTokens; ++id) {
      while (outbox.full()) std::this_thread::yield();
      outbox.Push(Token(id));
    }
    outbox.Push(DoneEvent{});
  });
  TokenId next = 0;
  int64_t progress = -1;
  for (bool done = false; !done;) {
    while (std::optional<RequestEvent> event = outbox.TryPop()) {
      if (const auto* token = std::get_if<TokenEvent>(&*event)) {
        ASSERT_EQ(token->id, next++);
      } else if (const auto* p = std::get_if<ProgressEvent>(&*event)) {
        ASSERT_GT(p->processed_tokens, progress);
        progress = p->processed_tokens;
      }
      done = std::holds_alternative<DoneEvent>(*event);
    }
    if (done) break;
    MutexLock lock(&mutex);
    while (!ready) changed.Wait(&mutex);
    ready = false;
  }
  producer.join();
  EXPECT_EQ(next, kTokens);
  EXPECT_EQ(progress, 99);
}

// Nothing runs, and nothing comes, after Close, at whatever moment of the producer's it came.
TEST(OutboxTest, CloseAtAnyMoment) {
  int interrupted = 0;  // callbacks that ran when Close was called
  for (int round = 0; round < 300; ++round) {
    std::atomic<bool> entered{false}, running{false}, closed{false};
    std::atomic<int> late{0};
    Outbox outbox(4, [&] {
      running = entered = true;
      for (int i = 0; i < 20; ++i) std::this_thread::yield();
      late += closed;
      running = false;
    });
    std::thread producer([&] {
      for (TokenId id = 0; id < 50; ++id) {
        while (outbox.full()) std::this_thread::yield();
        outbox.Push(Token(id));
      }
    });
    TokenId next = 0;
    for (int i = 0; i < round % 40; ++i) {
      const std::optional<RequestEvent> event = outbox.TryPop();
      if (!event.has_value()) continue;
      EXPECT_EQ(std::get<TokenEvent>(*event).id, next++);
    }
    // Every third time after the first callback has begun: the first token makes one.
    while (round % 3 == 0 && !entered) std::this_thread::yield();
    interrupted += running;
    outbox.Close();
    EXPECT_FALSE(running);
    closed = true;
    producer.join();
    EXPECT_EQ(late, 0);
    EXPECT_FALSE(outbox.TryPop().has_value());
  }
  EXPECT_GT(interrupted, 0);
}

}  // namespace
}  // namespace ringfill
