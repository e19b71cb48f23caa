// 16-bit elements on the host, for the kernels' tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/float_types.h"
#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

inline const char* ElementName(Element type) {
  return type == Element::kF32 ? "f32" : type == Element::kBF16 ? "bf16" : "f16";
}

// IEEE half precision, rounded to nearest even; finite values that fit.
inline uint16_t HalfBits(float v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  const float magnitude = std::fabs(v);
  if (magnitude == 0.0f) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  // In units of the last of 10 bits after the point; a carry raises the exponent by itself.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<uint16_t>(sign + ((exponent + 14) << 10) + units);
}

// The bytes of `values` in `type`.
inline std::vector<std::byte> ToBytes(Element type, const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * ElementBytes(type));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == Element::kF32) {
      std::memcpy(out.data() + i * 4, &values[i], 4);
    } else {
      const uint16_t bits = type == Element::kBF16 ? ToBf16(values[i]).bits : HalfBits(values[i]);
      std::memcpy(out.data() + i * 2, &bits, 2);
    }
  }
  return out;
}

inline std::vector<float> FromBytes(Element type, const std::vector<std::byte>& bytes) {
  std::vector<float> out(bytes.size() / ElementBytes(type));
  for (size_t i = 0; i < out.size(); ++i) {
    if (type == Element::kF32) {
      std::memcpy(&out[i], bytes.data() + i * 4, 4);
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + i * 2, 2);
    out[i] = type == Element::kBF16 ? ToFloat(Bf16{bits}) : HalfToFloat(bits);
  }
  return out;
}

// `values` as they are after a round trip through `type`.
inline std::vector<float> Rounded(Element type, const std::vector<float>& values) {
  return FromBytes(type, ToBytes(type, values));
}

// Relative error of one rounding to `type`.
inline float Epsilon(Element type) {
  return type == Element::kF32 ? 1.2e-7f : type == Element::kBF16 ? 3.91e-3f : 4.89e-4f;
}

}  // namespace ringfill::gpu
