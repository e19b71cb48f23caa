#include "base/clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/mutex.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;

TEST(ClockTest, RealTimeNeverRunsBackwards) {
  const Clock& clock = Clock::Real();
  Instant last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const Instant now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_EQ(&clock, &Clock::Real());
}

TEST(ClockTest, Units) {
  EXPECT_DOUBLE_EQ(Seconds(milliseconds(1500)), 1.5);
  EXPECT_DOUBLE_EQ(Milliseconds(std::chrono::microseconds(250)), 0.25);
  EXPECT_DOUBLE_EQ(Seconds(-milliseconds(20)), -0.02);
}

TEST(MutexTest, ExcludesOtherThreads) {
  Mutex mutex;
  int64_t count = 0;
  const auto add = [&] {
    for (int i = 0; i < 20000; ++i) {
      MutexLock lock(&mutex);
      ++count;
    }
  };
  std::thread other(add);
  add();
  other.join();
  EXPECT_EQ(count, 40000);
}

TEST(CondVarTest, SignalEndsAWaitAndTheLockIsHeldAfter) {
  Mutex mutex;
  CondVar changed;
  int turn = 0;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      MutexLock lock(&mutex);
      while (turn % 2 == 0) changed.Wait(&mutex);
      ++turn;
      changed.SignalAll();
    }
  });
  for (int i = 0; i < 1000; ++i) {
    MutexLock lock(&mutex);
    while (turn % 2 == 1) changed.Wait(&mutex);
    ++turn;
    changed.Signal();
  }
  other.join();
  EXPECT_EQ(turn, 2000);
}

TEST(CondVarTest, WaitUntilEndsByItself) {
  Mutex mutex;
  CondVar changed;
  const Instant until = Clock::Real().Now() + milliseconds(5);
  MutexLock lock(&mutex);
  while (changed.WaitUntil(&mutex, until)) {
  }
  EXPECT_GE(Clock::Real().Now(), until);
  EXPECT_FALSE(changed.WaitUntil(&mutex, Instant()));
}

}  // namespace
}  // namespace ringfill
