// Stored weights made for tests, and a scalar decoder of them written apart from the library's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/compute/cpu_isa.h"
#include "engine/compute/products/weight_type.h"

namespace ringfill {

inline constexpr WeightType kAllWeightTypes[] = {WeightType::kF32,  WeightType::kF16,
                                                 WeightType::kBF16, WeightType::kQ4_0,
                                                 WeightType::kQ4_1, WeightType::kQ8_0};
inline constexpr CpuIsa kAllCpuIsas[] = {CpuIsa::kBaseline, CpuIsa::kAvx2, CpuIsa::kAvx512,
                                         CpuIsa::kAvx512Bf16};

inline std::string NameOf(WeightType type) { return std::string(GetWeightTypeInfo(type).name); }

inline std::vector<float> RandomFloats(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& v : out) v = normal(random);
  return out;
}

// The value of a half, by its definition.
inline double HalfValue(uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const int mantissa = h & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

// A finite half of magnitude about `size`.
inline uint16_t RandomHalf(std::mt19937& random, double size) {
  const int exponent = static_cast<int>(std::floor(std::log2(size))) + 15;
  const int sign = static_cast<int>(random() & 1);
  return static_cast<uint16_t>(sign << 15 | exponent << 10 | static_cast<int>(random() & 1023));
}

// [rows, cols] of random stored weights of size about 1, at an address that is only
// `misalignment` past a multiple of 64.
struct StoredWeights {
  StoredWeights(WeightType type, int64_t rows, int64_t cols, unsigned seed, size_t misalignment)
      : bytes(static_cast<size_t>(rows) * WeightRowBytes(type, cols) + 128) {
    const size_t past = reinterpret_cast<uintptr_t>(bytes.data()) % 64;
    std::byte* data = bytes.data() + (64 - past) + misalignment;
    matrix = {type, data, rows, cols};
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const WeightTypeInfo& info = GetWeightTypeInfo(type);
    const int64_t blocks = rows * cols / info.block_weights;
    for (int64_t b = 0; b < blocks; ++b, data += info.block_bytes) {
      for (size_t i = 0; i < info.block_bytes; ++i) data[i] = static_cast<std::byte>(random());
      const float value = normal(random);
      const uint16_t half = RandomHalf(random, type == WeightType::kQ8_0 ? 1.0 / 128 : 0.125);
      const uint16_t offset = RandomHalf(random, 1.0);
      const Bf16 bf16 = ToBf16(value);
      if (type == WeightType::kF32) std::memcpy(data, &value, 4);
      if (type == WeightType::kBF16) std::memcpy(data, &bf16.bits, 2);
      if (type == WeightType::kF16 || info.needs_quantized_dot) std::memcpy(data, &half, 2);
      if (type == WeightType::kQ4_1) std::memcpy(data + 2, &offset, 2);
    }
  }

  std::vector<std::byte> bytes;
  WeightMatrix matrix;
};

// w(r, c), from the block layouts as GGML documents them.
inline double WeightAt(const WeightMatrix& w, int64_t r, int64_t c) {
  const WeightTypeInfo& info = GetWeightTypeInfo(w.type);
  const int64_t block = (r * w.cols + c) / info.block_weights;
  const int i = static_cast<int>(c % info.block_weights);
  const auto* p = reinterpret_cast<const uint8_t*>(w.data) + block * info.block_bytes;
  const auto half = [&](int at) {
    return HalfValue(static_cast<uint16_t>(p[at] | p[at + 1] << 8));
  };
  const auto nibble = [&](int at) { return i < 16 ? p[at + i] % 16 : p[at + i - 16] / 16; };
  switch (w.type) {
    case WeightType::kF32: {
      float v;
      std::memcpy(&v, p, sizeof(v));
      return v;
    }
    case WeightType::kF16:
      return half(0);
    case WeightType::kBF16: {
      const uint32_t bits = static_cast<uint32_t>(p[0] | p[1] << 8) << 16;
      float v;
      std::memcpy(&v, &bits, sizeof(v));
      return v;
    }
    case WeightType::kQ4_0:
      return half(0) * (nibble(2) - 8);
    case WeightType::kQ4_1:
      return half(0) * nibble(4) + half(2);
    case WeightType::kQ8_0:
      return half(0) * (p[2 + i] < 128 ? p[2 + i] : p[2 + i] - 256);
  }
  return 0;
}

}  // namespace ringfill
