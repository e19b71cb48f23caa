// Captured graphs: order, replay, and what must not be captured.
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/self_test/device_array.h"
#include "tests/cuda_emulation/self_test/samples.h"

namespace ringfill::emulation_test {
namespace {

using cuda_emulation::DefaultOptions;
using cuda_emulation::Options;
using cuda_emulation::Reset;
using cuda_emulation::SetQuiet;

constexpr int kCount = 256;
constexpr int kSeeds = 30;

class Graphs : public testing::Test {
 protected:
  void SetUp() override { Start(1); }
  void TearDown() override { Reset(DefaultOptions()); }
  void Start(uint64_t seed) {
    Options options;
    options.devices = 1;
    options.device_bytes = 64 << 20;
    options.seed = seed;
    Reset(options);
    RF_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
    RF_CHECK(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking) == cudaSuccess);
    RF_CHECK(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming) == cudaSuccess);
    RF_CHECK(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming) == cudaSuccess);
  }
  void Begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
  }

  cudaStream_t stream_ = nullptr, side_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
};

TEST_F(Graphs, ForkAndJoinReplayed) {
  int unjoined_order_shown = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Start(seed);
    const DeviceArray<float> a(std::vector<float>(kCount, 1.0f));
    const DeviceArray<float> b(std::vector<float>(kCount, 1.0f));
    Begin();
    ASSERT_EQ(RunScale(a.data(), kCount, 2, 0, stream_), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(fork_, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(side_, fork_), cudaSuccess);
    ASSERT_EQ(RunScale(b.data(), kCount, 3, 0, side_), cudaSuccess);
    ASSERT_EQ(RunScale(a.data(), kCount, 1, 1, stream_), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(join_, side_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(stream_, join_), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(a.data(), b.data(), 4, cudaMemcpyDeviceToDevice, stream_),
              cudaSuccess);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(a.Read()[1], 1.0f) << "capturing runs nothing";
    for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    // A second, unordered user of b: its place among the nodes is random.
    ASSERT_EQ(RunScale(b.data(), kCount, 1, 100, side_), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(a.Read()[1], ((1 * 2 + 1) * 2 + 1) * 2 + 1);
    EXPECT_EQ(a.Read()[0], b.Read()[0] == 127.0f ? 27.0f : a.Read()[0]);
    unjoined_order_shown += b.Read()[0] != 127.0f ? 1 : 0;
    ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  }
  EXPECT_GT(unjoined_order_shown, 0);
}

TEST_F(Graphs, ArgumentsAreThoseOfTheCapture) {
  const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
  float factor = 2;
  Begin();
  ASSERT_EQ(RunScale(data.data(), kCount, factor, 0, stream_), cudaSuccess);
  factor = 100;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(data.Read()[0], 2.0f);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(Graphs, ADeviceMayDieBetweenNodes) {
  const DeviceArray<float> a(std::vector<float>(kCount, 0.0f));
  Begin();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(RunScale(a.data(), kCount, 1, 2, stream_), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cuda_emulation::KillDeviceAfter(0, 5);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cuda_emulation::GetCounters().kernels, 3u);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchFailure);
  EXPECT_EQ(cuda_emulation::GetCounters().kernels, 5u);
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(Graphs, UnjoinedWorkIsRefused) {
  const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
  Begin();
  ASSERT_EQ(cudaEventRecord(fork_, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(side_, fork_), cudaSuccess);
  ASSERT_EQ(RunScale(data.data(), kCount, 2, 0, side_), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(side_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorIllegalState);
}

TEST_F(Graphs, WhatMayNotBeCaptured) {
  const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
  cudaGraph_t graph = nullptr;
  void* p = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
            cudaErrorStreamCaptureUnsupported);

  Begin();
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  ASSERT_EQ(cudaStreamIsCapturing(stream_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);

  Begin();
  EXPECT_EQ(cudaMalloc(&p, 16), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);

  Begin(cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(cudaMalloc(&p, 16), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);

  // An event from outside.
  ASSERT_EQ(cudaEventRecord(fork_, side_), cudaSuccess);
  Begin();
  EXPECT_EQ(cudaStreamWaitEvent(stream_, fork_), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);

  // The default stream, which waits for blocking ones.
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(RunScale(data.data(), kCount, 2, 0, nullptr), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

}  // namespace
}  // namespace ringfill::emulation_test
