// GPUs that are there or not, and what CUDA's errors become.
#include <string>
#include <vector>

#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/cuda_event.h"
#include "engine/worker/cuda_backend.h"
#include "engine/worker/rank_machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/nccl/nccl_emulation.h"
#include "tests/engine/cuda/gpu_ring.h"
#include "tests/testing/load_model.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using testing::HasSubstr;

TEST(GpuChoice, DevicesThatDoNotFitAreNamed) {
  ResetGpus(3, 1);
  const std::vector<CudaGpu> all = ListGpus().value();
  ASSERT_EQ(all.size(), 3u);
  const auto error = [&all](std::vector<int> wanted, int count) {
    return std::string(PickGpus(all, wanted, count).status().message());
  };
  EXPECT_THAT(error({}, 4), HasSubstr("ranks.count is 4"));
  EXPECT_THAT(error({0, 3}, 2), HasSubstr("GPU 3"));
  EXPECT_THAT(error({1, 1}, 2), HasSubstr("twice"));
  EXPECT_THAT(error({1}, 2), HasSubstr("ranks.devices lists 1"));
  const auto picked = PickGpus(all, {2, 0}, 2);
  ASSERT_TRUE(picked.ok()) << picked.status();
  EXPECT_EQ((*picked)[0].index, 2);
  EXPECT_EQ((*picked)[1].index, 0);
}

TEST(GpuChoice, OldAndMissingGpusAreOneClearError) {
  cuda_emulation::Reset({.devices = 1, .seed = 1, .major = 7, .minor = 5});
  const auto model = LoadModelOrDie(WriteTinyModel(GpuTinyModel()));
  const auto old = MakeCudaBackend(model, {}).status();
  EXPECT_EQ(old.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(old.message()), HasSubstr("compute capability 8.0"));
  cuda_emulation::Reset({.devices = 0, .seed = 1});
  const auto none = MakeCudaBackend(model, {}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), HasSubstr("ranks.backend: cpu"));
  ResetGpus(2, 1);
  cuda_emulation::SetNcclVersion(22406);
  const auto several = MakeCudaBackend(model, {.ranks = 2}).status();
  EXPECT_EQ(several.code(), absl::StatusCode::kFailedPrecondition) << several;
  EXPECT_THAT(std::string(several.message()), HasSubstr("this is 2.24.6"));
  for (const absl::Status& alone :
       {MakeCudaBackend(model, {}).status(), CudaMachines()->Look(0).status()}) {
    EXPECT_TRUE(alone.ok()) << alone << ", one GPU talks to nobody";
  }
  ResetGpus(1, 1);
  TinyModelOptions odd = GpuTinyModel();
  odd.head_dim = 16;
  const auto refused = MakeCudaBackend(LoadModelOrDie(WriteTinyModel(odd)), {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("64, 80, 96, 128 and 256"));
}

TEST(CudaStatusTest, NamesCallDeviceAndHint) {
  const absl::Status status = CudaStatus(cudaErrorMemoryAllocation, "cudaMalloc(&p, 5)", 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cudaMalloc on device 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("kv.memory_fraction"));
}

// Libraries look at CUDA's last error behind their own calls: what has been told must not be there.
TEST(CudaStatusTest, AnErrorThatIsToldIsNotLeftBehind) {
  ResetGpus(1, 1);
  const auto failed = [] {
    void* none = nullptr;
    const cudaError_t error = cudaMalloc(&none, size_t{1} << 50);
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    return error;
  };
  EXPECT_FALSE(CudaStatus(failed(), "cudaMalloc", 0).ok());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  IgnoreCuda(failed());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  cuda_emulation::SetQuiet(true);
  EXPECT_FALSE(AwaitCudaEvent(nullptr, Clock::Real().Now() + std::chrono::minutes(2)).ok());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace ringfill
