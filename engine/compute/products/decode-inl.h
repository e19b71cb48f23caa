// Internal to products/: decoders of groups of 32 weights into float vectors, one for each weight
// format. Included once for each instruction set (Highway's foreach_target).
#if defined(RINGFILL_ENGINE_COMPUTE_PRODUCTS_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFILL_ENGINE_COMPUTE_PRODUCTS_DECODE_INL_H_
#undef RINGFILL_ENGINE_COMPUTE_PRODUCTS_DECODE_INL_H_
#else
#define RINGFILL_ENGINE_COMPUTE_PRODUCTS_DECODE_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "engine/compute/products/weight_type.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfill {
namespace HWY_NAMESPACE {
#if HWY_CAP_GE256

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::Rebind<int32_t, F32>;
using U32 = hn::Rebind<uint32_t, F32>;
using VF = hn::Vec<F32>;

constexpr int kLanes = HWY_LANES(float);
constexpr int kGroup = 32;                 // weights that a decoder expands at a time
constexpr int kVectors = kGroup / kLanes;  // float vectors a group

// Lane 0 and 1 of what follows `p` as half floats. Reads 8 bytes, which every block has.
HWY_INLINE hn::Vec<hn::Full128<float>> LoadHalves(const uint8_t* HWY_RESTRICT p) {
  hwy::float16_t halves[4];
  std::memcpy(halves, p, sizeof(halves));
  return hn::PromoteTo(hn::Full128<float>(), hn::LoadU(hn::Full64<hwy::float16_t>(), halves));
}

// w = d * q + m for 32 nibbles q: the low ones of 16 bytes, then the high ones.
HWY_INLINE void DecodeNibbles(const uint8_t* HWY_RESTRICT nibbles, VF d, VF m,
                              VF (&out)[kVectors]) {
  const F32 df;
  const I32 di;
#if HWY_TARGET == HWY_AVX3
  // The permute uses the low 4 bits of an index only: no mask is needed.
  const VF table = hn::MulAdd(hn::Iota(df, 0.0f), d, m);
  const auto bytes = hn::PromoteTo(di, hn::LoadU(hn::Full128<uint8_t>(), nibbles));
  out[0] = VF{_mm512_permutexvar_ps(bytes.raw, table.raw)};
  out[1] = VF{_mm512_permutexvar_ps(hn::ShiftRight<4>(bytes).raw, table.raw)};
#else
  for (int half = 0; half < 2; ++half) {
    const auto bytes = hn::PromoteTo(di, hn::LoadU(hn::Full64<uint8_t>(), nibbles + 8 * half));
    const auto low = hn::ConvertTo(df, hn::And(bytes, hn::Set(di, 15)));
    const auto high = hn::ConvertTo(df, hn::ShiftRight<4>(bytes));
    out[half] = hn::MulAdd(low, d, m);
    out[2 + half] = hn::MulAdd(high, d, m);
  }
#endif
}

// Decoder<type>::Group(p, out) expands the 32 weights at `p` (kBytes of them) in order. kNibbles is
// where the nibbles of a block begin, 0 in formats that have none.
template <WeightType kType>
struct Decoder;

template <>
struct Decoder<WeightType::kQ4_0> {
  static constexpr size_t kBytes = 18;
  static constexpr size_t kNibbles = 2;
  static HWY_INLINE void Scales(const uint8_t* HWY_RESTRICT p, VF& d, VF& m) {
    d = hn::Set(F32(), hn::GetLane(LoadHalves(p)));
    m = hn::Mul(d, hn::Set(F32(), -8.0f));
  }
  static HWY_INLINE void Group(const uint8_t* HWY_RESTRICT p, VF (&out)[kVectors]) {
    VF d, m;
    Scales(p, d, m);
    DecodeNibbles(p + kNibbles, d, m, out);
  }
};

template <>
struct Decoder<WeightType::kQ4_1> {
  static constexpr size_t kBytes = 20;
  static constexpr size_t kNibbles = 4;
  static HWY_INLINE void Scales(const uint8_t* HWY_RESTRICT p, VF& d, VF& m) {
    const auto dm = LoadHalves(p);
    d = hn::Set(F32(), hn::GetLane(dm));
    m = hn::Set(F32(), hn::GetLane(hn::Broadcast<1>(dm)));
  }
  static HWY_INLINE void Group(const uint8_t* HWY_RESTRICT p, VF (&out)[kVectors]) {
    VF d, m;
    Scales(p, d, m);
    DecodeNibbles(p + kNibbles, d, m, out);
  }
};

template <>
struct Decoder<WeightType::kQ8_0> {
  static constexpr size_t kBytes = 34;
  static constexpr size_t kNibbles = 0;
  static HWY_INLINE void Group(const uint8_t* HWY_RESTRICT p, VF (&out)[kVectors]) {
    const hn::Rebind<int8_t, F32> di8;
    const VF d = hn::Set(F32(), hn::GetLane(LoadHalves(p)));
    const auto* q = reinterpret_cast<const int8_t*>(p + 2);
    for (int v = 0; v < kVectors; ++v) {
      const auto q32 = hn::PromoteTo(I32(), hn::LoadU(di8, q + v * kLanes));
      out[v] = hn::Mul(hn::ConvertTo(F32(), q32), d);
    }
  }
};

template <>
struct Decoder<WeightType::kF32> {
  static constexpr size_t kBytes = 128;
  static constexpr size_t kNibbles = 0;
  static HWY_INLINE void Group(const uint8_t* HWY_RESTRICT p, VF (&out)[kVectors]) {
    const hn::Repartition<uint8_t, F32> du8;
    for (int v = 0; v < kVectors; ++v) {
      out[v] = hn::BitCast(F32(), hn::LoadU(du8, p + v * kLanes * sizeof(float)));
    }
  }
};

template <>
struct Decoder<WeightType::kF16> {
  static constexpr size_t kBytes = 64;
  static constexpr size_t kNibbles = 0;
  static HWY_INLINE void Group(const uint8_t* HWY_RESTRICT p, VF (&out)[kVectors]) {
    const hn::Rebind<hwy::float16_t, F32> df16;
    const hn::Repartition<uint8_t, decltype(df16)> du8;
    for (int v = 0; v < kVectors; ++v) {
      const auto bytes = hn::LoadU(du8, p + v * kLanes * sizeof(uint16_t));
      out[v] = hn::PromoteTo(F32(), hn::BitCast(df16, bytes));
    }
  }
};

template <>
struct Decoder<WeightType::kBF16> {
  static constexpr size_t kBytes = 64;
  static constexpr size_t kNibbles = 0;
  static HWY_INLINE void Group(const uint8_t* HWY_RESTRICT p, VF (&out)[kVectors]) {
    const hn::Rebind<uint16_t, F32> du16;
    const hn::Repartition<uint8_t, decltype(du16)> du8;
    for (int v = 0; v < kVectors; ++v) {
      const auto bits = hn::BitCast(du16, hn::LoadU(du8, p + v * kLanes * sizeof(uint16_t)));
      out[v] = hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
    }
  }
};

// The bits of bfloat16, rounded to nearest even, NaN kept (ToBf16 of base/float_types.h).
HWY_INLINE hn::Vec<U32> RoundToBf16Bits(VF v) {
  const U32 du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  return hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
}

HWY_INLINE void StoreBf16(VF v, Bf16* HWY_RESTRICT out) {
  const hn::Rebind<uint16_t, F32> du16;
  const auto bits = hn::DemoteTo(du16, hn::BitCast(I32(), RoundToBf16Bits(v)));
  hn::StoreU(bits, du16, reinterpret_cast<uint16_t*>(out));
}
HWY_INLINE void StoreAs(VF v, float* HWY_RESTRICT out) { hn::StoreU(v, F32(), out); }
HWY_INLINE void StoreAs(VF v, Bf16* HWY_RESTRICT out) { StoreBf16(v, out); }

#if HWY_TARGET == HWY_AVX3
// DecodeNibbles to bfloat16: only the 16 values that a block can take are rounded.
HWY_INLINE void StoreNibbles(const uint8_t* HWY_RESTRICT nibbles, VF d, VF m,
                             Bf16* HWY_RESTRICT out) {
  const hn::Full256<uint16_t> du16;
  const auto rounded = RoundToBf16Bits(hn::MulAdd(hn::Iota(F32(), 0.0f), d, m));
  const __m256i table = _mm512_cvtepi32_epi16(rounded.raw);
  const auto bytes = hn::PromoteTo(du16, hn::LoadU(hn::Full128<uint8_t>(), nibbles));
  const __m256i low = _mm256_permutexvar_epi16(bytes.raw, table);
  const __m256i high = _mm256_permutexvar_epi16(hn::ShiftRight<4>(bytes).raw, table);
  hn::StoreU(hn::Vec256<uint16_t>{low}, du16, reinterpret_cast<uint16_t*>(out));
  hn::StoreU(hn::Vec256<uint16_t>{high}, du16, reinterpret_cast<uint16_t*>(out + 16));
}
#endif

template <WeightType kType, typename Out>
HWY_INLINE void StoreGroup(const uint8_t* HWY_RESTRICT p, Out* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<Out, Bf16> && Decoder<kType>::kNibbles != 0) {
    VF d, m;
    Decoder<kType>::Scales(p, d, m);
    return StoreNibbles(p + Decoder<kType>::kNibbles, d, m, out);
  }
#endif
  VF w[kVectors];
  Decoder<kType>::Group(p, w);
  for (int v = 0; v < kVectors; ++v) StoreAs(w[v], out + v * kLanes);
}

// Expands n weights to float or Bf16. REQUIRES: n is a multiple of the block.
template <WeightType kType, typename Out>
HWY_INLINE void DecodeRow(const uint8_t* HWY_RESTRICT p, int64_t n, Out* HWY_RESTRICT out) {
  using D = Decoder<kType>;
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup, p += D::kBytes) StoreGroup<kType>(p, out + i);
  if (i == n) return;
  // Only formats without blocks end inside a group.
  uint8_t last[D::kBytes] = {};
  Out expanded[kGroup];
  const size_t left = static_cast<size_t>(n - i);
  std::memcpy(last, p, left * (D::kBytes / kGroup));
  StoreGroup<kType>(last, expanded);
  std::memcpy(out + i, expanded, left * sizeof(Out));
}

#endif  // HWY_CAP_GE256
}  // namespace HWY_NAMESPACE
}  // namespace ringfill
HWY_AFTER_NAMESPACE();

#endif  // RINGFILL_ENGINE_COMPUTE_PRODUCTS_DECODE_INL_H_
