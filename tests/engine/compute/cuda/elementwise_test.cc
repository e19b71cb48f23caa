#include "engine/compute/cuda/kernels/elementwise.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/compute/products/elementwise.h"
#include "engine/compute/slices.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/device_array.h"
#include "tests/engine/compute/cuda/elements.h"

namespace ringfill::gpu {
namespace {

constexpr Element kElements[] = {Element::kF32, Element::kBF16, Element::kF16};

std::vector<float> Normals(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = scale * normal(rng);
  return out;
}

void ExpectNear(Element type, const std::vector<float>& got, const std::vector<float>& want,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const float limit = (2e-6f + Epsilon(type)) * std::fabs(want[i]) + 1e-7f;
    ASSERT_NEAR(got[i], want[i], limit) << what << " " << ElementName(type) << " at " << i;
  }
}

TEST(GpuRmsNorm, MatchesTheCpu) {
  for (const int64_t n : {1, 31, 255, 256, 257, 576, 1031}) {
    for (const int64_t rows : {0, 1, 3}) {
      for (const Element type : kElements) {
        for (const bool add : {false, true}) {
          std::vector<float> x = Normals(rows * n, 1, 3.0f);
          const std::vector<float> delta = Normals(rows * n, 2), weight = Normals(n, 3);
          const DeviceArray<float> device_x(x), device_delta(delta), device_weight(weight);
          const DeviceArray<std::byte> out(x.size() * ElementBytes(type));
          ASSERT_EQ(RmsNorm({.x = device_x.data(),
                             .add = add ? device_delta.data() : nullptr,
                             .weight = device_weight.data(),
                             .epsilon = 1e-5f,
                             .rows = rows,
                             .n = n,
                             .row_index = nullptr,
                             .out_type = type,
                             .out = out.data()},
                            nullptr),
                    0);
          if (add) ringfill::AddInPlace(x.data(), delta.data(), rows * n);
          EXPECT_EQ(device_x.Read(), x);
          std::vector<float> want(x.size());
          ringfill::RmsNorm(x.data(), weight.data(), 1e-5f, rows, n, DType::kF32, want.data());
          ExpectNear(type, FromBytes(type, out.Read()), want, "n " + std::to_string(n));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(GpuRmsNorm, TakesRowsByIndex) {
  constexpr int64_t kN = 65;
  const std::vector<float> x = Normals(10 * kN, 1), weight = Normals(kN, 2);
  const std::vector<int64_t> index = {7, 0, 9, 7};
  const DeviceArray<float> device_x(x), device_weight(weight), out(4 * kN);
  const DeviceArray<int64_t> device_index(index);
  ASSERT_EQ(RmsNorm({.x = device_x.data(),
                     .add = nullptr,
                     .weight = device_weight.data(),
                     .epsilon = 1e-6f,
                     .rows = 4,
                     .n = kN,
                     .row_index = device_index.data(),
                     .out_type = Element::kF32,
                     .out = out.data()},
                    nullptr),
            0);
  std::vector<float> want(4 * kN);
  for (size_t i = 0; i < 4; ++i) {
    ringfill::RmsNorm(x.data() + index[i] * kN, weight.data(), 1e-6f, 1, kN, DType::kF32,
                      want.data() + i * kN);
  }
  ExpectNear(Element::kF32, out.Read(), want, "rows");
}

TEST(GpuSiluMul, MatchesTheDefinition) {
  for (const int64_t n : {0, 1, 255, 256, 257, 521}) {
    for (const Element type : kElements) {
      constexpr int64_t kRows = 3;
      const int64_t stride = 2 * n + 5;
      std::vector<float> both = Rounded(type, Normals(kRows * stride, 4, 20.0f));
      if (n > 1) both[0] = 120.0f, both[1] = -120.0f;
      both = Rounded(type, both);
      const DeviceArray<std::byte> in(ToBytes(type, both));
      const auto bytes = static_cast<int64_t>(ElementBytes(type));
      const DeviceArray<std::byte> out(static_cast<size_t>(kRows * n * bytes));
      // gate and up beside each other in a row, as one product makes them.
      ASSERT_EQ(SiluMul({.type = type,
                         .gate = in.data(),
                         .up = in.data() + n * bytes,
                         .out = out.data(),
                         .rows = kRows,
                         .n = n,
                         .gate_stride = stride,
                         .out_stride = n},
                        nullptr),
                0);
      std::vector<float> want;
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const double g = both[static_cast<size_t>(r * stride + i)];
          const double u = both[static_cast<size_t>(r * stride + n + i)];
          want.push_back(static_cast<float>(g / (1.0 + std::exp(-g)) * u));
        }
      }
      ExpectNear(type, FromBytes(type, out.Read()), want, "n " + std::to_string(n));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(GpuConvertFloats, RoundsToNearestEven) {
  std::vector<float> x = Normals(1031, 5, 100.0f);
  x.insert(x.end(), {0.0f, -0.0f, 1.00390625f, 1.01171875f, 2049.0f, 2051.0f, 3e-6f});
  for (const Element type : kElements) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{256}, x.size()}) {
      const std::vector<float> part(x.begin(), x.begin() + static_cast<ptrdiff_t>(n));
      const DeviceArray<float> in(part);
      const DeviceArray<std::byte> out(n * ElementBytes(type));
      ASSERT_EQ(ConvertFloats(in.data(), static_cast<int64_t>(n), type, out.data(), nullptr), 0);
      EXPECT_EQ(out.Read(), ToBytes(type, part)) << ElementName(type);
    }
  }
}

TEST(GpuAddParts, AddsInOrder) {
  for (const int64_t n : {0, 1, 255, 257, 1031}) {
    const std::vector<float> x = Normals(n, 6), parts = Normals(3 * n, 7);
    const DeviceArray<float> device_x(x), device_parts(parts);
    ASSERT_EQ(AddParts(device_x.data(), device_parts.data(), 3, n, nullptr), 0);
    ASSERT_EQ(AddFloats(device_x.data(), device_parts.data(), n, nullptr), 0);
    std::vector<float> want = x;
    for (const int64_t part : {0, 1, 2, 0}) {
      ringfill::AddInPlace(want.data(), parts.data() + part * n, n);
    }
    EXPECT_EQ(device_x.Read(), want);
  }
}

TEST(GpuJoinSlices, PutsColumnsInOrder) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const int64_t width : {1, 4, 7, 64, 577}) {
      for (const bool add : {false, true}) {
        constexpr int64_t kTokens = 3;
        const int64_t stride = LargestSlice(width, 1, ranks);
        const int64_t part = kTokens * stride + 5;
        std::vector<float> gathered(static_cast<size_t>(ranks * part), NAN);
        std::vector<float> rows = Normals(kTokens * width, 8);
        for (int r = 0; r < ranks; ++r) {
          const Slice slice = SliceOf(width, 1, r, ranks);
          for (int64_t t = 0; t < kTokens; ++t) {
            for (int64_t i = 0; i < slice.size(); ++i) {
              gathered[static_cast<size_t>(r * part + t * stride + i)] =
                  rows[static_cast<size_t>(t * width + slice.begin + i)];
            }
          }
        }
        const std::vector<float> before(rows.size(), 2.0f);
        const DeviceArray<float> in(gathered), out(before);
        ASSERT_EQ(JoinSlices({.gathered = in.data(),
                              .part_stride = part,
                              .ranks = ranks,
                              .tokens = kTokens,
                              .width = width,
                              .stride = stride,
                              .add = add,
                              .out = out.data()},
                             nullptr),
                  0);
        if (add) ringfill::AddInPlace(rows.data(), before.data(), kTokens * width);
        EXPECT_EQ(out.Read(), rows) << ranks << " ranks, width " << width;
      }
    }
  }
}

TEST(GpuNoteNonFinite, NamesTheChunks) {
  constexpr int64_t kN = 300;
  for (const float bad : {std::numeric_limits<float>::infinity(), -INFINITY, NAN}) {
    std::vector<float> x = Normals(5 * kN, 9, 1e30f);
    x[1 * kN + 299] = bad;
    x[4 * kN] = bad;
    const DeviceArray<float> device_x(x);
    const DeviceArray<int32_t> chunk(std::vector<int32_t>{0, 33, 2, 63, 7});
    const DeviceArray<unsigned long long> mask(std::vector<unsigned long long>{16});
    ASSERT_EQ(NoteNonFinite(device_x.data(), 5, kN, chunk.data(), mask.data(), nullptr), 0);
    EXPECT_EQ(mask.Read()[0], uint64_t{16} | uint64_t{1} << 33 | uint64_t{1} << 7);
  }
  EXPECT_EQ(NoteNonFinite(nullptr, 0, kN, nullptr, nullptr, nullptr), 0);
}

TEST(GpuNoteFaults, KeepsTheFirstPlaceOfEachToken) {
  // 5 tokens, of each three pieces of 130 floats: rows of 150 apart, pieces of 800.
  constexpr int64_t kStride = 150, kPieceStride = 800, kFloats = 130;
  std::vector<float> x = Normals(3 * kPieceStride, 9, 1e30f);
  const auto at = [](int64_t token, int64_t piece, int64_t i) {
    return static_cast<size_t>(token * kStride + piece * kPieceStride + i);
  };
  x[at(0, 0, kFloats)] = NAN;  // between two rows
  x[at(1, 0, 0)] = INFINITY;
  x[at(2, 1, kFloats - 1)] = NAN;
  x[at(3, 2, 7)] = -INFINITY;
  x[at(3, 0, 7)] = NAN;
  const DeviceArray<float> device_x(x);
  const DeviceArray<unsigned> first(std::vector<unsigned>{0, 0, 0, 3, 4});
  NoteFaultsArgs args{.x = device_x.data(),
                      .tokens = 5,
                      .token_stride = kStride,
                      .pieces = 3,
                      .piece_stride = kPieceStride,
                      .floats = kFloats,
                      .place = 9,
                      .first = first.data()};
  ASSERT_EQ(NoteFaults(args, nullptr), 0);
  EXPECT_EQ(first.Read(), (std::vector<unsigned>{0, 9, 9, 3, 4}));
  args.floats = 0;
  EXPECT_EQ(NoteFaults(args, nullptr), 0);
}

}  // namespace
}  // namespace ringfill::gpu
