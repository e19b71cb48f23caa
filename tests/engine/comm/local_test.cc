// The `local` transport alone: deadlines on a clock of its own.
#include "engine/comm/local.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/testing/local_ring.h"

namespace ringfill {
namespace {

// A clock that stands until told otherwise.
class ManualClock final : public Clock {
 public:
  Instant Now() const override {
    ++looks_;
    return Instant(Duration(ticks_.load()));
  }
  void Advance(Duration d) { ticks_ += d.count(); }
  int looks() const { return looks_; }

 private:
  std::atomic<Duration::rep> ticks_{0};
  mutable std::atomic<int> looks_{0};
};

TEST(LocalTest, DeadlinesFollowTheGroupsClock) {
  ManualClock clock;
  const auto make = [&](int ranks) { return MakeLocalGroup(ranks, clock); };
  const auto statuses = LocalRing::SpawnOver(make, 2, [&](Communicator& comm) -> absl::Status {
    if (comm.rank() == 0) {
      while (clock.looks() < 2) std::this_thread::yield();  // until the other one waits
      clock.Advance(std::chrono::hours(2));
      return absl::OkStatus();
    }
    return comm.Barrier(Instant(std::chrono::hours(1)));
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded) << statuses[1];
}

TEST(LocalTest, DeadlinesEndThoughTheGroupsClockStandsStill) {
  ManualClock clock;
  const auto make = [&](int ranks) { return MakeLocalGroup(ranks, clock); };
  const auto statuses = LocalRing::SpawnOver(make, 2, [&](Communicator& comm) -> absl::Status {
    if (comm.rank() == 0) return absl::OkStatus();
    return comm.Barrier(Instant(std::chrono::milliseconds(10)));
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded) << statuses[1];
}

}  // namespace
}  // namespace ringfill
