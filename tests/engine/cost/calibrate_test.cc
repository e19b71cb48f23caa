// Figures that are measured on virtual devices are those that were set; on real devices they are
// sane, the same on every rank, and come soon.
#include "engine/cost/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "engine/comm/local.h"
#include "engine/compute/cpu/cpu_device.h"
#include "engine/cost/op_cost.h"
#include "engine/sim/virtual_device.h"
#include "engine/sim/virtual_group.h"
#include "tests/testing/load_model.h"
#include "tests/testing/test_files.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using std::chrono::seconds;

// Rank figures that no default has, different for each rank.
DeviceFigures SetFigures(int rank) {
  const double slower = 1.0 + 0.5 * rank;
  DeviceFigures f;
  f.product_flops_per_s = 4e12 / slower;
  f.expand_weights_per_s = 3e11 / slower;
  f.large_tile = {192, 2e12 / slower};
  f.small_tile = {3, 3e11 / slower};
  f.token_bytes_per_s = 2e11 / slower;
  f.token_flops_per_s = 7e11 / slower;
  f.copy_bytes_per_s = 5e10 / slower;
  f.op_overhead_s = 3e-6 * slower;
  return f;
}

ModelShape Shape(int layers) {
  ModelShape shape;
  shape.layers = layers;
  shape.width = 576;
  shape.ffn_width = 1536;
  shape.heads = 9;
  shape.kv_heads = 3;
  shape.head_dim = 64;
  shape.vocab = 49152;
  shape.stored_weight_bytes = 0.625;
  return shape;
}

struct SimulatedClock : Clock {
  Instant Now() const override { return SimulatedInstant(time.host_s); }
  RankTime time;
};

std::vector<Figures> MeasureSimulated(const ModelShape& shape, const Figures& set) {
  const auto n = static_cast<size_t>(set.ranks());
  std::vector<std::unique_ptr<SimulatedClock>> clocks;
  std::vector<RankTime*> times;
  for (size_t r = 0; r < n; ++r) {
    clocks.push_back(std::make_unique<SimulatedClock>());
    times.push_back(&clocks.back()->time);
  }
  auto group = MakeVirtualGroup(set, times);
  std::vector<Figures> measured(n);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      VirtualDevice device(shape, set.devices[r], 100, clocks[r]->time);
      absl::StatusOr<Figures> figures =
          MeasureRank(device, *group[r],
                      {.shape = shape,
                       .clock = clocks[r].get(),
                       .deadline = Clock::Real().Now() + seconds(60)});
      EXPECT_TRUE(figures.ok()) << figures.status();
      if (figures.ok()) measured[r] = *std::move(figures);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return measured;
}

void ExpectNear(double got, double set, const char* what) {
  EXPECT_NEAR(got / set, 1, 0.01) << what << ": " << got << " instead of " << set;
}

void ExpectFigures(const DeviceFigures& got, const DeviceFigures& set) {
  ExpectNear(got.product_flops_per_s, set.product_flops_per_s, "products");
  ExpectNear(got.expand_weights_per_s, set.expand_weights_per_s, "expanding");
  ExpectNear(got.large_tile.flops_per_s, set.large_tile.flops_per_s, "large tiles");
  ExpectNear(got.small_tile.flops_per_s, set.small_tile.flops_per_s, "small tiles");
  EXPECT_EQ(got.large_tile.rows, set.large_tile.rows);
  EXPECT_EQ(got.small_tile.rows, set.small_tile.rows);
  ExpectNear(got.token_bytes_per_s, set.token_bytes_per_s, "single-token products");
  ExpectNear(got.token_flops_per_s, set.token_flops_per_s, "products of few tokens");
  ExpectNear(got.copy_bytes_per_s, set.copy_bytes_per_s, "copies");
  ExpectNear(got.op_overhead_s, set.op_overhead_s, "overhead");
}

TEST(Calibrate, MeasuresWhatASimulationSets) {
  for (const int layers : {1, 2, 30}) {
    for (const int n : {1, 3}) {
      SCOPED_TRACE(testing::Message() << layers << " layers, " << n << " ranks");
      Figures set = Figures::Uniform(n, SetFigures(0), {.latency_s = 2e-5, .bytes_per_s = 3e9});
      for (int r = 0; r < n; ++r) set.devices[static_cast<size_t>(r)] = SetFigures(r);
      set.gather = {.latency_s = 7e-6, .bytes_per_s = 4e9};
      for (const Figures& got : MeasureSimulated(Shape(layers), set)) {
        ASSERT_EQ(got.ranks(), n);
        for (int r = 0; r < n; ++r) {
          SCOPED_TRACE(testing::Message() << "rank " << r);
          ExpectFigures(got.devices[static_cast<size_t>(r)], set.devices[static_cast<size_t>(r)]);
          for (int to = 0; to < n; ++to) {
            if (to == r) continue;
            ExpectNear(got.Link(r, to).latency_s, 2e-5, "link latency");
            ExpectNear(got.Link(r, to).bytes_per_s, 3e9, "link bandwidth");
          }
        }
        if (n == 1) continue;
        ExpectNear(got.gather.latency_s, 7e-6, "gather latency");
        ExpectNear(got.gather.bytes_per_s, 4e9, "gather bandwidth");
      }
    }
  }
}

TEST(Calibrate, ALinkIsAsSlowAsTheSlowerDirectionOfItsRank) {
  Figures set = Figures::Uniform(3, SetFigures(0), {.latency_s = 2e-5, .bytes_per_s = 3e9});
  set.Link(0, 1).bytes_per_s = 1e9;
  const Figures got = MeasureSimulated(Shape(2), set)[2];
  ExpectNear(got.Link(0, 1).bytes_per_s, 1e9, "0 to 1");
  ExpectNear(got.Link(1, 2).bytes_per_s, 1e9, "1 receives from 0 at once");
  ExpectNear(got.Link(2, 0).bytes_per_s, 3e9, "2 to 0");
  ExpectNear(got.Link(1, 0).bytes_per_s, 3e9, "the other way");
}

TEST(Calibrate, ARankThatNeverComesIsADeadline) {
  const Figures set = Figures::Uniform(2, SetFigures(0), LinkFigures{});
  SimulatedClock clocks[2];
  auto group = MakeVirtualGroup(set, {&clocks[0].time, &clocks[1].time});
  VirtualDevice device(Shape(2), set.devices[0], 100, clocks[0].time);
  const absl::StatusOr<Figures> figures =
      MeasureRank(device, *group[0],
                  {.shape = Shape(2),
                   .clock = &clocks[0],
                   .deadline = Clock::Real().Now() + std::chrono::milliseconds(1)});
  EXPECT_EQ(figures.status().code(), absl::StatusCode::kDeadlineExceeded) << figures.status();
}

// Clang tells sanitizers as features, GCC by macros.
#ifndef __has_feature
#define __has_feature(feature) 0
#endif

void ExpectSane(const Figures& figures) {
  // Within a factor of some 50 of what slow and fast cores do, so that a wrong unit shows.
  // Sanitized builds on a busy machine are a thousand times as slow as others.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__) || \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  constexpr double kSlower = 1000;
#else
  constexpr double kSlower = 1;
#endif
  auto between = [](double low, double value, double high) {
    EXPECT_GT(value, low / kSlower);
    EXPECT_LT(value, high);
  };
  for (const DeviceFigures& f : figures.devices) {
    between(1e8, f.product_flops_per_s, 1e13);
    between(5e6, f.expand_weights_per_s, 1e12);
    between(1e8, f.large_tile.flops_per_s, 1e13);
    between(1e8, f.small_tile.flops_per_s, 1e13);
    between(5e6, f.token_bytes_per_s, 1e12);
    between(1e8, f.copy_bytes_per_s, 1e12);
    EXPECT_GE(f.op_overhead_s, 0);
    EXPECT_LT(f.op_overhead_s, 1e-3);
  }
  for (int r = 0; r < figures.ranks(); ++r) {
    for (int to = 0; to < figures.ranks(); ++to) {
      if (to == r) continue;
      between(5e7, figures.Link(r, to).bytes_per_s, 1e12);
      EXPECT_LT(figures.Link(r, to).latency_s, 1);
    }
  }
}

// Ranks as threads on CPU devices.
std::vector<Figures> MeasureThreads(const std::shared_ptr<const Model>& model, int ranks) {
  const CpuModelOptions options{.page_tokens = 64, .ranks = ranks};
  CpuModel shared(model, options, Clock::Real());
  auto group = MakeLocalGroup(ranks);
  const ModelShape shape = ModelShape::Of(*model, 4, options.page_tokens);
  std::vector<Figures> measured(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < measured.size(); ++r) {
    threads.emplace_back([&, r] {
      CpuDevice device(shared, {.pages = 16});
      absl::StatusOr<Figures> figures = MeasureRank(
          device, *group[r], {.shape = shape, .deadline = Clock::Real().Now() + seconds(120)});
      EXPECT_TRUE(figures.ok()) << figures.status();
      if (figures.ok()) measured[r] = *std::move(figures);
      // Others may still wait for this rank's expanded weights.
      EXPECT_TRUE(group[r]->Barrier(Clock::Real().Now() + seconds(120)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return measured;
}

TEST(Calibrate, CpuRanksAgreeOnSaneFigures) {
  for (const int layers : {1, 3}) {
    TinyModelOptions options;
    options.layers = layers;
    options.SetMatrixTypes(WeightType::kQ4_1);
    const std::shared_ptr<const Model> model = LoadModelOrDie(WriteTinyModel(options));
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << layers << " layers, " << ranks << " ranks");
      const std::vector<Figures> measured = MeasureThreads(model, ranks);
      for (const Figures& figures : measured) {
        ASSERT_EQ(figures.ranks(), ranks);
        ExpectSane(figures);
        for (int r = 0; r < ranks; ++r) {
          EXPECT_EQ(figures.devices[static_cast<size_t>(r)].product_flops_per_s,
                    measured[0].devices[static_cast<size_t>(r)].product_flops_per_s);
        }
      }
    }
  }
}

TEST(Calibrate, AWeightTakesWhatItsTypeStores) {
  TinyModelOptions options;
  options.SetMatrixTypes(WeightType::kQ4_1);
  const std::shared_ptr<const Model> model = LoadModelOrDie(WriteTinyModel(options));
  const ModelShape shape = ModelShape::Of(*model, 4, 64);
  EXPECT_DOUBLE_EQ(shape.stored_weight_bytes, 20.0 / 32);
  EXPECT_EQ(shape.q_width(), 64);
  EXPECT_EQ(shape.group(), 2);
}

}  // namespace
}  // namespace ringfill
