#include "engine/stream/event.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

Instant InTwoMinutes() { return Clock::Real().Now() + std::chrono::minutes(2); }

TEST(HostEventTest, AwaitGivesTheStatusOfTheWork) {
  HostEvent good, bad;
  EXPECT_FALSE(good.done());
  good.Complete(absl::OkStatus());
  EXPECT_TRUE(good.done());
  EXPECT_TRUE(good.Await(InTwoMinutes()).ok());
  bad.Complete(absl::DataLossError("stale"));
  EXPECT_EQ(bad.Await(InTwoMinutes()), absl::DataLossError("stale"));
}

TEST(HostEventTest, AwaitEndsAtItsDeadline) {
  HostEvent event;
  EXPECT_EQ(event.Await(Clock::Real().Now() - std::chrono::seconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(event.Await(Clock::Real().Now() + std::chrono::milliseconds(5)).code(),
            absl::StatusCode::kDeadlineExceeded);
  // A wait that gave up does not complete it.
  EXPECT_FALSE(event.done());
  // What is done counts, whatever the deadline.
  event.Complete(absl::OkStatus());
  EXPECT_TRUE(event.Await(Clock::Real().Now() - std::chrono::seconds(1)).ok());
}

TEST(HostEventTest, CompletingWakesEveryWaiter) {
  for (int round = 0; round < 50; ++round) {
    HostEvent event;
    int written = 0;  // plain: the event orders it, which the thread sanitizer checks
    std::vector<std::thread> waiters;
    for (int t = 0; t < 3; ++t) {
      waiters.emplace_back([&] {
        EXPECT_TRUE(event.Await(InTwoMinutes()).ok());
        EXPECT_EQ(written, 1);
      });
    }
    written = 1;
    event.Complete(absl::OkStatus());
    for (std::thread& waiter : waiters) waiter.join();
  }
}

}  // namespace
}  // namespace ringfill
