// Conversions between float and the two 16-bit storage types. Scalar; the vector versions live in
// engine/compute.
#pragma once

#include <bit>
#include <cstdint>

namespace ringfill {

// bfloat16 as raw bits. Rounds to nearest even; NaN stays NaN.
struct Bf16 {
  uint16_t bits = 0;
};

inline float ToFloat(Bf16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

inline Bf16 ToBf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}

// IEEE half precision from raw bits, subnormals included.
inline float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t biased = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (biased << 23) | (mantissa << 13));
}

}  // namespace ringfill
