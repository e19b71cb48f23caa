#include "engine/compute/products/elementwise_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/float_types.h"
#include "engine/compute/products/highway_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compute/products/elementwise_kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/compute/products/decode-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfill {
namespace HWY_NAMESPACE {
#if HWY_CAP_GE256

using F64 = hn::Repartition<double, F32>;
using VD = hn::Vec<F64>;

HWY_INLINE VF LoadAs(const float* p) { return hn::LoadU(F32(), p); }
HWY_INLINE VF LoadAs(const Bf16* p) {
  const hn::Rebind<uint16_t, F32> du16;
  const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
}

// The lanes of v, in double, added pairwise.
HWY_INLINE VD HalvesInDouble(VF v) {
  const hn::Half<F32> half;
  return hn::Add(hn::PromoteTo(F64(), hn::LowerHalf(half, v)),
                 hn::PromoteTo(F64(), hn::UpperHalf(half, v)));
}
HWY_INLINE double SumOf(VD v) { return hn::GetLane(hn::SumOfLanes(F64(), v)); }

// out[i] = op(a[i], b[i]), a vector at a time; the last elements go through padded copies. `out`
// may be `a` or `b`.
template <typename In, typename Out, typename Op>
HWY_INLINE void ForEachVector(const In* a, const In* b, int64_t n, Out* out, const Op& op) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreAs(op(LoadAs(a + i), LoadAs(b + i)), out + i);
  if (i == n) return;
  const size_t left = static_cast<size_t>(n - i);
  In last_a[kLanes] = {}, last_b[kLanes] = {};
  Out last_out[kLanes];
  std::memcpy(last_a, a + i, left * sizeof(In));
  std::memcpy(last_b, b + i, left * sizeof(In));
  StoreAs(op(LoadAs(last_a), LoadAs(last_b)), last_out);
  std::memcpy(out + i, last_out, left * sizeof(Out));
}

double SumOfSquares(const float* x, int64_t n) {
  VD sum[2] = {hn::Zero(F64()), hn::Zero(F64())};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = LoadAs(x + i);
    const hn::Half<F32> half;
    const VD low = hn::PromoteTo(F64(), hn::LowerHalf(half, v));
    const VD high = hn::PromoteTo(F64(), hn::UpperHalf(half, v));
    sum[0] = hn::MulAdd(low, low, sum[0]);
    sum[1] = hn::MulAdd(high, high, sum[1]);
  }
  double rest = 0;
  for (; i < n; ++i) rest += static_cast<double>(x[i]) * x[i];
  return SumOf(hn::Add(sum[0], sum[1])) + rest;
}

template <typename Out>
HWY_INLINE void RmsNormOf(const float* x, const float* weight, float epsilon, int64_t rows,
                          int64_t n, Out* out) {
  for (int64_t r = 0; r < rows; ++r, x += n, out += n) {
    const double mean = SumOfSquares(x, n) / static_cast<double>(n);
    const VF scale = hn::Set(F32(), static_cast<float>(1.0 / std::sqrt(mean + epsilon)));
    ForEachVector(x, weight, n, out,
                  [&](VF v, VF w) HWY_ATTR { return hn::Mul(hn::Mul(v, scale), w); });
  }
}

void RmsNormAs(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
               DType out_type, void* out) {
  if (out_type == DType::kF32) {
    return RmsNormOf(x, weight, epsilon, rows, n, static_cast<float*>(out));
  }
  RmsNormOf(x, weight, epsilon, rows, n, static_cast<Bf16*>(out));
}

void AddInPlaceAs(float* x, const float* y, int64_t n) {
  ForEachVector(x, y, n, x, [](VF a, VF b) HWY_ATTR { return hn::Add(a, b); });
}

template <typename T>
HWY_INLINE void SiluMulOf(const T* gate, const T* up, int64_t n, T* out) {
  ForEachVector(gate, up, n, out, [](VF g, VF u) HWY_ATTR {
    // Past 88, e^-g leaves float32 and Highway's exp its range.
    const VF power = hn::Min(hn::Neg(g), hn::Set(F32(), 88.0f));
    const VF one = hn::Set(F32(), 1.0f);
    return hn::Mul(hn::Div(g, hn::Add(one, hn::Exp(F32(), power))), u);
  });
}

void SiluMulAs(DType type, const void* gate, const void* up, int64_t n, void* out) {
  if (type == DType::kF32) {
    return SiluMulOf(static_cast<const float*>(gate), static_cast<const float*>(up), n,
                     static_cast<float*>(out));
  }
  SiluMulOf(static_cast<const Bf16*>(gate), static_cast<const Bf16*>(up), n,
            static_cast<Bf16*>(out));
}

void ConvertFloatsAs(const float* x, int64_t n, DType type, void* out) {
  if (type == DType::kF32) {
    if (n > 0) std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  DecodeRow<WeightType::kF32>(reinterpret_cast<const uint8_t*>(x), n, static_cast<Bf16*>(out));
}

bool AllFiniteAs(const float* x, int64_t n) {
  // The bits of what is not finite, without the sign, are the largest.
  const auto magnitude = hn::Set(U32(), 0x7fffffff);
  auto largest = hn::Zero(U32());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    largest = hn::Max(largest, hn::And(hn::BitCast(U32(), LoadAs(x + i)), magnitude));
  }
  for (; i < n; ++i) {
    if (!std::isfinite(x[i])) return false;
  }
  return hn::GetLane(hn::MaxOfLanes(U32(), largest)) < 0x7f800000u;
}

float MaxOf(const float* x, int64_t n) {
  VF max = hn::Set(F32(), x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) max = hn::Max(max, LoadAs(x + i));
  float out = hn::GetLane(hn::MaxOfLanes(F32(), max));
  for (; i < n; ++i) out = std::max(out, x[i]);
  return out;
}

int64_t FirstEqual(const float* x, int64_t n, float value) {
  const VF wanted = hn::Set(F32(), value);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const intptr_t lane = hn::FindFirstTrue(F32(), hn::Eq(LoadAs(x + i), wanted));
    if (lane >= 0) return i + lane;
  }
  while (i + 1 < n && x[i] != value) ++i;
  return i;
}

LogSumExpResult LogSumExpAs(const float* x, int64_t n) {
  constexpr int64_t kBlock = 64 * kLanes;  // float32 partial sums stay this short
  const float max = MaxOf(x, n);
  const VF shift = hn::Set(F32(), max);
  VD sum = hn::Zero(F64());
  auto nan = hn::Zero(F32());
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    VF partial = hn::Zero(F32());
    for (int64_t i = begin; i < end; i += kLanes) {
      float last[kLanes];
      const float* p = x + i;
      if (i + kLanes > end) {
        std::fill(last, last + kLanes, -std::numeric_limits<float>::infinity());
        std::memcpy(last, p, static_cast<size_t>(end - i) * sizeof(float));
        p = last;
      }
      const VF v = LoadAs(p);
      nan = hn::Or(nan, hn::VecFromMask(F32(), hn::IsNaN(v)));
      partial = hn::Add(partial, hn::Exp(F32(), hn::Sub(v, shift)));
    }
    sum = hn::Add(sum, HalvesInDouble(partial));
  }
  if (!hn::AllFalse(U32(), hn::Ne(hn::BitCast(U32(), nan), hn::Zero(U32())))) {
    const float none = std::numeric_limits<float>::quiet_NaN();
    return {none, none, 0};
  }
  if (!std::isfinite(max)) return {max, max, FirstEqual(x, n, max)};
  const double total = static_cast<double>(max) + std::log(SumOf(sum));
  return {static_cast<float>(total), max, FirstEqual(x, n, max)};
}

void RotateAs(const float* cos_sin, int rope_dims, int heads, int head_dim, float* x) {
  const F32 df;
  // The sign bit in even lanes: those take -sin.
  const VF even_sign = hn::OddEven(hn::Zero(df), hn::Set(df, -0.0f));
  int i = 0;
  for (; i + kLanes <= rope_dims; i += kLanes) {
    const VF angles = hn::LoadU(df, cos_sin + i);
    const VF cosine = hn::DupEven(angles);
    const VF sine = hn::Xor(hn::DupOdd(angles), even_sign);
    for (int h = 0; h < heads; ++h) {
      float* pairs = x + static_cast<ptrdiff_t>(h) * head_dim + i;
      const VF v = hn::LoadU(df, pairs);
      hn::StoreU(hn::MulAdd(v, cosine, hn::Mul(hn::Reverse2(df, v), sine)), df, pairs);
    }
  }
  for (; i < rope_dims; i += 2) {
    for (int h = 0; h < heads; ++h) {
      float* pair = x + static_cast<ptrdiff_t>(h) * head_dim + i;
      const float even = pair[0], odd = pair[1];
      pair[0] = even * cos_sin[i] - odd * cos_sin[i + 1];
      pair[1] = even * cos_sin[i + 1] + odd * cos_sin[i];
    }
  }
}

const ElementwiseKernels kElementwise = {RmsNormAs,   AddInPlaceAs, SiluMulAs, ConvertFloatsAs,
                                         AllFiniteAs, LogSumExpAs,  RotateAs};

#endif  // HWY_CAP_GE256
}  // namespace HWY_NAMESPACE
}  // namespace ringfill
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfill {
namespace {

float Load(const float* p) { return *p; }
float Load(const Bf16* p) { return ToFloat(*p); }
void Store(float v, float* out) { *out = v; }
void Store(float v, Bf16* out) { *out = ToBf16(v); }

// Calls f with `p` as a pointer to elements of `type`.
template <typename F>
void WithElements(DType type, void* p, const F& f) {
  if (type == DType::kF32) return f(static_cast<float*>(p));
  f(static_cast<Bf16*>(p));
}

void RmsNormPlain(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
                  DType out_type, void* out) {
  WithElements(out_type, out, [&](auto* y) {
    for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
      const double mean = squares / static_cast<double>(n);
      const float scale = static_cast<float>(1.0 / std::sqrt(mean + epsilon));
      for (int64_t i = 0; i < n; ++i) Store(x[i] * scale * weight[i], y + i);
    }
  });
}

void AddInPlacePlain(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void SiluMulPlain(DType type, const void* gate, const void* up, int64_t n, void* out) {
  WithElements(type, out, [&](auto* y) {
    const auto* g = static_cast<decltype(y)>(const_cast<void*>(gate));
    const auto* u = static_cast<decltype(y)>(const_cast<void*>(up));
    for (int64_t i = 0; i < n; ++i) {
      const float v = Load(g + i);
      Store(v / (1.0f + std::exp(-v)) * Load(u + i), y + i);
    }
  });
}

void ConvertFloatsPlain(const float* x, int64_t n, DType type, void* out) {
  WithElements(type, out, [&](auto* y) {
    for (int64_t i = 0; i < n; ++i) Store(x[i], y + i);
  });
}

bool AllFinitePlain(const float* x, int64_t n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

LogSumExpResult LogSumExpPlain(const float* x, int64_t n) {
  int64_t argmax = 0;
  double sum = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (x[i] > x[argmax]) argmax = i;
  }
  const float max = x[argmax];
  if (std::any_of(x, x + n, [](float v) { return std::isnan(v); })) {
    const float none = std::numeric_limits<float>::quiet_NaN();
    return {none, none, 0};
  }
  if (!std::isfinite(max)) return {max, max, argmax};
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - max);
  return {static_cast<float>(max + std::log(sum)), max, argmax};
}

void RotatePlain(const float* cos_sin, int rope_dims, int heads, int head_dim, float* x) {
  for (int h = 0; h < heads; ++h, x += head_dim) {
    for (int i = 0; i < rope_dims; i += 2) {
      const float c = cos_sin[i], s = cos_sin[i + 1];
      const float even = x[i], odd = x[i + 1];
      x[i] = even * c - odd * s;
      x[i + 1] = even * s + odd * c;
    }
  }
}

const ElementwiseKernels kElementwisePlain = {RmsNormPlain,       AddInPlacePlain, SiluMulPlain,
                                              ConvertFloatsPlain, AllFinitePlain,  LogSumExpPlain,
                                              RotatePlain};

}  // namespace

const ElementwiseKernels& ElementwiseKernelsFor(CpuIsa isa) {
  return *RF_KERNEL(isa, kElementwise, kElementwisePlain);
}

}  // namespace ringfill
#endif  // HWY_ONCE
