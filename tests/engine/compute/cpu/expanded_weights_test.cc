#include "engine/compute/cpu/expanded_weights.h"

#include <cstring>
#include <thread>

#include "gtest/gtest.h"
#include "tests/testing/load_model.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

Instant InOneMinute() { return Clock::Real().Now() + std::chrono::minutes(1); }

std::shared_ptr<const Model> SixLayers() {
  TinyModelOptions tiny;
  tiny.layers = 6;
  tiny.SetMatrixTypes(WeightType::kQ8_0);
  return LoadModelOrDie(WriteTinyModel(tiny));
}

// Users of several threads each walk the layers several times; every read finds the layer's own
// weights, as packed directly.
void WalkLayers(int64_t budget, int users, int threads) {
  const auto model = SixLayers();
  ExpandedWeights weights(*model, DType::kF32, budget, users);
  std::vector<std::vector<std::byte>> expected;
  MatrixProducts direct;
  const PackedFormat& format = weights.format(LayerMatrix::kGate);
  for (const LayerWeights& layer : model->layers()) {
    AlignedBuffer packed(format.bytes());
    direct.Pack(layer.gate, 0, format, packed.data());
    expected.emplace_back(packed.data(), packed.data() + packed.size());
  }
  std::vector<std::thread> user_threads;
  for (int u = 0; u < users; ++u) {
    user_threads.emplace_back([&] {
      for (int pass = 0; pass < 5; ++pass) {
        for (int layer = 0; layer < 6; ++layer) {
          std::vector<std::thread> helpers;
          for (int t = 0; t < threads; ++t) {
            helpers.emplace_back([&, layer] {
              MatrixProducts products;
              ASSERT_TRUE(weights.Acquire(layer, products, InOneMinute()).ok());
              const auto& want = expected[static_cast<size_t>(layer)];
              EXPECT_EQ(
                  std::memcmp(weights.packed(layer, LayerMatrix::kGate), want.data(), want.size()),
                  0)
                  << "layer " << layer;
            });
          }
          for (std::thread& helper : helpers) helper.join();
          weights.Release(layer);
        }
      }
    });
  }
  for (std::thread& thread : user_threads) thread.join();
}

TEST(ExpandedWeightsTest, TwoSlotsServeAllUsers) {
  WalkLayers(0, 1, 1);
  WalkLayers(0, 3, 2);
}

TEST(ExpandedWeightsTest, ALargeBudgetKeepsEveryLayer) {
  const auto model = SixLayers();
  ExpandedWeights weights(*model, DType::kF32, int64_t{1} << 30, 2);
  EXPECT_EQ(weights.slots(), 6);
  WalkLayers(int64_t{1} << 30, 3, 2);
}

TEST(ExpandedWeightsTest, ABudgetBetweenPinsTheFirstLayers) {
  const auto model = SixLayers();
  const auto layer_bytes =
      static_cast<int64_t>(ExpandedWeights(*model, DType::kF32, 0, 1).bytes()) / 2;
  ExpandedWeights weights(*model, DType::kF32, 4 * layer_bytes, 1);
  EXPECT_EQ(weights.slots(), 4);
  WalkLayers(3 * layer_bytes, 2, 2);
  WalkLayers(4 * layer_bytes, 3, 1);
}

TEST(ExpandedWeightsTest, AbortEndsWaitsUntilReset) {
  const auto model = SixLayers();
  ExpandedWeights weights(*model, DType::kF32, 0, 2);
  MatrixProducts products;
  ASSERT_TRUE(weights.Acquire(0, products, InOneMinute()).ok());
  std::thread waiter([&] {
    MatrixProducts own;
    EXPECT_EQ(weights.Acquire(2, own, InOneMinute()).code(), absl::StatusCode::kAborted);
  });
  weights.Abort(absl::AbortedError("a rank failed"));
  waiter.join();
  weights.Reset(2);
  EXPECT_TRUE(weights.Acquire(2, products, InOneMinute()).ok());
}

TEST(ExpandedWeightsTest, WaitingForALayerThatNobodyLeavesEnds) {
  const auto model = SixLayers();
  ExpandedWeights weights(*model, DType::kF32, 0, 2);
  MatrixProducts products;
  ASSERT_TRUE(weights.Acquire(0, products, InOneMinute()).ok());
  weights.Release(0);  // one of two users
  const absl::Status status =
      weights.Acquire(2, products, Clock::Real().Now() + std::chrono::milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  weights.Reset(2);
  EXPECT_TRUE(weights.Acquire(2, products, InOneMinute()).ok());
}

}  // namespace
}  // namespace ringfill
