// How a mesh watches its links, in time that the test makes, and sees them break.
#include "engine/comm/tcp/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "tests/engine/comm/tcp/link_ends.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

class HandClock final : public Clock {
 public:
  Instant Now() const override { return now_; }
  void Advance(Duration by) { now_ += by; }

 private:
  Instant now_ = Instant() + std::chrono::hours(1);
};

// Rank 0 of two; the other end says nothing by itself.
class MeshWatchTest : public testing::Test {
 protected:
  void MakeMesh() {
    std::vector<std::unique_ptr<Link>> links(2);
    socket_ = ends_.a->fd();
    links[1] = std::move(ends_.a);
    mesh_ = std::make_unique<Mesh>(0, std::move(links), waker_, trace_,
                                   LinkWatch{.silence_limit = seconds(1),
                                             .begins = begins_,
                                             .on_dead = [this](int peer) { dead_.push_back(peer); },
                                             .clock = &clock_});
  }
  // Looks as often as the mesh wants to.
  void TendFor(Duration time) {
    for (Duration at{}; at < time; at += kBeatPeriod) {
      clock_.Advance(kBeatPeriod);
      mesh_->Tend();
    }
  }

  bool PeerBeats() {
    ends_.b->Announce(FrameType::kBeat, 0, 0);
    if (!ends_.b->Write().ok()) return false;
    pollfd polled = {socket_, POLLIN, 0};
    return PollUntil(std::span(&polled, 1), Clock::Real().Now() + seconds(60));
  }

  LinkEnds ends_;
  int socket_ = -1;  // of the mesh's link
  HandClock clock_;
  Instant begins_ = clock_.Now();
  Waker waker_;
  const std::atomic<TraceBuffer*> trace_{nullptr};
  std::vector<int> dead_;
  std::unique_ptr<Mesh> mesh_;
};

TEST_F(MeshWatchTest, APeerThatSaysNothingIsDeadAfterTheLimit) {
  MakeMesh();
  TendFor(seconds(1));
  EXPECT_THAT(dead_, IsEmpty());
  TendFor(kBeatPeriod);
  EXPECT_THAT(dead_, ElementsAre(1));
  EXPECT_TRUE(absl::IsUnavailable(mesh_->abort_status())) << mesh_->abort_status();
}

// It may take long to begin with, and no longer than others afterwards.
TEST_F(MeshWatchTest, APeerThatBeganIsWatched) {
  begins_ = clock_.Now() + seconds(60);
  MakeMesh();
  TendFor(seconds(30));
  EXPECT_THAT(dead_, IsEmpty());
  ASSERT_TRUE(PeerBeats());
  TendFor(seconds(1));
  EXPECT_THAT(dead_, IsEmpty());
  TendFor(milliseconds(500));
  EXPECT_THAT(dead_, ElementsAre(1));
}

// All ranks of a laptop that sleeps, or of a virtual machine that is stopped: when they go on each
// would find all the others dead.
TEST_F(MeshWatchTest, TimeInWhichThisProcessStoodStillDoesNotCount) {
  MakeMesh();
  TendFor(milliseconds(500));
  clock_.Advance(seconds(100));
  mesh_->Tend();
  EXPECT_THAT(dead_, IsEmpty());
  EXPECT_TRUE(mesh_->abort_status().ok()) << mesh_->abort_status();
  // The rest of the limit, not a new one.
  TendFor(milliseconds(250));
  EXPECT_THAT(dead_, IsEmpty());
  TendFor(milliseconds(500));
  EXPECT_THAT(dead_, ElementsAre(1));
}

TEST_F(MeshWatchTest, BytesAreHeard) {
  MakeMesh();
  TendFor(seconds(1));
  ASSERT_TRUE(PeerBeats());
  TendFor(seconds(1));
  EXPECT_THAT(dead_, IsEmpty());
  TendFor(milliseconds(500));
  EXPECT_THAT(dead_, ElementsAre(1));
}

// Reset, not closed: there is no end of the stream to be read. Until its deadline the transfer
// would wait for a link that is no longer looked at.
TEST(MeshTest, ALinkThatBreaksWhileItLooksOutForInputEndsTheTransfer) {
  LinkEnds ends;
  std::vector<std::unique_ptr<Link>> links(2);
  links[1] = std::move(ends.a);
  Waker waker;
  const std::atomic<TraceBuffer*> trace{nullptr};
  Mesh mesh(0, std::move(links), waker, trace, {});
  std::vector<std::byte> part(8), whole(16);
  Communicator::AllGatherArgs args;
  args.send = part;
  args.recv = whole;
  args.deadline = Clock::Real().Now() + std::chrono::minutes(10);
  const auto transfer = std::make_shared<HostTransfer>();
  mesh.Add(std::move(args), transfer);
  std::thread peer([&] {
    pollfd polled = {ends.b->fd(), POLLIN, 0};
    EXPECT_TRUE(PollUntil(std::span(&polled, 1), Clock::Real().Now() + seconds(60)));
    const linger reset = {.l_onoff = 1, .l_linger = 0};
    EXPECT_EQ(setsockopt(ends.b->fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    ends.b.reset();
  });
  while (!transfer->done()) mesh.Turn(seconds(1));
  peer.join();
  EXPECT_TRUE(absl::IsUnavailable(mesh.abort_status())) << mesh.abort_status();
}

}  // namespace
}  // namespace ringfill
