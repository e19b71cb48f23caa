#include "engine/compute/cuda/kernels/softmax.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/gpu_kv.h"

namespace ringfill::gpu {
namespace {

TEST(ClearStates, MakesThemEmpty) {
  for (const int64_t rows : {0, 1, 3, 4, 5, 131}) {
    const DeviceStates states(static_cast<size_t>(rows), 80);
    ASSERT_EQ(ClearStates(states.arrays(), rows, 80, nullptr), 0);
    HostStates got(rows, 80), want(rows, 80);
    states.Read(got);
    EXPECT_EQ(got.max, want.max);
    EXPECT_EQ(got.sum, want.sum);
    EXPECT_EQ(got.acc, want.acc);
  }
}

TEST(MergeStates, MatchesMergeSoftmax) {
  for (const int dim : {64, 80, 256}) {
    for (const int64_t rows : {0, 1, 127, 128, 129, 131}) {
      HostStates from(rows, dim), into(rows, dim);
      from.Randomize(static_cast<uint32_t>(dim));
      into.Randomize(static_cast<uint32_t>(dim) + 1);
      const DeviceStates device_from(from), device_into(into);
      ASSERT_EQ(MergeStates(device_from.arrays(), device_into.arrays(), rows, dim, nullptr), 0);
      HostStates got(rows, dim);
      device_into.Read(got);
      for (int64_t r = 0; r < rows; ++r) MergeSoftmax(from.Row(r), into.Row(r), dim);
      ExpectStatesNear(Element::kF32, got, into, "rows " + std::to_string(rows));
      if (HasFatalFailure()) return;
    }
  }
}

// A sum of NaN must reach the result, whatever became of its maximum.
TEST(MergeStates, NanIsNotEmpty) {
  HostStates from(2, 64), into(2, 64);
  from.sum[0] = NAN;
  into.sum[1] = NAN;
  from.sum[1] = 1.0f;
  from.max[1] = 0.0f;
  const DeviceStates device_from(from), device_into(into);
  ASSERT_EQ(MergeStates(device_from.arrays(), device_into.arrays(), 2, 64, nullptr), 0);
  HostStates got(2, 64);
  device_into.Read(got);
  EXPECT_TRUE(std::isnan(got.sum[0]) && std::isnan(got.sum[1]));
}

TEST(NormalizeStates, MergesPartsInTheOrderOfHeads) {
  std::mt19937 rng(5);
  for (const auto& [kv_heads, group, tokens, dim] :
       {std::tuple{1, 1, 1, 64}, {2, 3, 5, 80}, {3, 1, 7, 128}, {1, 8, 2, 256}}) {
    for (const int parts : {1, 2, 5}) {
      const int64_t rows = int64_t{kv_heads} * tokens * group;
      std::vector<HostStates> states;
      std::vector<float> all;
      for (int p = 0; p < parts; ++p) {
        states.emplace_back(rows, dim);
        states.back().Randomize(static_cast<uint32_t>(rng()));
        // One row that is empty in all parts.
        states.back().sum[0] = 0.0f;
        for (const auto* values : {&states.back().max, &states.back().sum, &states.back().acc}) {
          all.insert(all.end(), values->begin(), values->end());
        }
      }
      const DeviceArray<float> device(all);
      for (const Element type : {Element::kF32, Element::kBF16, Element::kF16}) {
        const DeviceArray<std::byte> out(static_cast<size_t>(rows * dim) * ElementBytes(type));
        ASSERT_EQ(NormalizeStates({.max = device.data(),
                                   .sum = device.data() + rows,
                                   .acc = device.data() + 2 * rows,
                                   .parts = parts,
                                   .part_stride = rows * (2 + dim),
                                   .kv_heads = kv_heads,
                                   .group = group,
                                   .head_dim = dim,
                                   .tokens = tokens,
                                   .out_type = type,
                                   .out = out.data()},
                                  nullptr),
                  0);
        const std::vector<float> got = FromBytes(type, out.Read());
        for (int64_t row = 0; row < rows; ++row) {
          HostStates merged(1, dim);
          for (HostStates& part : states) MergeSoftmax(part.Row(row), merged.Row(0), dim);
          std::vector<float> want(static_cast<size_t>(dim));
          NormalizeSoftmax(merged.Row(0), want.data(), dim);
          const int64_t token = row / group % tokens;
          const int64_t head = row / (tokens * group) * group + row % group;
          for (int d = 0; d < dim; ++d) {
            const float value = want[static_cast<size_t>(d)];
            ASSERT_NEAR(got[static_cast<size_t>((token * kv_heads * group + head) * dim + d)],
                        value, (1e-5f + Epsilon(type)) * (1e-3f + std::fabs(value)) + 1e-5f)
                << ElementName(type) << " row " << row << " dim " << d;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringfill::gpu
