// The `local` transport alone: deadlines on a clock of its own.
#include "engine/comm/local.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "base/aligned_buffer.h"
#include "engine/stream/event.h"
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

// Buffers are given back right after an abort, while peers may be copying from them: they must not
// be (a read of memory that is gone ends the process).
TEST(LocalTest, LargePartsStayUntilTheirReadersAreDone) {
  constexpr size_t kBytes = 32 << 20;
  int cancelled = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto pause = std::chrono::microseconds(attempt * 700);
    const auto statuses =
        LocalRing::SpawnOver([](int ranks) { return MakeLocalGroup(ranks); }, 3,
                             [&](Communicator& comm) {
                               AlignedBuffer send(kBytes), recv(3 * kBytes);
                               std::fill_n(send.data(), kBytes, std::byte(comm.rank() + 1));
                               Communicator::AllGatherArgs args;
                               args.send = send.span();
                               args.recv = recv.span();
                               args.deadline = Clock::Real().Now() + std::chrono::seconds(60);
                               const auto check = [&](absl::Status status) {
                                 for (size_t r = 0; status.ok() && r < 3; ++r) {
                                   for (const size_t at : {r * kBytes, (r + 1) * kBytes - 1}) {
                                     if (recv.data()[at] != std::byte(r + 1)) {
                                       return absl::DataLossError("a part is another's");
                                     }
                                   }
                                 }
                                 return status;
                               };
                               if (comm.rank() != 0) {
                                 return check(comm.StartAllGather(args)->Await(Instant::max()));
                               }
                               const auto held = std::make_shared<HostEvent>();
                               args.after = {held};
                               const TransferPtr transfer = comm.StartAllGather(args);
                               held->Complete(absl::OkStatus());
                               const Instant until = Clock::Real().Now() + pause;
                               while (Clock::Real().Now() < until) std::this_thread::yield();
                               comm.Abort(absl::CancelledError("enough"));
                               return check(transfer->Await(Instant::max()));
                             });
    // All of it came, or the abort did.
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(status.ok() || status == absl::CancelledError("enough")) << status;
      cancelled += absl::IsCancelled(status);
    }
  }
  EXPECT_GT(cancelled, 0);
}

}  // namespace
}  // namespace ringfill
