// The stream of a device, its memory, graphs and products, and a device whose weights stay as
// stored.
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "base/log.h"
#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/cuda_device.h"
#include "engine/compute/cuda/cuda_graphs.h"
#include "engine/compute/cuda/cuda_memory.h"
#include "engine/compute/cuda/pinned_memory.h"
#include "engine/compute/cuda/products.h"
#include "engine/worker/cuda_backend.h"
#include "engine/worker/rank_machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/nccl/nccl_emulation.h"
#include "tests/engine/compute/cuda/emulated_fused/fused_emulation.h"
#include "tests/engine/cuda/gpu_ring.h"
#include "tests/testing/pass_test_model.h"

namespace ringfill {
namespace {

using testing::HasSubstr;

Instant InTwoMinutes() { return Clock::Real().Now() + std::chrono::minutes(2); }

CudaGpu FirstGpu() { return ListGpus().value().front(); }

class PinnedPoolTest : public testing::Test {
 protected:
  PinnedPoolTest() { ResetGpus(1, 1); }
  // Takes pieces of these sizes at once.
  void Take(const std::vector<size_t>& sizes) {
    std::vector<PinnedPiece> pieces;
    for (const size_t size : sizes) pieces.push_back(pool_.Take(size).value());
  }
  static uint64_t Calls() {
    const cuda_emulation::Counters counters = cuda_emulation::GetCounters();
    return counters.pinned + counters.unpinned;
  }

  PinnedPool pool_;
};

TEST_F(PinnedPoolTest, WhatWasTakenOnceIsKept) {
  constexpr size_t kMiB = size_t{1} << 20;
  const std::vector<size_t> sizes = {64 * kMiB, 100, 64 * kMiB, 9 * kMiB, 64 * kMiB, 300, 5000};
  Take(sizes);
  const uint64_t before = Calls();
  for (int step = 0; step < 5; ++step) Take(sizes);
  EXPECT_EQ(Calls(), before);
  // A little more of each.
  Take({64 * kMiB - 100, 500, 64 * kMiB, 9 * kMiB + 5000, 64 * kMiB, 3000, 50000});
  EXPECT_EQ(Calls(), before);
}

TEST_F(PinnedPoolTest, SmallPiecesDoNotTakeTheLargeBlocks) {
  constexpr size_t kMiB = size_t{1} << 20;
  ASSERT_TRUE(pool_.Add(32 * kMiB, 1).ok());
  ASSERT_TRUE(pool_.Add(1 * kMiB, 2).ok());
  const uint64_t before = Calls();
  for (int step = 0; step < 5; ++step) Take({1000, 1 * kMiB, 30 * kMiB});
  EXPECT_EQ(Calls(), before);
}

class CudaStreamTest : public testing::TestWithParam<int> {
 protected:
  CudaStreamTest() {
    ResetGpus(2, static_cast<uint64_t>(GetParam()));
    for (int i = 0; i < 2; ++i) {
      stream_[i] = CudaStream::Make(i, nullptr).value();
      memory_[i] = std::make_unique<CudaMemory>(*stream_[i]);
    }
  }
  // Writes `value` to all bytes of the buffer, on stream i.
  void Fill(int i, const DeviceBuffer& buffer, int value) {
    stream_[i]->Enqueue({}, [&buffer, value, i](cudaStream_t on) {
      return CudaStatus(cudaMemsetAsync(buffer.data(), value, buffer.size(), on), "fill", i);
    });
  }
  void Read(int i, const DeviceBuffer& buffer, std::vector<unsigned char>& to) {
    stream_[i]->Enqueue({}, [this, i, &buffer, &to](cudaStream_t on) {
      std::byte* const pinned = stream_[i]->Pinned(buffer.size());
      stream_[i]->Then([&to, pinned, n = buffer.size()] {
        const auto* at = reinterpret_cast<const unsigned char*>(pinned);
        to.assign(at, at + n);
        return absl::OkStatus();
      });
      return CudaStatus(
          cudaMemcpyAsync(pinned, buffer.data(), buffer.size(), cudaMemcpyDeviceToHost, on), "read",
          i);
    });
  }

  std::unique_ptr<CudaStream> stream_[2];
  std::unique_ptr<CudaMemory> memory_[2];
};

TEST_P(CudaStreamTest, ResultsAreThereBehindAnEvent) {
  const DeviceBuffer buffer = memory_[0]->Allocate(100, "test").value();
  std::vector<unsigned char> got;
  for (int value = 0; value < 20; ++value) {
    Fill(0, buffer, value);
    Read(0, buffer, got);
    ASSERT_TRUE(stream_[0]->Record()->Await(InTwoMinutes()).ok());
    ASSERT_EQ(got, std::vector<unsigned char>(100, static_cast<unsigned char>(value)));
  }
  EXPECT_GT(stream_[0]->TakeTimes().busy_s, 0);
}

TEST_P(CudaStreamTest, WaitsForHostEventsWithoutHoldingUpTheCaller) {
  const DeviceBuffer buffer = memory_[0]->Allocate(8, "test").value();
  std::vector<unsigned char> got;
  auto gate = std::make_shared<HostEvent>();
  Fill(0, buffer, 1);
  stream_[0]->WaitFor(gate, InTwoMinutes());
  Fill(0, buffer, 2);
  Read(0, buffer, got);
  const EventPtr behind = stream_[0]->Record();
  // Nothing behind the wait has been queued on the GPU.
  EXPECT_EQ(CudaEventOf(behind), nullptr);
  EXPECT_FALSE(behind->done());
  EXPECT_EQ(behind->Await(Clock::Real().Now()).code(), absl::StatusCode::kDeadlineExceeded);
  gate->Complete(absl::OkStatus());
  ASSERT_TRUE(behind->Await(InTwoMinutes()).ok());
  EXPECT_EQ(got, std::vector<unsigned char>(8, 2));
}

TEST_P(CudaStreamTest, FailedAndLateHostEventsFailTheStream) {
  auto failed = std::make_shared<HostEvent>();
  failed->Complete(absl::DataLossError("bad bytes"));
  stream_[0]->WaitFor(failed, InTwoMinutes());
  EXPECT_EQ(stream_[0]->Synchronize(InTwoMinutes()).code(), absl::StatusCode::kDataLoss);
  // Dropped.
  std::atomic<bool> ran{false};
  stream_[0]->Enqueue({}, [&ran](cudaStream_t) {
    ran = true;
    return absl::OkStatus();
  });
  EXPECT_FALSE(stream_[0]->Synchronize(InTwoMinutes()).ok());
  EXPECT_FALSE(ran);
  stream_[0]->Clear();
  EXPECT_TRUE(stream_[0]->Synchronize(InTwoMinutes()).ok());
  stream_[0]->WaitFor(std::make_shared<HostEvent>(), Clock::Real().Now());
  EXPECT_EQ(stream_[0]->Synchronize(InTwoMinutes()).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(CudaStreamTest, AnotherDevicesEventOrdersTheGpus) {
  const DeviceBuffer from = memory_[0]->Allocate(64, "from").value();
  const DeviceBuffer to = memory_[1]->Allocate(64, "to").value();
  std::vector<unsigned char> got;
  for (int value = 0; value < 20; ++value) {
    Fill(0, from, value);
    const EventPtr filled = stream_[0]->Record();
    stream_[1]->WaitFor(filled, InTwoMinutes());
    stream_[1]->Enqueue({}, [&](cudaStream_t on) {
      return CudaStatus(cudaMemcpyPeerAsync(to.data(), 1, from.data(), 0, 64, on), "copy", 1);
    });
    const EventPtr copied = stream_[1]->Record();
    stream_[0]->WaitFor(copied, InTwoMinutes());
    Read(1, to, got);
    ASSERT_TRUE(stream_[1]->Synchronize(InTwoMinutes()).ok());
    ASSERT_EQ(got, std::vector<unsigned char>(64, static_cast<unsigned char>(value)));
  }
}

TEST_P(CudaStreamTest, WhatIsFoundOutBehindWorkFailsItsEvents) {
  const EventPtr before = stream_[0]->Record();
  stream_[0]->Enqueue({}, [this](cudaStream_t) {
    stream_[0]->Then([] { return absl::DataLossError("found out"); });
    stream_[0]->Then([]() -> absl::Status {
      ADD_FAILURE() << "behind a failure";
      return {};
    });
    return absl::OkStatus();
  });
  const EventPtr behind = stream_[0]->Record();
  EXPECT_EQ(behind->Await(InTwoMinutes()).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(before->Await(InTwoMinutes()).ok());
}

TEST_P(CudaStreamTest, EventsOutliveTheStream) {
  auto never = std::make_shared<HostEvent>();
  stream_[0]->WaitFor(never, InTwoMinutes());
  const EventPtr behind = stream_[0]->Record();
  memory_[0].reset();
  stream_[0].reset();
  EXPECT_EQ(behind->Await(InTwoMinutes()).code(), absl::StatusCode::kCancelled);
}

TEST_P(CudaStreamTest, ADeadDeviceFailsEverything) {
  const DeviceBuffer buffer = memory_[0]->Allocate(8, "test").value();
  Fill(0, buffer, 1);
  const EventPtr behind = stream_[0]->Record();
  EXPECT_FALSE(stream_[0]->DeviceLost());
  cuda_emulation::SetQuiet(true);
  cuda_emulation::KillDevice(0);
  EXPECT_FALSE(behind->Await(InTwoMinutes()).ok());
  EXPECT_THAT(std::string(stream_[0]->status().message()), HasSubstr("device 0"));
  EXPECT_TRUE(stream_[0]->DeviceLost());
  EXPECT_FALSE(stream_[1]->DeviceLost());
  // For good; what has no way to fail gives memory.
  stream_[0]->Clear();
  constexpr size_t kMuch = size_t{1} << 20;
  bool called = false;
  stream_[0]->Enqueue({}, [&](cudaStream_t) {
    std::memset(stream_[0]->Pinned(kMuch), 1, kMuch);
    called = true;
    return absl::OkStatus();
  });
  EXPECT_TRUE(called);
  EXPECT_FALSE(stream_[0]->Synchronize(InTwoMinutes()).ok());
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaStreamTest, testing::Values(1, 2, 3, 4, 5));

class CudaGraphsTest : public testing::Test {
 protected:
  CudaGraphsTest() {
    ResetGpus(1, 2);
    stream_ = CudaStream::Make(0, nullptr).value();
    memory_ = std::make_unique<CudaMemory>(*stream_);
    buffer_ = memory_->Allocate(4, "test").value();
  }
  ~CudaGraphsTest() override { buffer_ = DeviceBuffer(); }

  // True when the launches were called, to run or to be captured.
  bool Run(const CudaGraphs::Key& key, int value) {
    bool called = false;
    const absl::Status status = graphs_.Run(key, stream_->get(), [&] {
      called = true;
      return CudaStatus(cudaMemsetAsync(buffer_.data(), value, 4, stream_->get()), "set", 0);
    });
    EXPECT_TRUE(status.ok()) << status;
    return called;
  }
  int Value() {
    EXPECT_EQ(cudaStreamSynchronize(stream_->get()), cudaSuccess);
    unsigned char got = 0;
    EXPECT_EQ(cudaMemcpy(&got, buffer_.data(), 1, cudaMemcpyDeviceToHost), cudaSuccess);
    return got;
  }

  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<CudaMemory> memory_;
  DeviceBuffer buffer_;
  CudaGraphs graphs_{0};
};

TEST_F(CudaGraphsTest, TheSecondTimeIsCapturedAndReplayedFromThenOn) {
  const CudaGraphs::Key key{3, nullptr, nullptr};
  for (const auto& [value, called, seen] : {std::tuple{1, true, 1}, {2, true, 2}, {7, false, 2}}) {
    graphs_.Begin({5, 6});
    EXPECT_EQ(Run(key, value), called);
    EXPECT_EQ(Value(), seen);
  }
  // Of another buffer, in place of the first.
  EXPECT_TRUE(Run({3, nullptr, this}, 9));
  EXPECT_FALSE(Run({3, nullptr, this}, 8));
  EXPECT_TRUE(Run(key, 4));
  EXPECT_EQ(Value(), 4);
  graphs_.BeginPlain();
  EXPECT_TRUE(Run(key, 5));
  EXPECT_EQ(Value(), 5);
}

TEST_F(CudaGraphsTest, ShapesThatWereNotUsedForLongAreForgotten) {
  const CudaGraphs::Key key{};
  for (const uint64_t shape : {1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 1}) {
    graphs_.Begin({shape});
    Run(key, 1);
  }
  EXPECT_FALSE(Run(key, 1));
  for (uint64_t shape = 9; shape < 17; ++shape) graphs_.Begin({shape});
  graphs_.Begin({1});
  EXPECT_TRUE(Run(key, 1));
}

TEST_F(CudaGraphsTest, AFailedCaptureLeavesTheStreamUsable) {
  const CudaGraphs::Key key{};
  graphs_.Begin({1});
  graphs_.Begin({1});
  const absl::Status status =
      graphs_.Run(key, stream_->get(), [] { return absl::InternalError("a launch failed"); });
  EXPECT_EQ(status.message(), "a launch failed");
  EXPECT_TRUE(Run(key, 6));
  EXPECT_EQ(Value(), 6);
}

TEST_F(CudaGraphsTest, WhatCannotBeCapturedRunsPlainlyFromThenOn) {
  SetLogLevel(LogLevel::kError);
  const CudaGraphs::Key key{};
  graphs_.Begin({1});
  graphs_.Begin({1});
  int calls = 0;
  const auto launches = [&] {
    ++calls;
    // Not while a stream captures.
    return CudaStatus(cudaStreamSynchronize(stream_->get()), "cudaStreamSynchronize", 0);
  };
  EXPECT_TRUE(graphs_.Run(key, stream_->get(), launches).ok());
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(graphs_.Run(key, stream_->get(), launches).ok());
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(Run(key, 6));
  EXPECT_EQ(Value(), 6);
  EXPECT_EQ(graphs_.replayed(), 0);
  // Until what was short may be there again.
  graphs_.Clear();
  graphs_.Begin({1});
  graphs_.Begin({1});
  EXPECT_TRUE(Run(key, 7));
  EXPECT_EQ(Value(), 7);
  EXPECT_EQ(graphs_.replayed(), 1);
}

// cuBLASLt's products and the plain ones against sums in double, with slices as decode cuts them.
TEST(ProductsTest, BothMatchExactSums) {
  ResetGpus(1, 3);
  auto stream = CudaStream::Make(0, nullptr).value();
  CudaMemory memory(*stream);
  auto library = MakeCublasProducts(memory).value();
  auto plain = MakePlainProducts(0);
  struct Shape {
    int64_t rows, n, k, w_column, ldw, ldx, ldy;
    gpu::Element type;
  };
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const Shape& s : {Shape{1, 8, 8, 0, 8, 8, 8, gpu::Element::kF32},
                         Shape{3, 17, 48, 16, 96, 64, 20, gpu::Element::kF32},
                         Shape{65, 40, 64, 0, 64, 128, 40, gpu::Element::kBF16},
                         Shape{7, 5, 33, 3, 40, 33, 5, gpu::Element::kF32}}) {
    std::vector<Bf16> w(static_cast<size_t>(s.n * s.ldw)), x(static_cast<size_t>(s.rows * s.ldx));
    for (Bf16& v : w) v = ToBf16(normal(random));
    for (Bf16& v : x) v = ToBf16(normal(random));
    const size_t element = gpu::ElementBytes(s.type);
    const auto y_bytes = static_cast<size_t>(s.rows * s.ldy) * element;
    const DeviceBuffer y = memory.Allocate(y_bytes, "y").value();
    CudaScratch scratch(memory, "inputs");
    for (Products* products : {library.get(), plain.get()}) {
      std::vector<std::byte> got(y_bytes);
      stream->Enqueue({}, [&](cudaStream_t on) -> absl::Status {
        Upload inputs(*stream, scratch);
        const auto w_at = inputs.Add(w), x_at = inputs.Add(x);
        RF_RETURN_IF_ERROR(inputs.Send());
        RF_RETURN_IF_ERROR(products->Run({.w = inputs.At<Bf16>(w_at) + s.w_column,
                                          .ldw = s.ldw,
                                          .x = inputs.At<Bf16>(x_at),
                                          .ldx = s.ldx,
                                          .rows = s.rows,
                                          .n = s.n,
                                          .k = s.k,
                                          .y_type = s.type,
                                          .y = y.data(),
                                          .ldy = s.ldy},
                                         on));
        std::byte* const pinned = stream->Pinned(y_bytes);
        stream->Then([&got, pinned] {
          std::memcpy(got.data(), pinned, got.size());
          return absl::OkStatus();
        });
        return CudaStatus(cudaMemcpyAsync(pinned, y.data(), y_bytes, cudaMemcpyDeviceToHost, on),
                          "read", 0);
      });
      const absl::Status status = stream->Synchronize(InTwoMinutes());
      ASSERT_TRUE(status.ok()) << status;
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t c = 0; c < s.n; ++c) {
          double sum = 0;
          for (int64_t k = 0; k < s.k; ++k) {
            sum += double{ToFloat(w[static_cast<size_t>(c * s.ldw + s.w_column + k)])} *
                   double{ToFloat(x[static_cast<size_t>(r * s.ldx + k)])};
          }
          const auto at = static_cast<size_t>(r * s.ldy + c);
          const bool narrow = s.type == gpu::Element::kBF16;
          const double value = narrow ? ToFloat(reinterpret_cast<const Bf16*>(got.data())[at])
                                      : reinterpret_cast<const float*>(got.data())[at];
          ASSERT_NEAR(value, sum, (narrow ? 1e-2 : 1e-5) * (8 + std::fabs(sum)))
              << r << ", " << c << " of " << s.rows << " x " << s.n << " x " << s.k;
        }
      }
    }
  }
}

// The whole text as one chunk of replicated tokens of one rank.
std::shared_ptr<Device::TokenBatch> BatchOf(const PassTestModel& text) {
  auto batch = std::make_shared<Device::TokenBatch>();
  const size_t tokens = text.text.size();
  KvRun run;
  for (size_t t = 0; t < tokens; ++t) {
    batch->token.push_back(text.text[t]);
    batch->position.push_back(static_cast<int64_t>(t));
    batch->run.push_back(0);
    batch->visible.push_back(static_cast<int64_t>(t) + 1);
    if (t % 16 == 0) run.pages.push_back(static_cast<PageId>(t / 16 * 3));
    batch->stores.push_back(
        {static_cast<int64_t>(t), 1, run.pages.back(), static_cast<int>(t % 16)});
  }
  batch->runs.push_back(run);
  return batch;
}

std::unique_ptr<CudaDevice> DeviceWith(const PassTestModel& text, const CudaWeightsPlan& plan) {
  ResetGpus(1, 5);
  return CudaDevice::Make(text.model,
                          {.gpu = FirstGpu(), .pages = 64, .page_tokens = 16, .weights = plan})
      .value();
}

std::vector<float> LogitsOf(const PassTestModel& text, CudaDevice& device,
                            const std::shared_ptr<const Device::TokenBatch>& batch) {
  const ModelConfig& c = text.model->config();
  const size_t tokens = text.text.size();
  using Stage = Device::TokenStage;
  size_t bytes = 0;
  for (const Stage s : {Stage::kQkv, Stage::kStates, Stage::kOutput, Stage::kFfn}) {
    bytes = std::max(bytes, device.TokenBytes(s, batch->tokens(), 1));
  }
  const DeviceBuffer even = device.Allocate(bytes, "send").value(),
                     odd = device.Allocate(bytes, "send").value();
  device.BeginTokens(batch);
  for (int layer = 0; layer < c.layers; ++layer) {
    device.TokenQkv(layer, even.data());
    device.TokenAttend(layer, even.data(), odd.data());
    device.TokenOutput(layer, odd.data(), even.data());
    device.TokenFfn(layer, even.data(), odd.data());
    device.EndTokenLayer(layer, odd.data());
  }
  std::vector<float> hidden(tokens * static_cast<size_t>(c.width));
  device.HiddenTokens(hidden.data());
  EXPECT_TRUE(device.stream().Synchronize(InTwoMinutes()).ok());
  std::vector<float> logits(static_cast<size_t>(c.vocab));
  const float* last = hidden.data() + (tokens - 1) * static_cast<size_t>(c.width);
  // In two slices, the second of which begins at an odd row.
  device.Logits(last, 1, 0, 101, logits.data());
  device.Logits(last, 1, 101, c.vocab, logits.data() + 101);
  EXPECT_TRUE(device.stream().Synchronize(InTwoMinutes()).ok());
  EXPECT_EQ(device.TakeCounters().attention_pairs,
            c.layers * static_cast<int64_t>(tokens * (tokens + 1) / 2));
  return logits;
}

// Logits of the whole text in one chunk, on a device with this plan, as each of some steps gives
// them: plainly, captured and replayed.
std::vector<float> LogitsWith(const PassTestModel& text, const CudaWeightsPlan& plan) {
  const auto device = DeviceWith(text, plan);
  const auto batch = BatchOf(text);
  std::vector<float> first = LogitsOf(text, *device, batch);
  for (int step = 1; step < 3; ++step) EXPECT_EQ(LogitsOf(text, *device, batch), first);
  // Layers that keep their place become graphs: 4 stages, from the second step on.
  const int layers = text.model->config().layers;
  const int resident = plan.expanded_layers == layers ? layers : plan.expanded_layers - 2;
  EXPECT_EQ(device->graphs_replayed(), 2 * 4 * resident);
  return first;
}

// A library whose log-sum-exps are in other units is tried out and left alone.
TEST(FusedAttentionTrial, AWrongLibraryIsNotUsed) {
  const PassTestModel text(GpuTinyModel(), 60);
  for (const bool wrong : {false, true}) {
    ResetGpus(1, 4);
    cuda_emulation::SetFused({.there = true, .wrong = wrong});
    RingHarness ring(text.model, GpuRing(1));
    const int64_t tried = FusedPairs();
    EXPECT_GT(tried, 0);
    RingHarness::Sequence& prompt = ring.AddSequence(text.text, SnakeSpec(1, 16));
    StepPlan first = ring.NewPlan();
    ring.AddChunk(first, prompt, {{0, 30}}, TokenMode::kHome, RingStrategy::kPassKv).wants_logits =
        false;
    ring.Run(first);
    StepPlan second = ring.NewPlan();
    ring.AddChunk(second, prompt, {{30, 60}}, TokenMode::kHome, RingStrategy::kPassKv);
    const auto logits = ring.Logits(ring.Run(second));
    ASSERT_EQ(logits.size(), 1u);
    ExpectLogitsNear(logits[0], text.logits.back(), kGpuTolerance);
    EXPECT_EQ(FusedPairs() > tried, !wrong);
  }
  OfferFusedAttention(false);
}

TEST(TokensTest, StoppedTokensSeeNothingAndAreStoredNowhere) {
  const PassTestModel text(GpuTinyModel(), 40);
  const ModelConfig& c = text.model->config();
  const auto device = DeviceWith(text, {c.layers, true});
  const auto batch = BatchOf(text);
  constexpr size_t kTokens = 40, kStopped = 25;  // from the latter on
  auto rest = std::make_shared<Device::TokenBatch>(*batch);
  std::fill(rest->visible.begin() + kStopped, rest->visible.end(), 0);
  rest->stores.resize(kStopped);
  using Stage = Device::TokenStage;
  const size_t bytes = device->TokenBytes(Stage::kStates, kTokens, 1);
  const DeviceBuffer qkv =
      device->Allocate(device->TokenBytes(Stage::kQkv, kTokens, 1), "send").value();
  const DeviceBuffer states = device->Allocate(bytes, "send").value();
  device->BeginTokens(batch);
  device->StopTokens(rest);
  device->TokenQkv(0, qkv.data());
  device->TokenAttend(0, qkv.data(), states.data());
  ASSERT_TRUE(device->stream().Synchronize(InTwoMinutes()).ok());
  EXPECT_EQ(device->TakeCounters().attention_pairs, int64_t{kStopped * (kStopped + 1) / 2});
  std::vector<float> host(bytes / sizeof(float));
  ASSERT_EQ(cudaMemcpy(host.data(), states.data(), bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  // Sums follow the maxima: [kv_heads][rows * group].
  const size_t rows = host.size() / static_cast<size_t>(2 + c.head_dim);
  const size_t head_rows = rows / static_cast<size_t>(c.kv_heads);
  const auto group = static_cast<size_t>(c.heads / c.kv_heads);
  for (size_t row = 0; row < rows; ++row) {
    const size_t token = row % head_rows / group;
    EXPECT_EQ(host[rows + row] > 0, token < kStopped) << "token " << token;
  }
}

TEST(CudaDeviceTest, MemoryThatIsNotThereIsAnErrorAndNothingElse) {
  const PassTestModel text(GpuTinyModel(), 40);
  const auto device = DeviceWith(text, {text.model->config().layers, true});
  ASSERT_TRUE(device->stream().Synchronize(InTwoMinutes()).ok());  // what is freed counts
  cuda_emulation::LimitMemory(0, size_t{1} << 20);
  const auto refused = device->Allocate(size_t{2} << 20, "shards");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("2097152 bytes for \"shards\""));
  EXPECT_FALSE(device->lost());
  EXPECT_TRUE(device->stream().Synchronize(InTwoMinutes()).ok());
  EXPECT_TRUE(device->Allocate(size_t{1} << 20, "shards").ok());
}

TEST(CudaDeviceTest, FreedPiecesThatAreTooSmallMakeALargeBuffer) {
  const PassTestModel text(GpuTinyModel(), 40);
  const auto device = DeviceWith(text, {text.model->config().layers, true});
  constexpr size_t kPiece = size_t{1} << 20;
  ASSERT_TRUE(device->stream().Synchronize(InTwoMinutes()).ok());
  cuda_emulation::LimitMemory(0, 4 * kPiece);
  std::vector<DeviceBuffer> pieces;
  for (int i = 0; i < 4; ++i) {
    auto piece = device->Allocate(kPiece, "shards");
    ASSERT_TRUE(piece.ok()) << piece.status();
    pieces.push_back(*std::move(piece));
  }
  pieces.clear();
  EXPECT_TRUE(device->Allocate(4 * kPiece, "shards").ok());
}

size_t BytesOf(const CudaDevice& device) {
  size_t bytes = 0;
  for (const Device::MemoryUse& use : device.Memory()) bytes += use.bytes;
  return bytes;
}

TEST(CudaDeviceTest, AStepThatFoundNoMemoryGivesScratchBack) {
  const PassTestModel text(GpuTinyModel(), 40), longer(GpuTinyModel(), 900);
  const auto device = DeviceWith(text, {text.model->config().layers, true});
  const size_t before = BytesOf(*device);
  const std::vector<float> expected = LogitsOf(text, *device, BatchOf(text));
  EXPECT_GT(BytesOf(*device), before);
  cuda_emulation::LimitMemory(0, size_t{1} << 17);
  device->BeginTokens(BatchOf(longer));
  const absl::Status refused = device->stream().Synchronize(InTwoMinutes());
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  device->Recover();
  EXPECT_EQ(BytesOf(*device), before);
  EXPECT_EQ(LogitsOf(text, *device, BatchOf(text)), expected);
}

TEST(CudaDeviceTest, MemoryIsCountedByWhatItIsFor) {
  const PassTestModel text(GpuTinyModel(), 40);
  const auto device = DeviceWith(text, {text.model->config().layers, true});
  const DeviceBuffer shards = device->Allocate(1000, "shards").value();
  std::map<std::string, MemoryPool> pools;
  for (const Device::MemoryUse& use : device->Memory()) pools[use.what] = use.pool;
  EXPECT_EQ(pools.at("kv pages"), MemoryPool::kKvPages);
  for (const char* what : {"weights", "embedding", "output head"}) {
    EXPECT_EQ(pools.at(what), MemoryPool::kWeights) << what;
  }
  EXPECT_EQ(pools.at("shards"), MemoryPool::kBuffers);
  EXPECT_EQ(pools.at("lists"), MemoryPool::kScratch);
}

TEST(CudaDeviceTest, ALostDeviceGivesNoBuffers) {
  const PassTestModel text(GpuTinyModel(), 40);
  const auto device = DeviceWith(text, {text.model->config().layers, true});
  EXPECT_FALSE(device->lost());
  cuda_emulation::KillDevice(0);
  EXPECT_TRUE(device->lost());
  const auto refused = device->Allocate(size_t{1} << 20, "shards");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInternal) << refused.status();
  EXPECT_FALSE(device->stream().Synchronize(InTwoMinutes()).ok());
}

TEST(CudaWeightsTest, UploadEndsWhenNobodyNeedsItAnyMore) {
  const PassTestModel text(GpuTinyModel(), 40);
  ResetGpus(1, 5);
  for (const int asked : {0, 5}) {
    int left = asked;
    const auto device =
        CudaDevice::Make(text.model, {.gpu = FirstGpu(),
                                      .pages = 64,
                                      .page_tokens = 16,
                                      .weights = {text.model->config().layers, true},
                                      .stopped = [&left] { return left-- == 0; }});
    EXPECT_EQ(device.status().code(), absl::StatusCode::kCancelled) << device.status();
    EXPECT_EQ(left, -1);
  }
  CudaGpu gpu = FirstGpu();
  ASSERT_TRUE(LookAtMemory(gpu).ok());
  EXPECT_EQ(gpu.free_bytes, gpu.total_bytes);
}

TEST(CudaWeightsTest, LayersExpandedInTurnGiveTheSameBits) {
  const std::pair<WeightType, CudaWeightsPlan> cases[] = {{WeightType::kF32, {3, true}},
                                                          {WeightType::kQ4_0, {2, false}},
                                                          {WeightType::kQ8_0, {2, true}}};
  for (const auto& [type, plan] : cases) {
    TinyModelOptions tiny = GpuTinyModel();
    tiny.layers = 5;
    tiny.tied = type == WeightType::kQ4_0;
    tiny.SetMatrixTypes(type);
    const PassTestModel text(tiny, 20);
    const std::vector<float> all = LogitsWith(text, {5, true});
    ExpectLogitsNear(all, text.logits.back(), kGpuTolerance);
    EXPECT_EQ(LogitsWith(text, plan), all) << plan.expanded_layers;
  }
}

}  // namespace
}  // namespace ringfill
