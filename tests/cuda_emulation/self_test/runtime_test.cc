// Memory, streams, events and graphs: what CUDA promises holds, what it does not promise shows.
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/self_test/device_array.h"
#include "tests/cuda_emulation/self_test/samples.h"

namespace ringfill::emulation_test {
namespace {

using cuda_emulation::DefaultOptions;
using cuda_emulation::GetCounters;
using cuda_emulation::LastReport;
using cuda_emulation::Options;
using cuda_emulation::Reset;
using cuda_emulation::SetQuiet;
using testing::HasSubstr;

constexpr int kSeeds = 50;
constexpr int kCount = 256;
constexpr size_t kBytes = kCount * sizeof(float);

void ResetWith(uint64_t seed, int devices = 2) {
  Options options;
  options.devices = devices;
  options.device_bytes = 64 << 20;
  options.seed = seed;
  Reset(options);
}

class Emulation : public testing::Test {
 protected:
  void SetUp() override {
    SetQuiet(true);
    ResetWith(1);
  }
  void TearDown() override {
    SetQuiet(false);
    Reset(DefaultOptions());
  }
};

// ---- memory

TEST_F(Emulation, NewMemoryIsNan) {
  const DeviceArray<uint32_t> fresh(100);
  for (uint32_t word : fresh.Read()) EXPECT_EQ(word, 0xffffffffu);
}

TEST_F(Emulation, OutOfMemory) {
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 65 << 20), cudaErrorMemoryAllocation);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&p, 40 << 20), cudaSuccess);
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total, size_t{64} << 20);
  EXPECT_EQ(free, size_t{24} << 20);
  void* q = nullptr;
  EXPECT_EQ(cudaMalloc(&q, 30 << 20), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMalloc(&q, 30 << 20), cudaSuccess);
  EXPECT_EQ(cudaFree(q), cudaSuccess);
}

TEST_F(Emulation, HugeAllocationsTakeNoMemory) {
  Options options;
  options.seed = 1;
  options.device_bytes = size_t{40} << 30;
  Reset(options);
  char* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, size_t{30} << 30), cudaSuccess);
  char* far = p + (size_t{29} << 30);
  ASSERT_EQ(cudaMemset(far, 3, 16), cudaSuccess);
  unsigned char bytes[32];
  ASSERT_EQ(cudaMemcpy(bytes, far, sizeof(bytes), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(bytes[15], 3);
  EXPECT_EQ(bytes[16], 0xff);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
}

TEST_F(Emulation, AddressesAreReusedWhenThereAreNoOthers) {
  Options options;
  options.seed = 1;
  options.device_bytes = size_t{40} << 30;
  Reset(options);
  void* small = nullptr;
  ASSERT_EQ(cudaMalloc(&small, 1000), cudaSuccess);
  ASSERT_EQ(cudaMemset(small, 5, 1000), cudaSuccess);
  for (int i = 0; i < 40; ++i) {
    void* p = nullptr;
    ASSERT_EQ(cudaMalloc(&p, size_t{30} << 30), cudaSuccess) << i;
    ASSERT_EQ(cudaMemset(p, 1, 1000), cudaSuccess);
    ASSERT_EQ(cudaFree(p), cudaSuccess);
  }
  unsigned char bytes[1000];
  ASSERT_EQ(cudaMemcpy(bytes, small, sizeof(bytes), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(bytes[999], 5);
  EXPECT_EQ(cudaFree(small), cudaSuccess);
}

TEST_F(Emulation, HostCodeMayNotTouchDeviceMemory) {
  const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
  EXPECT_DEATH(
      {
        volatile float v = data.data()[3];
        (void)v;
      },
      "device memory was touched outside queued work");
  EXPECT_DEATH(data.data()[3] = 1, "device memory was touched outside queued work");
}

TEST_F(Emulation, CopiesAreChecked) {
  std::vector<float> host(kCount + 1, 1.0f);
  const DeviceArray<float> data(kCount);
  EXPECT_EQ(cudaMemcpy(data.data(), host.data(), kBytes + 4, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_THAT(LastReport(), HasSubstr("past the end"));
  EXPECT_EQ(cudaMemcpy(data.data(), host.data(), kBytes, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), host.data(), kBytes, cudaMemcpyDeviceToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(data.data(), 0, kBytes + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host.data(), 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(data.data(), host.data(), kBytes, cudaMemcpyDefault), cudaSuccess);
}

TEST_F(Emulation, StridedCopies) {
  std::vector<int> host(12);
  std::iota(host.begin(), host.end(), 0);
  const DeviceArray<int> data(std::vector<int>(20, -1));
  // Two columns of a [4][3] matrix into a [4][5] one.
  ASSERT_EQ(cudaMemcpy2D(data.data(), 20, host.data(), 12, 8, 4, cudaMemcpyHostToDevice),
            cudaSuccess);
  const std::vector<int> expected = {0, 1, -1, -1, -1, 3, 4,  -1, -1, -1,
                                     6, 7, -1, -1, -1, 9, 10, -1, -1, -1};
  EXPECT_EQ(data.Read(), expected);
  EXPECT_EQ(cudaMemcpy2D(data.data(), 4, host.data(), 12, 8, 4, cudaMemcpyHostToDevice),
            cudaErrorInvalidPitchValue);
}

TEST_F(Emulation, DevicesAreApart) {
  float* other = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&other, kBytes), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const DeviceArray<float> data(std::vector<float>(kCount, 2.0f));
  ASSERT_EQ(cudaMemcpyPeerAsync(other, 1, data.data(), 0, kBytes), cudaSuccess);
  std::vector<float> back(kCount);
  ASSERT_EQ(cudaMemcpy(back.data(), other, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(back, std::vector<float>(kCount, 2.0f));
  EXPECT_EQ(cudaMemcpyPeerAsync(other, 0, data.data(), 0, kBytes), cudaErrorInvalidValue);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
}

TEST_F(Emulation, APoolIsOpenedToDevicesThatReachIt) {
  int can = 0;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 1, 1), cudaSuccess);
  EXPECT_EQ(can, 0);
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  cudaMemAccessDesc access{{cudaMemLocationTypeDevice, 1}, cudaMemAccessFlagsProtReadWrite};
  EXPECT_EQ(cudaMemPoolSetAccess(pool, &access, 1), cudaSuccess);
  access.flags = cudaMemAccessFlagsProtNone;
  EXPECT_EQ(cudaMemPoolSetAccess(pool, &access, 1), cudaSuccess);
  access.location.id = 0;
  EXPECT_EQ(cudaMemPoolSetAccess(pool, &access, 1), cudaErrorInvalidValue) << "its own device";
  access.location.id = 2;
  EXPECT_EQ(cudaMemPoolSetAccess(pool, &access, 1), cudaErrorInvalidValue) << "no such device";
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, 2), cudaErrorInvalidDevice);

  Options options;
  options.devices = 2;
  options.peers = false;
  Reset(options);
  access = {{cudaMemLocationTypeDevice, 1}, cudaMemAccessFlagsProtReadWrite};
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cudaMemPoolSetAccess(pool, &access, 1), cudaErrorPeerAccessUnsupported);
}

TEST_F(Emulation, FreeInStreamOrder) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  float* p = nullptr;
  ASSERT_EQ(cudaMallocAsync(reinterpret_cast<void**>(&p), kBytes, stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(p, 0, kBytes, stream), cudaSuccess);
  ASSERT_EQ(RunScale(p, kCount, 1, 1, stream), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(p, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// ---- streams and events

struct TwoStreams {
  TwoStreams() {
    RF_CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) == cudaSuccess);
    RF_CHECK(cudaStreamCreateWithPriority(&second, cudaStreamNonBlocking, -1) == cudaSuccess);
    RF_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  }
  ~TwoStreams() {
    (void)cudaStreamDestroy(first);
    (void)cudaStreamDestroy(second);
    (void)cudaEventDestroy(event);
  }
  cudaStream_t first, second;
  cudaEvent_t event;
};

// data = (1 * 2 + 0) by the first stream, then * 3 + 1 by the second; true when the order held.
bool Ordered(uint64_t seed, bool with_event) {
  ResetWith(seed);
  const TwoStreams streams;
  const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
  EXPECT_EQ(RunScale(data.data(), kCount, 2, 0, streams.first), cudaSuccess);
  if (with_event) {
    EXPECT_EQ(cudaEventRecord(streams.event, streams.first), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(streams.second, streams.event), cudaSuccess);
  }
  EXPECT_EQ(RunScale(data.data(), kCount, 3, 1, streams.second), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams.second), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams.first), cudaSuccess);
  return data.Read() == std::vector<float>(kCount, 7.0f);
}

TEST_F(Emulation, MissingEventShows) {
  int right = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    EXPECT_TRUE(Ordered(seed, true)) << "seed " << seed;
    right += Ordered(seed, false) ? 1 : 0;
  }
  EXPECT_LT(right, kSeeds * 3 / 4);
  EXPECT_GT(right, 0);
}

TEST_F(Emulation, HostBufferReusedTooEarlyShows) {
  int right = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ResetWith(seed);
    const TwoStreams streams;
    const DeviceArray<float> data(kCount);
    std::vector<float> host(kCount, 1.0f);
    ASSERT_EQ(
        cudaMemcpyAsync(data.data(), host.data(), kBytes, cudaMemcpyHostToDevice, streams.first),
        cudaSuccess);
    host.assign(kCount, 5.0f);
    ASSERT_EQ(cudaStreamSynchronize(streams.first), cudaSuccess);
    right += data.Read()[0] == 1.0f ? 1 : 0;
  }
  EXPECT_EQ(right, 0);
}

TEST_F(Emulation, SameSeedSameOrder) {
  const auto orders = [] {
    std::vector<bool> all;
    for (uint64_t seed = 1; seed <= 10; ++seed) all.push_back(Ordered(seed, false));
    return all;
  };
  EXPECT_EQ(orders(), orders());
}

TEST_F(Emulation, NothingRunsBeforeASynchronisation) {
  const TwoStreams streams;
  const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
  const uint64_t kernels = GetCounters().kernels;
  ASSERT_EQ(RunScale(data.data(), kCount, 2, 0, streams.first), cudaSuccess);
  EXPECT_EQ(GetCounters().kernels, kernels);
  ASSERT_EQ(cudaStreamSynchronize(streams.first), cudaSuccess);
  EXPECT_EQ(GetCounters().kernels, kernels + 1);
}

TEST_F(Emulation, QueriesMakeProgress) {
  const TwoStreams streams;
  const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
  ASSERT_EQ(RunScale(data.data(), kCount, 2, 0, streams.first), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(streams.event), cudaSuccess);  // never recorded
  ASSERT_EQ(cudaEventRecord(streams.event, streams.first), cudaSuccess);
  int polls = 0;
  while (cudaEventQuery(streams.event) == cudaErrorNotReady) ASSERT_LT(++polls, 1000);
  EXPECT_EQ(cudaGetLastError(), polls > 0 ? cudaErrorNotReady : cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(streams.first), cudaSuccess);
}

TEST_F(Emulation, AWaitHoldsTheRecordThatItSaw) {
  // The event is recorded anew, behind the wait, in the stream that waits: no deadlock.
  const TwoStreams streams;
  ASSERT_EQ(cudaEventRecord(streams.event, streams.first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(streams.second, streams.event), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(streams.event, streams.second), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams.second), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(streams.event), cudaSuccess);
}

TEST_F(Emulation, TheDefaultStreamIsOrderedWithBlockingOnes) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ResetWith(seed);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
    ASSERT_EQ(RunScale(data.data(), kCount, 2, 0, stream), cudaSuccess);
    ASSERT_EQ(RunScale(data.data(), kCount, 3, 1, nullptr), cudaSuccess);
    ASSERT_EQ(RunScale(data.data(), kCount, 2, 1, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);  // with work queued
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(data.Read()[0], 15.0f) << "seed " << seed;
  }
}

TEST_F(Emulation, ThreadsWaitForEachOther) {
  // One host thread waits for an event that another records later.
  const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
  const TwoStreams streams;
  ASSERT_EQ(RunScale(data.data(), kCount, 2, 0, streams.first), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(streams.event, streams.first), cudaSuccess);
  std::thread other([&] {
    ASSERT_EQ(cudaStreamWaitEvent(streams.second, streams.event), cudaSuccess);
    ASSERT_EQ(RunScale(data.data(), kCount, 3, 1, streams.second), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(streams.second), cudaSuccess);
  });
  EXPECT_EQ(cudaEventSynchronize(streams.event), cudaSuccess);
  other.join();
  EXPECT_EQ(data.Read()[0], 7.0f);
}

TEST_F(Emulation, HostFunctionsRunInOrder) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ResetWith(seed);
    const TwoStreams streams;
    std::vector<int> calls;
    const auto note = [](void* data) {
      auto* list = static_cast<std::vector<int>*>(data);
      list->push_back(static_cast<int>(list->size()));
    };
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(cudaLaunchHostFunc(streams.first, note, &calls), cudaSuccess);
    }
    EXPECT_TRUE(calls.empty());
    ASSERT_EQ(cudaStreamSynchronize(streams.first), cudaSuccess);
    EXPECT_EQ(calls, (std::vector<int>{0, 1, 2}));
  }
}

TEST_F(Emulation, AKilledDeviceFailsItsCallsAlone) {
  const TwoStreams streams;
  const DeviceArray<float> data(std::vector<float>(kCount, 1.0f));
  ASSERT_EQ(RunScale(data.data(), kCount, 2, 0, streams.first), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(streams.event, streams.first), cudaSuccess);
  cuda_emulation::KillDevice(0);
  EXPECT_EQ(cudaStreamSynchronize(streams.first), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventSynchronize(streams.event), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMemset(data.data(), 0, 4), cudaErrorLaunchFailure);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(Emulation, BadHandles) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(nullptr), cudaErrorInvalidResourceHandle);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, event, event), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(event), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, event, event), cudaErrorNotReady);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, event, event), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event), cudaErrorInvalidResourceHandle);  // of device 0
  ASSERT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
}

TEST_F(Emulation, NoDevices) {
  ResetWith(1, 0);
  int count = 5;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorInvalidDevice);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 16), cudaErrorNoDevice);
}

TEST_F(Emulation, Properties) {
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 1), cudaSuccess);
  EXPECT_STREQ(properties.name, "Emulated GPU 1");
  EXPECT_EQ(properties.major, 9);
  EXPECT_EQ(properties.sharedMemPerBlockOptin, 227u * 1024);
  int value = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
            cudaSuccess);
  EXPECT_EQ(value, 227 * 1024);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 2), cudaErrorInvalidDevice);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorLaunchFailure), "cudaErrorLaunchFailure");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorNoDevice), "no CUDA-capable device is detected");
}

TEST_F(Emulation, PinnedMemory) {
  float* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, kBytes), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(pinned, 16, cudaHostRegisterDefault),
            cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaErrorInvalidValue);
  std::vector<float> mine(kCount);
  EXPECT_EQ(cudaHostRegister(mine.data(), kBytes, cudaHostRegisterDefault), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(mine.data()), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(mine.data()), cudaErrorHostMemoryNotRegistered);
}

}  // namespace
}  // namespace ringfill::emulation_test
