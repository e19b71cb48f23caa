// The test stream itself: that it is late, and that nobody can be stuck on it.
#include <atomic>
#include <thread>

#include "gtest/gtest.h"
#include "tests/testing/late_device.h"

namespace ringfill {
namespace {

Instant InTwoMinutes() { return Clock::Real().Now() + std::chrono::minutes(2); }

// A reader that does not wait nearly always sees the old value, even after many yields.
TEST(LateStreamTest, AReaderThatDoesNotWaitSeesOldData) {
  int old = 0, rounds = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto stream = MakeLateStream(seed, Clock::Real(), nullptr);
    for (int i = 0; i < 10; ++i, ++rounds) {
      std::atomic<int> value{0};
      stream->Enqueue({}, [&] {
        value = 1;
        return absl::OkStatus();
      });
      for (int y = 0; y < 100; ++y) std::this_thread::yield();
      old += value == 0 ? 1 : 0;
      ASSERT_TRUE(stream->Synchronize(InTwoMinutes()).ok());
      ASSERT_EQ(value, 1);
    }
  }
  EXPECT_GT(old, rounds / 2);
  EXPECT_LT(old, rounds);  // some run by themselves
}

TEST(LateStreamTest, ALoopOfLooksComesToAnEnd) {
  const auto stream = MakeLateStream(1, Clock::Real(), nullptr);
  stream->Enqueue({}, [] { return absl::OkStatus(); });
  const EventPtr event = stream->Record();
  while (!event->done()) std::this_thread::yield();
  EXPECT_TRUE(event->Await(InTwoMinutes()).ok());
}

// Two streams that wait for each other in turn, driven by waiting for one alone.
TEST(LateStreamTest, StreamsDriveEachOther) {
  const HostStreamFactory make = LateStreams(3);
  const auto a = make(Clock::Real(), nullptr), b = make(Clock::Real(), nullptr);
  int value = 0;
  const auto step = [&](HostStream& stream, int expected) {
    stream.Enqueue({}, [&value, expected] {
      return value++ == expected ? absl::OkStatus() : absl::InternalError("out of turn");
    });
  };
  for (int i = 0; i < 50; ++i) {
    step(*a, 2 * i);
    b->WaitFor(a->Record(), InTwoMinutes());
    step(*b, 2 * i + 1);
    a->WaitFor(b->Record(), InTwoMinutes());
  }
  EXPECT_TRUE(a->Synchronize(InTwoMinutes()).ok());
  EXPECT_EQ(value, 100);
}

TEST(LateStreamTest, EndingDropsTheQueueAndCompletesItsEvents) {
  bool ran = false;
  EventPtr behind;
  {
    const auto stream = MakeLateStream(2, Clock::Real(), nullptr);
    const auto never = std::make_shared<HostEvent>();
    never->Complete(absl::AbortedError("no"));
    stream->WaitFor(never, InTwoMinutes());
    stream->Enqueue({}, [&] {
      ran = true;
      return absl::OkStatus();
    });
    behind = stream->Record();
  }
  EXPECT_FALSE(behind->Await(InTwoMinutes()).ok());
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace ringfill
