#include "engine/compute/products/elementwise.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/float_types.h"
#include "engine/compute/products/elementwise_kernels.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/products/weights_for_test.h"

namespace ringfill {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kLengths[] = {1, 7, 8, 15, 16, 31, 64, 100, 576, 1536};

std::vector<Bf16> Narrow(const std::vector<float>& v) {
  std::vector<Bf16> out;
  for (float x : v) out.push_back(ToBf16(x));
  return out;
}

class ElementwiseTest : public testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (GetParam() > DetectCpuIsa()) {
      GTEST_SKIP() << "this machine has no " << CpuIsaName(GetParam());
    }
  }
  const ElementwiseKernels& kernels_ = ElementwiseKernelsFor(GetParam());
};

TEST_P(ElementwiseTest, RmsNormEqualsDouble) {
  for (int64_t n : kLengths) {
    constexpr int64_t kRows = 3;
    std::vector<float> x = RandomFloats(kRows * n, 1);
    for (int64_t i = n; i < 2 * n; ++i) x[i] *= 1e-4f;  // where epsilon counts
    const std::vector<float> weight = RandomFloats(n, 2);
    std::vector<float> out(static_cast<size_t>(kRows * n) + 1, 99.0f);
    std::vector<Bf16> narrow(static_cast<size_t>(kRows * n) + 1, Bf16{99});
    kernels_.rms_norm(x.data(), weight.data(), 1e-5f, kRows, n, DType::kF32, out.data());
    kernels_.rms_norm(x.data(), weight.data(), 1e-5f, kRows, n, DType::kBF16, narrow.data());
    EXPECT_EQ(out.back(), 99.0f);
    EXPECT_EQ(narrow.back().bits, 99);
    for (int64_t r = 0; r < kRows; ++r) {
      double mean = 0;
      for (int64_t i = 0; i < n; ++i) {
        mean += static_cast<double>(x[r * n + i]) * x[r * n + i] / static_cast<double>(n);
      }
      for (int64_t i = r * n; i < (r + 1) * n; ++i) {
        const double want = x[i] * static_cast<double>(weight[i - r * n]) /
                            std::sqrt(mean + static_cast<double>(1e-5f));
        ASSERT_NEAR(out[i], want, 3e-7 * std::abs(want)) << "n " << n << " at " << i;
        ASSERT_EQ(narrow[i].bits, ToBf16(out[i]).bits) << "n " << n << " at " << i;
      }
    }
  }
}

TEST_P(ElementwiseTest, RmsNormOfLargeValuesDoesNotOverflow) {
  const std::vector<float> x(64, 1e30f), weight(64, 2.0f);
  std::vector<float> out(64);
  kernels_.rms_norm(x.data(), weight.data(), 1e-5f, 1, 64, DType::kF32, out.data());
  for (float v : out) EXPECT_FLOAT_EQ(v, 2.0f);
}

TEST_P(ElementwiseTest, AddInPlaceAddsEveryElement) {
  for (int64_t n : kLengths) {
    std::vector<float> x = RandomFloats(n + 1, 3);
    const std::vector<float> y = RandomFloats(n, 4), before = x;
    kernels_.add_in_place(x.data(), y.data(), n);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(x[i], before[i] + y[i]);
    EXPECT_EQ(x[n], before[n]) << "written past the end";
  }
}

double Silu(double v) { return v / (1 + std::exp(-v)); }

TEST_P(ElementwiseTest, SiluMulEqualsDouble) {
  for (int64_t n : kLengths) {
    std::vector<float> gate = RandomFloats(n, 5);
    const std::vector<float> up = RandomFloats(n, 6);
    for (float& g : gate) g *= 8;
    std::vector<float> out(static_cast<size_t>(n) + 1, 99.0f);
    kernels_.silu_mul(DType::kF32, gate.data(), up.data(), n, out.data());
    EXPECT_EQ(out.back(), 99.0f);
    for (int64_t i = 0; i < n; ++i) {
      const double want = Silu(gate[i]) * up[i];
      ASSERT_NEAR(out[i], want, 6e-7 * std::abs(want) + 1e-35) << gate[i];
    }
    const std::vector<Bf16> gate16 = Narrow(gate), up16 = Narrow(up);
    std::vector<Bf16> out16(static_cast<size_t>(n) + 1, Bf16{99});
    kernels_.silu_mul(DType::kBF16, gate16.data(), up16.data(), n, out16.data());
    EXPECT_EQ(out16.back().bits, 99);
    for (int64_t i = 0; i < n; ++i) {
      const double want = Silu(ToFloat(gate16[i])) * ToFloat(up16[i]);
      ASSERT_NEAR(ToFloat(out16[i]), want, std::abs(want) / 255 + 1e-35);
    }
  }
}

TEST_P(ElementwiseTest, SiluMulAtTheExtremes) {
  const std::vector<float> gate = {-1e30f, -1000, -200, -104, -89,   -88,   -0.0f,  0,
                                   1e-30f, 88,    104,  1000, 1e30f, 3e38f, -3e38f, 20};
  const std::vector<float> up(16, 1.0f);
  std::vector<float> out(16);
  kernels_.silu_mul(DType::kF32, gate.data(), up.data(), 16, out.data());
  for (int i = 0; i < 16; ++i) {
    const double want = gate[i] < -700 ? 0 : Silu(gate[i]);
    // Very negative gates: what is left is far below anything that matters.
    const double tiny = gate[i] < -80 ? std::abs(gate[i]) * 1e-38 : 0;
    EXPECT_NEAR(out[i], want, 6e-7 * std::abs(want) + tiny) << gate[i];
  }
  const float nan = kNan, one = 1;
  kernels_.silu_mul(DType::kF32, &nan, &one, 1, out.data());
  EXPECT_TRUE(std::isnan(out[0])) << "a NaN must stay visible";
}

TEST_P(ElementwiseTest, ConvertFloatsRoundsLikeToBf16) {
  for (int64_t n : kLengths) {
    std::vector<float> x = RandomFloats(n, 7);
    x[0] = kNan;
    x[static_cast<size_t>(n) / 2] = -kInf;
    x[static_cast<size_t>(n) - 1] = 3.4e38f;
    std::vector<Bf16> narrow(static_cast<size_t>(n) + 1, Bf16{99});
    std::vector<float> same(static_cast<size_t>(n) + 1, 99.0f);
    kernels_.convert_floats(x.data(), n, DType::kBF16, narrow.data());
    kernels_.convert_floats(x.data(), n, DType::kF32, same.data());
    EXPECT_EQ(narrow.back().bits, 99);
    EXPECT_EQ(same.back(), 99.0f);
    EXPECT_EQ(std::memcmp(same.data(), x.data(), static_cast<size_t>(n) * sizeof(float)), 0);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(narrow[i].bits, ToBf16(x[i]).bits) << x[i];
  }
}

TEST_P(ElementwiseTest, AllFiniteFindsOneBadValueAnywhere) {
  for (int64_t n : kLengths) {
    std::vector<float> x = RandomFloats(n, 8);
    x[0] = std::numeric_limits<float>::max();
    x.back() = std::numeric_limits<float>::denorm_min();
    EXPECT_TRUE(kernels_.all_finite(x.data(), n));
    for (float bad : {kInf, -kInf, kNan, -kNan}) {
      for (int64_t i = 0; i < n; i += std::max<int64_t>(1, n / 37)) {
        std::vector<float> with = x;
        with[i] = bad;
        ASSERT_FALSE(kernels_.all_finite(with.data(), n)) << bad << " at " << i << " of " << n;
      }
      x.push_back(bad);
      EXPECT_TRUE(kernels_.all_finite(x.data(), n)) << "what follows is not read";
      x.pop_back();
    }
  }
  EXPECT_TRUE(kernels_.all_finite(nullptr, 0));
}

TEST_P(ElementwiseTest, LogSumExpEqualsDouble) {
  for (int64_t n : {1, 5, 16, 17, 1000, 1025, 49152}) {
    for (float scale : {1.0f, 100.0f, 1e4f}) {
      std::vector<float> x = RandomFloats(n, 9);
      for (float& v : x) v *= scale;
      double max = -HUGE_VAL, sum = 0;
      int64_t argmax = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (x[i] > max) max = x[i], argmax = i;
      }
      for (float v : x) sum += std::exp(v - max);
      const double want = max + std::log(sum);
      const LogSumExpResult got = kernels_.log_sum_exp(x.data(), n);
      EXPECT_NEAR(got.log_sum_exp, want, 1e-6 + 6e-8 * std::abs(want)) << n << " x " << scale;
      EXPECT_EQ(got.max, max);
      EXPECT_EQ(got.argmax, argmax);
    }
  }
}

TEST_P(ElementwiseTest, LogSumExpOfAMillionSmallTerms) {
  // One running sum in float32 would be off by more than 1e-5.
  std::vector<float> x(1 << 20, -2.3f);
  x[7] = x[9] = 0;
  const LogSumExpResult got = kernels_.log_sum_exp(x.data(), 1 << 20);
  const double want = std::log(2 + ((1 << 20) - 2) * std::exp(static_cast<double>(-2.3f)));
  EXPECT_NEAR(got.log_sum_exp, want, 1.5e-6);
  EXPECT_EQ(got.argmax, 7) << "the first of equals";
}

TEST_P(ElementwiseTest, LogSumExpOfMaskedAndBrokenValues) {
  std::vector<float> x(40, -kInf);
  EXPECT_EQ(kernels_.log_sum_exp(x.data(), 40).log_sum_exp, -kInf);
  x[33] = 2.5f;
  LogSumExpResult got = kernels_.log_sum_exp(x.data(), 40);
  EXPECT_EQ(got.log_sum_exp, 2.5f);
  EXPECT_EQ(got.argmax, 33);
  for (int64_t at : {0, 20, 39}) {
    std::vector<float> broken = x;
    broken[at] = kNan;
    EXPECT_TRUE(std::isnan(kernels_.log_sum_exp(broken.data(), 40).log_sum_exp)) << at;
    broken[at] = kInf;
    got = kernels_.log_sum_exp(broken.data(), 40);
    EXPECT_EQ(got.log_sum_exp, kInf);
    EXPECT_EQ(got.argmax, at);
  }
}

TEST_P(ElementwiseTest, RotateTurnsPairsOfEveryHead) {
  for (int rope_dims : {0, 2, 10, 16, 24, 64, 128}) {
    const int head_dim = rope_dims + 6;
    constexpr int kHeads = 3;
    std::vector<float> x = RandomFloats(kHeads * head_dim, 10);
    const std::vector<float> before = x;
    std::vector<float> cos_sin(static_cast<size_t>(rope_dims) + 1);
    for (int i = 0; i < rope_dims; i += 2) {
      cos_sin[i] = std::cos(0.1f * static_cast<float>(i + 1));
      cos_sin[i + 1] = std::sin(0.1f * static_cast<float>(i + 1));
    }
    kernels_.rotate(cos_sin.data(), rope_dims, kHeads, head_dim, x.data());
    for (int h = 0; h < kHeads; ++h) {
      const float* from = &before[h * head_dim];
      const float* to = &x[h * head_dim];
      for (int i = 0; i < rope_dims; i += 2) {
        const double c = cos_sin[i], s = cos_sin[i + 1];
        ASSERT_NEAR(to[i], from[i] * c - from[i + 1] * s, 1e-6);
        ASSERT_NEAR(to[i + 1], from[i] * s + from[i + 1] * c, 1e-6);
      }
      for (int i = rope_dims; i < head_dim; ++i) ASSERT_EQ(to[i], from[i]) << "must not turn";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ElementwiseTest, testing::ValuesIn(kAllCpuIsas),
                         [](const auto& info) { return std::string(CpuIsaName(info.param)); });

TEST(RopeTest, AnglesAreExactInTheMillions) {
  Rope::Options options;
  options.head_dim = options.rope_dims = 64;
  options.base = 100000.0;
  const Rope rope(options);
  float cos_sin[64];
  for (int64_t position : {int64_t{0}, int64_t{1}, int64_t{3'000'000}, int64_t{16'777'217}}) {
    rope.Angles(position, cos_sin);
    for (int i = 0; i < 32; ++i) {
      const long double angle =
          static_cast<long double>(position) * std::pow(100000.0L, -2.0L * i / 64);
      EXPECT_NEAR(cos_sin[2 * i], std::cos(angle), 1e-7) << position << " pair " << i;
      EXPECT_NEAR(cos_sin[2 * i + 1], std::sin(angle), 1e-7) << position << " pair " << i;
    }
  }
  rope.Angles(3'000'000, cos_sin);
  EXPECT_NEAR(cos_sin[0], 0.4777606280773224, 1e-7);
  EXPECT_NEAR(cos_sin[1], -0.8784900581447479, 1e-7);
}

TEST(RopeTest, PositionScaleAndFactorsDivideTheAngle) {
  Rope::Options options;
  options.head_dim = 8;
  options.rope_dims = 4;
  options.position_scale = 0.25;
  options.factors = {1.0f, 8.0f};
  const Rope rope(options);
  float cos_sin[4];
  rope.Angles(1000, cos_sin);
  EXPECT_NEAR(cos_sin[0], std::cos(250.0), 1e-7);
  EXPECT_NEAR(cos_sin[1], std::sin(250.0), 1e-7);
  EXPECT_NEAR(cos_sin[2], std::cos(250.0 / 100 / 8), 1e-7);
  EXPECT_NEAR(cos_sin[3], std::sin(250.0 / 100 / 8), 1e-7);
}

TEST(RopeTest, ScoresDependOnDistanceOnly) {
  Rope::Options options;
  options.head_dim = options.rope_dims = 64;
  const Rope rope(options);
  const std::vector<float> q = RandomFloats(64, 11), k = RandomFloats(64, 12);
  const auto score = [&](int64_t q_position, int64_t k_position) {
    std::vector<float> a = q, b = k;
    float cos_sin[64];
    rope.Angles(q_position, cos_sin);
    rope.Apply(cos_sin, 1, a.data());
    rope.Angles(k_position, cos_sin);
    rope.Apply(cos_sin, 1, b.data());
    double sum = 0;
    for (int i = 0; i < 64; ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
  };
  EXPECT_NEAR(score(3'000'017, 3'000'000), score(17, 0), 2e-5);
  EXPECT_GT(std::abs(score(18, 0) - score(17, 0)), 1e-3);
}

TEST(ElementwiseDispatchTest, UsesTheBestSet) {
  const std::vector<float> x = RandomFloats(576, 13), weight = RandomFloats(576, 14);
  std::vector<float> best(576), named(576);
  RmsNorm(x.data(), weight.data(), 1e-5f, 1, 576, DType::kF32, best.data());
  ElementwiseKernelsFor(DetectCpuIsa())
      .rms_norm(x.data(), weight.data(), 1e-5f, 1, 576, DType::kF32, named.data());
  EXPECT_EQ(best, named);
  SiluMul(DType::kF32, x.data(), weight.data(), 576, best.data());
  EXPECT_NEAR(best[5], Silu(x[5]) * weight[5], 1e-6);
  AddInPlace(best.data(), x.data(), 576);
  EXPECT_NEAR(best[5], Silu(x[5]) * weight[5] + x[5], 1e-6);
  EXPECT_TRUE(AllFinite(best.data(), 576));
  EXPECT_EQ(LogSumExpOf(x.data(), 1).log_sum_exp, x[0]);
}

}  // namespace
}  // namespace ringfill
