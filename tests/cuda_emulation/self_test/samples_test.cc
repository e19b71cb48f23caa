// Right kernels pass and wrong ones are found, under every one of several seeds.
#include "tests/cuda_emulation/self_test/samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/execution/address_sanitizer.h"
#include "tests/cuda_emulation/self_test/device_array.h"
#include "tests/cuda_emulation/self_test/refused_samples.h"

namespace ringfill::emulation_test {
namespace {

using cuda_emulation::DefaultOptions;
using cuda_emulation::GetCounters;
using cuda_emulation::LastReport;
using cuda_emulation::Options;
using cuda_emulation::Reset;
using cuda_emulation::SetQuiet;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kSeeds = 20;

void ResetWith(uint64_t seed) {
  Options options;
  options.devices = 2;
  options.device_bytes = 64 << 20;
  options.seed = seed;
  Reset(options);
}

std::vector<float> Numbers() {
  std::vector<float> numbers(kSampleThreads);
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  return numbers;
}

class Samples : public testing::Test {
 protected:
  void SetUp() override { SetQuiet(true); }
  void TearDown() override {
    SetQuiet(false);
    Reset(DefaultOptions());
  }
  // What the emulation says of the sample; empty when it passes.
  std::string ReportOf(Sample sample, uint64_t seed) {
    ResetWith(seed);
    DeviceArray<float> data(Numbers());
    EXPECT_EQ(RunSample(sample, data.data()), cudaSuccess);
    const cudaError_t error = cudaDeviceSynchronize();
    EXPECT_EQ(error == cudaSuccess, LastReport().empty()) << LastReport();
    return LastReport();
  }
  void ExpectFound(Sample sample, const std::string& what) {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      EXPECT_THAT(ReportOf(sample, seed), HasSubstr(what)) << "seed " << seed;
    }
  }
};

// Races are found by instrumentation, which the sanitizers' builds leave to the sanitizers.
#if defined(RINGFILL_RACE_HOOKS)
using Races = Samples;

TEST_F(Races, MissingBarrier) {
  ExpectFound(Sample::kNoBarrier, "with no barrier between");
  ExpectFound(Sample::kBarrierInsideLoopLost, "with no barrier between");
}

TEST_F(Races, MissingWarpBarrier) {
  ExpectFound(Sample::kNoWarpBarrier, "with no barrier between");
  ExpectFound(Sample::kShuffleAsBarrier, "with no barrier between");
  ExpectFound(Sample::kPartialWarpBarrier, "with no barrier between");
}

TEST_F(Races, AsynchronousCopies) {
  for (Sample sample :
       {Sample::kCopyNotWaited, Sample::kCopyWaitTooWeak, Sample::kCopyNotCommitted}) {
    ExpectFound(sample, "an asynchronous copy not yet waited for");
  }
  ExpectFound(Sample::kCopyOverReaders, "with no barrier between");
  // Its reader runs before the writer in some orders, after it in others.
  ExpectFound(Sample::kCopyNoBarrier, "by thread");
}

TEST_F(Races, MatrixOfRowsThatOthersWrote) {
  ExpectFound(Sample::kMatrixNoBarrier, "with no barrier between");
}

TEST_F(Races, AtomicsAreOrderedOnlyAmongThemselves) {
  ExpectFound(Sample::kAtomicsNoBarrier, "with no barrier between");
}

TEST_F(Races, TheReportNamesEverything) {
  EXPECT_THAT(ReportOf(Sample::kNoWarpBarrier, 1),
              AllOf(HasSubstr("ReverseWarps, block (0, 0, 0), thread ("), HasSubstr("lane"),
                    HasSubstr("of tile"), HasSubstr("by thread (")));
}

TEST_F(Samples, StrayPointers) {
  ExpectFound(Sample::kReadBeyond, "past the end of an allocation of 512 bytes");
  ExpectFound(Sample::kWriteBeyond, "past the end of an allocation of 512 bytes");
  ExpectFound(Sample::kWriteBefore, "device memory that was never allocated");
  ExpectFound(Sample::kSharedBeyond, "not inside one array of shared memory");
  ExpectFound(Sample::kDynamicBeyond, "not inside one array of shared memory");
}

TEST_F(Samples, MisalignedWord) { ExpectFound(Sample::kMisalignedWord, "is not aligned"); }

TEST_F(Samples, HostPointer) {
  ResetWith(1);
  const std::vector<float> host(4, 1.0f);
  DeviceArray<float> data(Numbers());
  EXPECT_EQ(RunHostPointer(host.data(), data.data()), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(LastReport(), HasSubstr("of host memory"));
}

TEST_F(Samples, UseAfterFreeAndOtherDevice) {
  ResetWith(1);
  float* freed = nullptr;
  ASSERT_EQ(cudaMalloc(&freed, 512), cudaSuccess);
  ASSERT_EQ(cudaFree(freed), cudaSuccess);
  EXPECT_EQ(RunSample(Sample::kRight, freed), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(LastReport(), HasSubstr("that was freed"));

  ResetWith(2);
  float* elsewhere = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&elsewhere, 512), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(RunSample(Sample::kRight, elsewhere), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(LastReport(), HasSubstr("on device 1"));
}
#endif

#if defined(RF_ADDRESS_SANITIZER)
TEST_F(Samples, TheAddressSanitizerSeesStrayPointers) {
  for (Sample sample :
       {Sample::kReadBeyond, Sample::kWriteBeyond, Sample::kSharedBeyond, Sample::kDynamicBeyond}) {
    EXPECT_DEATH(ReportOf(sample, 1), "AddressSanitizer: use-after-poison");
  }
  EXPECT_DEATH(ReportOf(Sample::kWriteBefore, 1), "AddressSanitizer: SEGV");
}
#endif

TEST_F(Samples, RightOnesPass) {
  std::vector<float> reversed = Numbers();
  std::reverse(reversed.begin(), reversed.end());
  std::vector<float> by_warp = reversed;
  for (int warp = 0; warp < 4; ++warp) {
    for (int i = 0; i < 32; ++i) {
      by_warp[static_cast<size_t>(warp * 32 + i)] = static_cast<float>(warp * 32 + 32 - i);
    }
  }
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ResetWith(seed);
    for (const auto& [sample, expected] :
         {std::pair{Sample::kRight, reversed}, std::pair{Sample::kRightWithinWarp, by_warp},
          std::pair{Sample::kRightCopy, reversed},
          std::pair{Sample::kRightAtomics, std::vector<float>(kSampleThreads, kSampleThreads)}}) {
      DeviceArray<float> data(Numbers());
      ASSERT_EQ(RunSample(sample, data.data()), cudaSuccess);
      EXPECT_EQ(data.Read(), expected) << static_cast<int>(sample) << ", seed " << seed;
      EXPECT_EQ(LastReport(), "");
    }
  }
}

TEST_F(Samples, Divergence) {
  ExpectFound(Sample::kDivergentBarrier, "threads diverge");
  ExpectFound(Sample::kBarrierAfterExit, "they have exited");
  ExpectFound(Sample::kMismatchedCollectives, " meets ");
  ExpectFound(Sample::kMaskWithoutCaller, "its mask does not name the caller");
  ExpectFound(Sample::kShuffleFromUnnamedLane, "reads a lane that its mask does not name");
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    // Lane 7 leaves before or after the others wait for it.
    EXPECT_THAT(ReportOf(Sample::kCollectiveAfterExit, seed),
                testing::AnyOf(HasSubstr("which has exited"), HasSubstr("threads diverge")));
  }
}

TEST_F(Samples, Misaligned) { ExpectFound(Sample::kMisaligned, "is not aligned"); }
TEST_F(Samples, Trap) { ExpectFound(Sample::kTraps, "the kernel trapped"); }
TEST_F(Samples, StaticLimit) {
  ResetWith(1);
  DeviceArray<float> data(Numbers());
  EXPECT_EQ(RunTooMuchStatic(data.data()), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(LastReport(), HasSubstr("no shared memory left for second: 49168 bytes static"));
}

TEST_F(Samples, SharedMemoryStartsAsNan) {
  ResetWith(3);
  DeviceArray<float> data(Numbers());
  ASSERT_EQ(RunSample(Sample::kReadsFreshShared, data.data()), cudaSuccess);
  for (float v : data.Read()) EXPECT_TRUE(std::isnan(v));
}

TEST_F(Samples, ConstantTable) {
  ResetWith(3);
  DeviceArray<float> data(Numbers());
  ASSERT_EQ(RunSample(Sample::kReadsTable, data.data()), cudaSuccess);
  EXPECT_EQ(data.Read()[7], 8.0f);
}

TEST_F(Samples, AFailedDeviceStaysFailed) {
  ResetWith(4);
  DeviceArray<float> data(Numbers());
  ASSERT_EQ(RunSample(Sample::kTraps, data.data()), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_EQ(RunSample(Sample::kRight, data.data()), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  DeviceArray<float> other(Numbers());
  EXPECT_EQ(RunSample(Sample::kRight, other.data()), cudaSuccess);
  EXPECT_EQ(RunSample(Sample::kRightCopy, other.data()), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// ---- what right kernels get

TEST_F(Samples, EveryBlockRunsOnce) {
  ResetWith(5);
  DeviceArray<unsigned> total(std::vector<unsigned>(3, 0));
  ASSERT_EQ(RunLastBlock(total.data(), {7, 5, 3}, {8, 4, 2}), cudaSuccess);
  EXPECT_EQ(total.Read(), (std::vector<unsigned>{105 * 64, 105, 105}));
}

TEST_F(Samples, Collectives) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ResetWith(seed);
    DeviceArray<uint64_t> results(64 * kCollectiveResults);
    DeviceArray<unsigned> votes(64 * 2);
    ASSERT_EQ(RunCollectives(results.data(), votes.data()), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << LastReport();
    const std::vector<uint64_t> r = results.Read();
    const std::vector<unsigned> v = votes.Read();
    for (uint64_t t = 0; t < 64; ++t) {
      const uint64_t lane = t % 32, warp = t / 32;
      const std::vector<uint64_t> expected = {warp * 32 + 5,
                                              t ^ 16,
                                              lane >= 3 ? t - 3 : t,
                                              31 - lane,
                                              lane,
                                              warp,
                                              lane < 8 ? t ^ 7 : 1,
                                              64,
                                              1};
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(r[t * kCollectiveResults + i], expected[i]) << "thread " << t << ", " << i;
      }
      EXPECT_EQ(v[t * 2], 1u);
      EXPECT_EQ(v[t * 2 + 1], 1u);
    }
  }
}

TEST_F(Samples, LaunchLimits) {
  ResetWith(6);
  EXPECT_EQ(RunNothing(1, 1024, 0), cudaSuccess);
  EXPECT_EQ(RunNothing(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunNothing(1, {32, 32, 2}, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunNothing(1, {1, 1, 65}, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunNothing(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunNothing(1, 0, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunNothing({1, 65536, 1}, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunNothing({1, 65535, 1}, 1, 0), cudaSuccess);
  EXPECT_EQ(RunUnasked(48 * 1024), cudaSuccess);
  EXPECT_EQ(RunUnasked(48 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_EQ(RunNothing(1, 32, 227 * 1024), cudaSuccess);
  EXPECT_EQ(RunNothing(1, 32, 227 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(GetCounters().kernels, 4u);
}

}  // namespace
}  // namespace ringfill::emulation_test
