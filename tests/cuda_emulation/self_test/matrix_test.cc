// Fragments against the closed formulas of the PTX manual, and conversions against base's.
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "base/float_types.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/random.h"
#include "tests/cuda_emulation/self_test/device_array.h"
#include "tests/cuda_emulation/self_test/matrix_samples.h"

namespace ringfill::emulation_test {
namespace {

using cuda_emulation::Random;

// True where these run on a real GPU and there is none.
bool NoDevice() {
  int count = 0;
  return cudaGetDeviceCount(&count) != cudaSuccess || count == 0;
}

// ldmatrix: "each thread of a warp receives a fragment of a row": thread t of register j gets row
// t / 4 of matrix j, elements 2 (t % 4) and the next; with .trans row and column change places.
TEST(LdMatrix, Layout) {
  if (NoDevice()) GTEST_SKIP() << "no GPU";
  constexpr int kElements = 4 * 8 * 8;
  std::vector<uint16_t> matrices(kElements);
  for (int i = 0; i < kElements; ++i) matrices[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
  const auto element = [](int matrix, int row, int column) {
    return static_cast<unsigned>((matrix * 8 + row) * 8 + column);
  };
  const DeviceArray<uint16_t> input(matrices);
  for (const bool transposed : {false, true}) {
    for (int stride : {16, 48, 64}) {
      DeviceArray<unsigned> output(32 * 4);
      ASSERT_EQ(RunLdMatrix(transposed, input.data(), stride, output.data()), cudaSuccess);
      const std::vector<unsigned> registers = output.Read();
      for (int t = 0; t < 32; ++t) {
        for (int j = 0; j < 4; ++j) {
          const int row = t / 4, column = 2 * (t % 4);
          const unsigned low = transposed ? element(j, column, row) : element(j, row, column);
          const unsigned high =
              transposed ? element(j, column + 1, row) : element(j, row, column + 1);
          EXPECT_EQ(registers[static_cast<size_t>(t * 4 + j)], low | high << 16)
              << "lane " << t << ", register " << j << ", transposed " << transposed;
        }
      }
    }
  }
}

struct Product {
  bool is_bf16;
  MmaForm form;
};
class Mma : public testing::TestWithParam<Product> {};

uint16_t Bits(bool is_bf16, int value) {
  // Small integers are exact in both types.
  if (is_bf16) return ToBf16(static_cast<float>(value)).bits;
  if (value == 0) return 0;
  const int magnitude = std::abs(value);
  const int exponent = std::bit_width(static_cast<unsigned>(magnitude)) - 1;
  const unsigned mantissa = (static_cast<unsigned>(magnitude) << (10 - exponent)) & 0x3ff;
  return static_cast<uint16_t>((value < 0 ? 0x8000u : 0u) |
                               static_cast<unsigned>(exponent + 15) << 10 | mantissa);
}

// "Matrix fragments for mma.m16n8k16 with floating point type", element i of thread t:
//   A: row = groupID for i in {0,1,4,5}, else groupID + 8; column = 2 threadID + (i & 1), + 8 for i
//   >= 4 B: row = 2 threadID + (i & 1), + 8 for i >= 2; column = groupID C: row = groupID for i <
//   2, else + 8; column = 2 threadID + (i & 1)
TEST_P(Mma, LayoutAndSum) {
  if (NoDevice()) GTEST_SKIP() << "no GPU";
  const auto [is_bf16, form] = GetParam();
  constexpr int kA = kMmaDown * 16, kB = kMmaAcross * 8;
  Random random(7);
  std::vector<std::vector<int>> a(kA, std::vector<int>(16)), b(16, std::vector<int>(kB)),
      d(kA, std::vector<int>(kB));
  for (auto* matrix : {&a, &b, &d}) {
    for (auto& row : *matrix) {
      for (int& v : row) v = static_cast<int>(random.Below(17)) - 8;
    }
  }
  std::vector<unsigned> fa(kMmaDown * 32 * 4, 0), fb(kMmaAcross * 32 * 2, 0);
  std::vector<float> fd(kMmaDown * kMmaAcross * 32 * 4);
  const auto d_index = [](int m, int n, int t, int i) {
    return static_cast<size_t>(((m * kMmaAcross + n) * 32 + t) * 4 + i);
  };
  const auto d_place = [](int m, int n, int t, int i) {
    return std::pair{static_cast<size_t>(m * 16 + t / 4 + (i < 2 ? 0 : 8)),
                     static_cast<size_t>(n * 8 + t % 4 * 2 + (i & 1))};
  };
  for (int t = 0; t < 32; ++t) {
    const int group = t / 4, in_group = t % 4;
    for (int m = 0; m < kMmaDown; ++m) {
      for (int i = 0; i < 8; ++i) {
        const int row = group + (i == 0 || i == 1 || i == 4 || i == 5 ? 0 : 8);
        const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        const int value = a[static_cast<size_t>(m * 16 + row)][static_cast<size_t>(column)];
        fa[static_cast<size_t>((m * 32 + t) * 4 + i / 2)] |=
            static_cast<unsigned>(Bits(is_bf16, value)) << (16 * (i & 1));
      }
      for (int n = 0; n < kMmaAcross; ++n) {
        for (int i = 0; i < 4; ++i) {
          const auto [row, column] = d_place(m, n, t, i);
          fd[d_index(m, n, t, i)] = static_cast<float>(d[row][column]);
        }
      }
    }
    for (int n = 0; n < kMmaAcross; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0);
        const int value = b[static_cast<size_t>(row)][static_cast<size_t>(n * 8 + group)];
        fb[static_cast<size_t>((n * 32 + t) * 2 + i / 2)] |=
            static_cast<unsigned>(Bits(is_bf16, value)) << (16 * (i & 1));
      }
    }
  }
  const DeviceArray<unsigned> da(fa), db(fb);
  const DeviceArray<float> dd(fd);
  ASSERT_EQ(RunMma(is_bf16, form, da.data(), db.data(), dd.data()), cudaSuccess);
  const std::vector<float> result = dd.Read();
  for (int m = 0; m < kMmaDown; ++m) {
    for (int n = 0; n < kMmaAcross; ++n) {
      for (int t = 0; t < 32; ++t) {
        for (int i = 0; i < 4; ++i) {
          const auto [row, column] = d_place(m, n, t, i);
          int expected = d[row][column];
          for (size_t k = 0; k < 16; ++k) expected += a[row][k] * b[k][column];
          EXPECT_EQ(result[d_index(m, n, t, i)], static_cast<float>(expected));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TypesAndForms, Mma,
                         testing::Values(Product{true, MmaForm::kOne}, Product{true, MmaForm::kRow},
                                         Product{true, MmaForm::kGrid},
                                         Product{false, MmaForm::kOne},
                                         Product{false, MmaForm::kGrid}));

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Every half, and every float half way between two of them with its neighbours.
TEST(Conversions, RoundToNearestEven) {
  if (NoDevice()) GTEST_SKIP() << "no GPU";
  std::vector<float> values = {0.0f, -0.0f, kInf, -kInf, kNan, 1e30f, -1e-30f, 65519.9f, 65520.0f};
  for (unsigned bits = 0; bits < 0x7c00; bits += 7) {
    const float low = HalfToFloat(static_cast<uint16_t>(bits));
    const float high = bits == 0x7bff ? 65536.0f : HalfToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;
    for (float v : {low, middle, std::nextafter(middle, kInf), std::nextafter(middle, 0.0f)}) {
      values.push_back(bits % 2 == 0 ? v : -v);
    }
  }
  const int n = static_cast<int>(values.size());
  const DeviceArray<float> input(values), wide(values.size() * 4);
  const DeviceArray<uint16_t> narrow(values.size() * 4);
  ASSERT_EQ(RunConversions(input.data(), n, narrow.data(), wide.data()), cudaSuccess);
  const std::vector<uint16_t> bits = narrow.Read();
  const std::vector<float> floats = wide.Read();
  for (size_t i = 0; i < values.size(); ++i) {
    const float v = values[i];
    const bool nan = std::isnan(v);
    EXPECT_EQ(bits[i * 4], nan ? 0x7fff : ToBf16(v).bits) << v;
    EXPECT_EQ(bits[i * 4 + 2], bits[i * 4]);
    EXPECT_EQ(bits[i * 4 + 3], bits[i * 4 + 1]);
    if (nan) {
      EXPECT_EQ(bits[i * 4 + 1], 0x7fff);
      continue;
    }
    EXPECT_EQ(floats[i * 4], ToFloat(ToBf16(v)));
    EXPECT_EQ(floats[i * 4 + 2], -ToFloat(ToBf16(v)));
    EXPECT_EQ(floats[i * 4 + 3], -floats[i * 4 + 1]);
    // No half is nearer, and of two as near the even one was taken.
    const uint16_t half = bits[i * 4 + 1];
    if (std::abs(v) >= 65520.0f) {
      EXPECT_EQ(half & 0x7fff, 0x7c00) << v;
      continue;
    }
    const double error = std::abs(static_cast<double>(HalfToFloat(half)) - v);
    for (int step : {-1, 1}) {
      const auto other = static_cast<uint16_t>(half + step);
      if ((other & 0x7fff) >= 0x7c00) continue;
      const double other_error = std::abs(static_cast<double>(HalfToFloat(other)) - v);
      EXPECT_TRUE(error < other_error || (error == other_error && half % 2 == 0) ||
                  ((half & 0x7fff) == 0 && (other & 0x7fff) == 0))
          << v << " became " << half;
    }
  }
}

TEST(Functions, AgreeWithTheMathLibrary) {
  if (NoDevice()) GTEST_SKIP() << "no GPU";
  const std::vector<float> values = {0.25f, 1.0f, 3.5f, 17.0f, 1e-6f, 80.0f, kInf, kNan, -1.5f};
  const DeviceArray<float> input(values), output(values.size() * 2);
  ASSERT_EQ(RunFunctions(input.data(), static_cast<int>(values.size()), output.data()),
            cudaSuccess);
  const std::vector<float> results = output.Read();
  for (size_t i = 0; i < 6; ++i) {
    const float expected = std::exp2(values[i]);
    EXPECT_NEAR(results[i * 2], expected, 1e-5 * expected) << values[i];
    EXPECT_EQ(results[i * 2 + 1], 1.0f) << values[i];
  }
  EXPECT_EQ(results[6 * 2 + 1], 0.0f);
  EXPECT_EQ(results[7 * 2 + 1], 0.0f);
  EXPECT_EQ(results[8 * 2 + 1], 1.0f);
}

}  // namespace
}  // namespace ringfill::emulation_test
