#include "tests/testing/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "base/check.h"
#include "base/float_types.h"

namespace ringfill {
namespace {

constexpr size_t kBlock = 32;

void Put16(std::vector<std::byte>& out, uint16_t v) {
  out.push_back(static_cast<std::byte>(v & 0xff));
  out.push_back(static_cast<std::byte>(v >> 8));
}

int RoundTo(float v, int low, int high) {
  return std::clamp(static_cast<int>(std::lrintf(v)), low, high);
}

void PutNibbles(std::vector<std::byte>& out, const int (&q)[kBlock]) {
  for (size_t i = 0; i < kBlock / 2; ++i) {
    out.push_back(static_cast<std::byte>(q[i] | (q[i + kBlock / 2] << 4)));
  }
}

void PutQ4_0(std::vector<std::byte>& out, std::span<const float> x) {
  float extreme = 0;
  for (float v : x) {
    if (std::fabs(v) > std::fabs(extreme)) extreme = v;
  }
  const float scale = extreme / -8;
  int q[kBlock];
  for (size_t i = 0; i < kBlock; ++i) q[i] = scale == 0 ? 8 : RoundTo(x[i] / scale, -8, 7) + 8;
  Put16(out, FloatToHalf(scale));
  PutNibbles(out, q);
}

void PutQ4_1(std::vector<std::byte>& out, std::span<const float> x) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float scale = (*high - *low) / 15;
  int q[kBlock];
  for (size_t i = 0; i < kBlock; ++i) q[i] = scale == 0 ? 0 : RoundTo((x[i] - *low) / scale, 0, 15);
  Put16(out, FloatToHalf(scale));
  Put16(out, FloatToHalf(*low));
  PutNibbles(out, q);
}

void PutQ8_0(std::vector<std::byte>& out, std::span<const float> x) {
  float largest = 0;
  for (float v : x) largest = std::max(largest, std::fabs(v));
  const float scale = largest / 127;
  Put16(out, FloatToHalf(scale));
  for (float v : x) {
    const int q = scale == 0 ? 0 : RoundTo(v / scale, -127, 127);
    out.push_back(static_cast<std::byte>(static_cast<int8_t>(q)));
  }
}

void PutFloat(std::vector<std::byte>& out, float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  Put16(out, static_cast<uint16_t>(bits));
  Put16(out, static_cast<uint16_t>(bits >> 16));
}

}  // namespace

uint16_t FloatToHalf(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(v);
  if (std::isnan(v)) return sign | 0x7e00;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) {
    return sign | static_cast<uint16_t>(std::lrintf(magnitude * 0x1p24f));
  }
  const uint32_t magnitude_bits = bits & 0x7fffffff;
  const uint32_t rounded = magnitude_bits + 0xfff + ((magnitude_bits >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}

std::vector<std::byte> EncodeWeights(WeightType type, const std::vector<float>& values) {
  std::vector<std::byte> out;
  const bool blocks =
      type == WeightType::kQ4_0 || type == WeightType::kQ4_1 || type == WeightType::kQ8_0;
  RF_CHECK(!blocks || values.size() % kBlock == 0);
  const size_t step = blocks ? kBlock : 1;
  for (size_t i = 0; i < values.size(); i += step) {
    const std::span<const float> x(values.data() + i, step);
    switch (type) {
      case WeightType::kF32:
        PutFloat(out, x[0]);
        break;
      case WeightType::kF16:
        Put16(out, FloatToHalf(x[0]));
        break;
      case WeightType::kBF16:
        Put16(out, ToBf16(x[0]).bits);
        break;
      case WeightType::kQ4_0:
        PutQ4_0(out, x);
        break;
      case WeightType::kQ4_1:
        PutQ4_1(out, x);
        break;
      case WeightType::kQ8_0:
        PutQ8_0(out, x);
        break;
    }
  }
  return out;
}

uint32_t GgufTypeId(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 0;
    case WeightType::kF16:
      return 1;
    case WeightType::kQ4_0:
      return 2;
    case WeightType::kQ4_1:
      return 3;
    case WeightType::kQ8_0:
      return 8;
    case WeightType::kBF16:
      return 30;
  }
  RF_CHECK(false);
}

}  // namespace ringfill
