#include "base/float_types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace ringfill {
namespace {

// The value of a binary float format from its fields, in double; NaN and infinities included.
double ValueOf(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + mantissa_bits)) & 1 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
}

void ExpectSame(float got, double expected, uint32_t bits) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(got)) << bits;
  } else {
    ASSERT_EQ(static_cast<double>(got), expected) << bits;
    ASSERT_EQ(std::signbit(got), std::signbit(expected)) << bits;
  }
}

TEST(HalfTest, AllValues) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    ExpectSame(HalfToFloat(static_cast<uint16_t>(bits)), ValueOf(bits, 5, 10), bits);
  }
}

TEST(Bf16Test, AllValuesToFloatAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = ToFloat(Bf16{static_cast<uint16_t>(bits)});
    ExpectSame(value, ValueOf(bits, 8, 7), bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(ToFloat(ToBf16(value)))) << bits;
    } else {
      ASSERT_EQ(ToBf16(value).bits, bits);
    }
  }
}

// Nearest of the two neighbours, the even one on a tie; beyond the largest by half a step:
// infinity.
TEST(Bf16Test, RoundsToNearestEven) {
  std::mt19937 random(3);
  for (uint32_t i = 0; i < 400000; ++i) {
    const uint32_t high = i < 131072 ? i / 2 : random() & 0xffff;
    const uint32_t low_cases[] = {0, 1, 0x1234, 0x7fff, 0x8000, 0x8001, 0xffff};
    const uint32_t low = low_cases[random() % 7];
    const float value = std::bit_cast<float>(high << 16 | low);
    if (!std::isfinite(value)) continue;
    const bool up = low > 0x8000 || (low == 0x8000 && (high & 1));
    ASSERT_EQ(ToBf16(value).bits, high + (up ? 1 : 0)) << std::hex << high << " " << low;
  }
}

TEST(Bf16Test, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToFloat(ToBf16(infinity)), infinity);
  EXPECT_EQ(ToFloat(ToBf16(-infinity)), -infinity);
  EXPECT_EQ(ToFloat(ToBf16(std::numeric_limits<float>::max())), infinity);
  // NaNs whose payload lies in the low half only must not become infinities.
  for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffc00000u}) {
    EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::bit_cast<float>(bits))))) << bits;
  }
}

}  // namespace
}  // namespace ringfill
