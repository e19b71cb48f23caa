#include "engine/compute/products/dequantize.h"

#include <cstring>

#include "base/check.h"
#include "engine/compute/products/highway_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compute/products/dequantize.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/compute/products/decode-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfill {
namespace HWY_NAMESPACE {
#if HWY_CAP_GE256

template <typename Out>
void DequantizeAs(WeightType type, const std::byte* row, int64_t n, Out* out) {
  const auto* p = reinterpret_cast<const uint8_t*>(row);
  switch (type) {
    case WeightType::kF32:
      return DecodeRow<WeightType::kF32>(p, n, out);
    case WeightType::kF16:
      return DecodeRow<WeightType::kF16>(p, n, out);
    case WeightType::kBF16:
      return DecodeRow<WeightType::kBF16>(p, n, out);
    case WeightType::kQ4_0:
      return DecodeRow<WeightType::kQ4_0>(p, n, out);
    case WeightType::kQ4_1:
      return DecodeRow<WeightType::kQ4_1>(p, n, out);
    case WeightType::kQ8_0:
      return DecodeRow<WeightType::kQ8_0>(p, n, out);
  }
}

#endif  // HWY_CAP_GE256
}  // namespace HWY_NAMESPACE
}  // namespace ringfill
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfill {
namespace {

uint16_t LoadU16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

void Store(float v, float* out) { *out = v; }
void Store(float v, Bf16* out) { *out = ToBf16(v); }

template <typename Out>
void DequantizeBlock(WeightType type, const std::byte* block, Out* out) {
  const float d = HalfToFloat(LoadU16(block));
  const float m = type == WeightType::kQ4_1 ? HalfToFloat(LoadU16(block + 2)) : -8.0f * d;
  if (type == WeightType::kQ8_0) {
    for (int i = 0; i < 32; ++i) {
      Store(d * static_cast<float>(static_cast<int8_t>(block[2 + i])), out + i);
    }
    return;
  }
  const std::byte* nibbles = block + (type == WeightType::kQ4_1 ? 4 : 2);
  for (int i = 0; i < 16; ++i) {
    const int byte = static_cast<int>(nibbles[i]);
    Store(d * static_cast<float>(byte & 15) + m, out + i);
    Store(d * static_cast<float>(byte >> 4) + m, out + 16 + i);
  }
}

template <typename Out>
void DequantizePlain(WeightType type, const std::byte* row, int64_t n, Out* out) {
  const WeightTypeInfo& info = GetWeightTypeInfo(type);
  RF_CHECK(n % info.block_weights == 0);
  if (info.needs_quantized_dot) {
    for (int64_t i = 0; i < n; i += info.block_weights, row += info.block_bytes) {
      DequantizeBlock(type, row, out + i);
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i, row += info.block_bytes) {
    float v;
    if (type == WeightType::kF32) {
      std::memcpy(&v, row, sizeof(v));
    } else {
      v = type == WeightType::kF16 ? HalfToFloat(LoadU16(row)) : ToFloat(Bf16{LoadU16(row)});
    }
    Store(v, out + i);
  }
}

}  // namespace

void DequantizeRowOn(CpuIsa isa, WeightType type, const std::byte* row, int64_t n, float* out) {
  RF_KERNEL(isa, DequantizeAs<float>, DequantizePlain<float>)(type, row, n, out);
}
void DequantizeRowOn(CpuIsa isa, WeightType type, const std::byte* row, int64_t n, Bf16* out) {
  RF_KERNEL(isa, DequantizeAs<Bf16>, DequantizePlain<Bf16>)(type, row, n, out);
}

void DequantizeRow(WeightType type, const std::byte* row, int64_t n, float* out) {
  DequantizeRowOn(DetectCpuIsa(), type, row, n, out);
}
void DequantizeRow(WeightType type, const std::byte* row, int64_t n, Bf16* out) {
  DequantizeRowOn(DetectCpuIsa(), type, row, n, out);
}

}  // namespace ringfill
#endif  // HWY_ONCE
