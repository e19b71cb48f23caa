#include "engine/compute/products/weight_type.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "engine/compute/products/dequantize.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/products/weights_for_test.h"

namespace ringfill {
namespace {

TEST(WeightTypeTest, TableAndGgufNumbersAgree) {
  for (WeightType type : kAllWeightTypes) {
    const WeightTypeInfo& info = GetWeightTypeInfo(type);
    EXPECT_EQ(info.type, type);
    EXPECT_EQ(WeightTypeFromGguf(info.gguf_id), type);
    EXPECT_EQ(GgufTypeName(info.gguf_id), info.name);
  }
  EXPECT_EQ(GetWeightTypeInfo(WeightType::kQ4_0).gguf_id, 2u);
  EXPECT_EQ(GetWeightTypeInfo(WeightType::kBF16).gguf_id, 30u);
  EXPECT_EQ(SupportedWeightTypes(), "F32, F16, BF16, Q4_0, Q4_1, Q8_0");
}

TEST(WeightTypeTest, NamesWhatIsNotSupported) {
  for (uint32_t id : {6u, 12u, 14u, 24u, 39u, 40u, 77u, std::numeric_limits<uint32_t>::max()}) {
    EXPECT_EQ(WeightTypeFromGguf(id), std::nullopt) << id;
  }
  EXPECT_EQ(GgufTypeName(6), "Q5_0");
  EXPECT_EQ(GgufTypeName(12), "Q4_K");
  EXPECT_EQ(GgufTypeName(14), "Q6_K");
  EXPECT_EQ(GgufTypeName(16), "IQ2_XXS");
  EXPECT_EQ(GgufTypeName(23), "IQ4_XS");
  EXPECT_EQ(GgufTypeName(28), "F64");
  EXPECT_EQ(GgufTypeName(29), "IQ1_M");
  EXPECT_EQ(GgufTypeName(35), "TQ2_0");
  EXPECT_EQ(GgufTypeName(39), "MXFP4");
  EXPECT_EQ(GgufTypeName(4), "type 4");  // withdrawn
  EXPECT_EQ(GgufTypeName(77), "type 77");
}

TEST(WeightTypeTest, RowBytesCountBlocks) {
  EXPECT_EQ(WeightRowBytes(WeightType::kF32, 3), 12u);
  EXPECT_EQ(WeightRowBytes(WeightType::kBF16, 3), 6u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ4_0, 64), 36u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ4_1, 576), 360u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ8_0, 576), 612u);
  // More than 32 bits can count.
  EXPECT_EQ(WeightRowBytes(WeightType::kF32, int64_t{1} << 33), size_t{1} << 35);
}

TEST(WeightTypeTest, MatrixRowsFollowEachOther) {
  const std::vector<std::byte> bytes(360 * 3);
  const WeightMatrix w = {WeightType::kQ4_1, bytes.data(), 3, 576};
  EXPECT_EQ(w.Row(0), bytes.data());
  EXPECT_EQ(w.Row(2), bytes.data() + 720);
}

class DequantizeTest : public testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (GetParam() > DetectCpuIsa()) {
      GTEST_SKIP() << "this machine has no " << CpuIsaName(GetParam());
    }
  }

  std::vector<float> Expand(WeightType type, const void* row, int64_t n) {
    std::vector<float> out(static_cast<size_t>(n) + 1, 99.0f);
    DequantizeRowOn(GetParam(), type, static_cast<const std::byte*>(row), n, out.data());
    EXPECT_EQ(out.back(), 99.0f) << "written past the end";
    out.pop_back();
    return out;
  }
};

TEST_P(DequantizeTest, HandMadeQ4_0Block) {
  uint8_t block[18] = {0x00, 0x38};  // d = 0.5
  for (int i = 0; i < 16; ++i) block[2 + i] = static_cast<uint8_t>(i | (15 - i) << 4);
  const std::vector<float> w = Expand(WeightType::kQ4_0, block, 32);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(w[i], 0.5f * static_cast<float>(i - 8));
    EXPECT_EQ(w[16 + i], 0.5f * static_cast<float>(7 - i));
  }
}

TEST_P(DequantizeTest, HandMadeQ4_1Block) {
  uint8_t block[20] = {0x00, 0x3c, 0x00, 0xc1};  // d = 1, m = -2.5
  for (int i = 0; i < 16; ++i) block[4 + i] = static_cast<uint8_t>(i | 3 << 4);
  const std::vector<float> w = Expand(WeightType::kQ4_1, block, 32);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(w[i], static_cast<float>(i) - 2.5f);
    EXPECT_EQ(w[16 + i], 0.5f);
  }
}

TEST_P(DequantizeTest, HandMadeQ8_0Block) {
  int8_t block[34] = {0x00, 0x40};  // d = 2
  for (int i = 0; i < 32; ++i) block[2 + i] = static_cast<int8_t>(8 * i - 128);
  block[33] = 127;
  const std::vector<float> w = Expand(WeightType::kQ8_0, block, 32);
  for (int i = 0; i < 31; ++i) EXPECT_EQ(w[i], static_cast<float>(16 * i - 256));
  EXPECT_EQ(w[31], 254.0f);
}

TEST_P(DequantizeTest, SubnormalScalesKeepTheirValue) {
  // d is the smallest half, 2^-24; m the largest subnormal one.
  uint8_t block[20] = {0x01, 0x00, 0xff, 0x03};
  for (int i = 0; i < 16; ++i) block[4 + i] = static_cast<uint8_t>(i);
  const std::vector<float> w = Expand(WeightType::kQ4_1, block, 32);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(w[i], std::ldexp(static_cast<float>(1023 + i), -24)) << i;
  }
  const uint16_t halves[] = {0x0001, 0x8001, 0x03ff, 0x0400, 0x0000, 0x7bff};
  const std::vector<float> plain = Expand(WeightType::kF16, halves, 6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(plain[i], HalfValue(halves[i])) << i;
}

TEST_P(DequantizeTest, EqualsScalarDecoderForEveryType) {
  for (WeightType type : kAllWeightTypes) {
    const StoredWeights stored(type, 3, 544, 11, 2);
    for (int64_t r = 0; r < 3; ++r) {
      const std::vector<float> w = Expand(type, stored.matrix.Row(r), 544);
      std::vector<Bf16> narrow(544);
      DequantizeRowOn(GetParam(), type, stored.matrix.Row(r), 544, narrow.data());
      for (int64_t c = 0; c < 544; ++c) {
        const float want = static_cast<float>(WeightAt(stored.matrix, r, c));
        ASSERT_EQ(w[c], want) << NameOf(type) << " row " << r << " at " << c;
        ASSERT_EQ(narrow[c].bits, ToBf16(w[c]).bits) << NameOf(type) << " row " << r << " at " << c;
      }
    }
  }
}

TEST_P(DequantizeTest, OddLengthsOfFormatsWithoutBlocks) {
  for (WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    for (int64_t n : {0, 1, 15, 31, 33, 63}) {
      const StoredWeights stored(type, 1, n, 12, 2);
      const std::vector<float> w = Expand(type, stored.matrix.Row(0), n);
      std::vector<Bf16> narrow(static_cast<size_t>(n) + 1, Bf16{99});
      DequantizeRowOn(GetParam(), type, stored.matrix.Row(0), n, narrow.data());
      EXPECT_EQ(narrow.back().bits, 99) << "written past the end";
      for (int64_t c = 0; c < n; ++c) {
        EXPECT_EQ(w[c], static_cast<float>(WeightAt(stored.matrix, 0, c)));
        EXPECT_EQ(narrow[c].bits, ToBf16(w[c]).bits);
      }
    }
  }
}

TEST_P(DequantizeTest, Bf16RoundsToEvenAndKeepsNan) {
  const uint32_t bits[] = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0x7f800000,
                           0xff800000, 0x7f800001, 0x7fffffff, 0x80000001, 0x00008000, 0x00018000};
  const uint16_t want[] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x7f80, 0x7f80,
                           0xff80, 0x7fc0, 0x7fff, 0x8000, 0x0000, 0x0002};
  Bf16 out[12];
  DequantizeRowOn(GetParam(), WeightType::kF32, reinterpret_cast<const std::byte*>(bits), 12, out);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(out[i].bits, want[i]) << std::hex << bits[i];
}

TEST_P(DequantizeTest, QuantisedValuesRoundTrip) {
  // Values on the grid of a block come back exactly.
  std::mt19937 random(13);
  uint8_t block[34] = {0x00, 0x2c};  // d = 2^-4
  float want[32];
  for (int i = 0; i < 32; ++i) {
    const int q = static_cast<int>(random() % 255) - 127;
    block[2 + i] = static_cast<uint8_t>(q);
    want[i] = static_cast<float>(q) / 16.0f;
  }
  const std::vector<float> w = Expand(WeightType::kQ8_0, block, 32);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(w[i], want[i]);
    EXPECT_EQ(static_cast<int8_t>(block[2 + i]), static_cast<int>(std::lround(w[i] * 16.0f)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DequantizeTest, testing::ValuesIn(kAllCpuIsas),
                         [](const auto& info) { return std::string(CpuIsaName(info.param)); });

}  // namespace
}  // namespace ringfill
