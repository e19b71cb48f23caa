// The emulated NCCL itself: what it reports, and how it keeps to stream order.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <array>
#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/nccl/nccl_emulation.h"

namespace ringfill::cuda_emulation {
namespace {

using testing::HasSubstr;

constexpr size_t kBytes = 64;

// Two ranks, driven by one thread.
class EmulatedNcclTest : public testing::Test {
 protected:
  void SetUp() override { Begin(1); }
  void TearDown() override { End(); }

  void Begin(uint64_t seed) {
    Options options;
    options.devices = 2;
    options.seed = seed;
    Reset(options);
    ResetNccl();
    SetQuiet(true);
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < 2; ++r) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream_[r], cudaStreamNonBlocking), cudaSuccess);
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&send_[r]), kBytes), cudaSuccess);
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&recv_[r]), 2 * kBytes), cudaSuccess);
      ASSERT_EQ(cudaMemset(send_[r], 10 + r, kBytes), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(ncclCommInitRankConfig(&comm_[r], 2, id, r, &config), ncclInProgress);
    }
    Settle(0);
    Settle(1);
  }
  void End() {
    for (ncclComm_t& comm : comm_) {
      if (comm != nullptr) (void)ncclCommAbort(comm);
      comm = nullptr;
    }
    for (int r = 0; r < 2; ++r) (void)cudaStreamSynchronize(stream_[r]);
    SetQuiet(false);
  }
  // Until the communicator's last call has come to its end.
  void Settle(int r) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
      ASSERT_EQ(ncclCommGetAsyncError(comm_[r], &state), ncclSuccess);
    }
    ASSERT_EQ(state, ncclSuccess);
  }
  void Send(int r, size_t bytes) {
    (void)ncclSend(send_[r], bytes, ncclUint8, 1 - r, comm_[r], stream_[r]);
  }
  void Recv(int r, size_t bytes) {
    (void)ncclRecv(recv_[r], bytes, ncclUint8, 1 - r, comm_[r], stream_[r]);
  }
  void Group(int r, const std::function<void()>& calls) {
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    calls();
    (void)ncclGroupEnd();
    Settle(r);
  }
  // Runs what can run.
  void Run() {
    for (int i = 0; i < 200; ++i) {
      (void)cudaStreamQuery(stream_[0]);
      (void)cudaStreamQuery(stream_[1]);
    }
  }
  bool Idle(int r) { return cudaStreamQuery(stream_[r]) == cudaSuccess; }
  unsigned char First(const unsigned char* p, int r) {
    unsigned char value = 0;
    EXPECT_EQ(cudaSetDevice(r), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(&value, p, 1, cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  }

  std::array<ncclComm_t, 2> comm_{};
  std::array<cudaStream_t, 2> stream_{};
  std::array<unsigned char*, 2> send_{}, recv_{};
};

TEST_F(EmulatedNcclTest, GroupedExchangeDelivers) {
  for (int r = 0; r < 2; ++r) {
    Group(r, [&] {
      Send(r, kBytes);
      Recv(r, kBytes);
    });
  }
  Run();
  EXPECT_TRUE(Idle(0) && Idle(1));
  EXPECT_EQ(First(recv_[0], 0), 11);
  EXPECT_EQ(First(recv_[1], 1), 10);
  EXPECT_EQ(LastReport(), "");
}

TEST_F(EmulatedNcclTest, AllGatherDelivers) {
  for (int r = 0; r < 2; ++r) {
    (void)ncclAllGather(send_[r], recv_[r], kBytes, ncclUint8, comm_[r], stream_[r]);
    Settle(r);
  }
  Run();
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(First(recv_[r], r), 10);
    EXPECT_EQ(First(recv_[r] + kBytes, r), 11);
  }
}

TEST_F(EmulatedNcclTest, UnequalSizesHangAndAreReported) {
  Send(0, 32);
  Settle(0);
  Recv(1, 48);
  Settle(1);
  Run();
  EXPECT_FALSE(Idle(0) || Idle(1));
  EXPECT_THAT(LastReport(),
              HasSubstr("send of 32 elements of type 1 meets rank 1's receive of 48"));
}

TEST_F(EmulatedNcclTest, UngroupedExchangeWaitsInACircle) {
  for (int r = 0; r < 2; ++r) {
    Send(r, kBytes);
    Settle(r);
    Recv(r, kBytes);
    Settle(r);
  }
  Run();
  EXPECT_FALSE(Idle(0) || Idle(1));
  EXPECT_THAT(LastReport(), HasSubstr("ranks wait in a circle"));
}

TEST_F(EmulatedNcclTest, OrderOfCollectivesAndSendsThatDiffersWaitsInACircle) {
  (void)ncclAllGather(send_[0], recv_[0], kBytes, ncclUint8, comm_[0], stream_[0]);
  Settle(0);
  Send(1, kBytes);
  Settle(1);
  Run();
  EXPECT_THAT(LastReport(), HasSubstr("ranks wait in a circle"));
}

TEST_F(EmulatedNcclTest, AbortEndsWhatWaitsHereAloneAndTheHandleIsGone) {
  for (int r = 0; r < 2; ++r) {
    Recv(r, kBytes);
    Settle(r);
  }
  Run();
  EXPECT_EQ(ncclCommAbort(comm_[0]), ncclSuccess);
  Run();
  EXPECT_TRUE(Idle(0));
  EXPECT_FALSE(Idle(1));
  ncclResult_t state;
  EXPECT_EQ(ncclCommGetAsyncError(comm_[0], &state), ncclInvalidArgument);
  EXPECT_THAT(LastReport(), HasSubstr("never made or is gone"));
  comm_[0] = nullptr;
}

TEST_F(EmulatedNcclTest, BufferBeyondItsAllocationIsReported) {
  Recv(0, 3 * kBytes);
  Settle(0);
  Run();
  EXPECT_THAT(LastReport(), HasSubstr("past the end of"));
}

// Rank 1 receives into memory of its device's pool.
TEST_F(EmulatedNcclTest, PoolThatAPeerHasNoAccessToIsReported) {
  for (const bool separate : {true, false}) {
    End();
    Begin(1);
    if (separate) SeparateNcclRanks();
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    ASSERT_EQ(cudaMallocAsync(reinterpret_cast<void**>(&recv_[1]), kBytes, stream_[1]),
              cudaSuccess);
    Send(0, kBytes);
    Settle(0);
    Recv(1, kBytes);
    Settle(1);
    Run();
    EXPECT_EQ(Idle(1), separate);
    if (separate) {
      EXPECT_EQ(LastReport(), "");
    } else {
      EXPECT_THAT(LastReport(), HasSubstr("to which device 0 has no access"));
    }
  }
}

TEST_F(EmulatedNcclTest, StreamOfAnotherDeviceIsRefused) {
  EXPECT_EQ(ncclSend(send_[0], 1, ncclUint8, 1, comm_[0], stream_[1]), ncclInvalidUsage);
}

// An event recorded before the communicator says that the call is through may come before the
// launch: over some seeds it does.
TEST_F(EmulatedNcclTest, LaunchMayReachItsStreamLate) {
  std::set<bool> in_progress;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    End();
    Begin(seed);
    const ncclResult_t result = ncclRecv(recv_[0], kBytes, ncclUint8, 1, comm_[0], stream_[0]);
    in_progress.insert(result == ncclInProgress);
    EXPECT_EQ(Idle(0), result == ncclInProgress);
  }
  EXPECT_EQ(in_progress.size(), 2u);
}

// Until its end, a receive buffer holds junk; the sender's bytes are read no earlier than both are
// there, so a sender that writes too early is seen.
TEST_F(EmulatedNcclTest, BytesMoveBetweenStartAndEnd) {
  std::set<int> seen;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    End();
    Begin(seed);
    Send(0, kBytes);
    Settle(0);
    cudaStream_t other;
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(send_[0], 77, kBytes, other), cudaSuccess);
    Recv(1, kBytes);
    Settle(1);
    Run();
    EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    seen.insert(First(recv_[1], 1));
  }
  EXPECT_EQ(seen, (std::set<int>{10, 77}));
}

}  // namespace
}  // namespace ringfill::cuda_emulation
