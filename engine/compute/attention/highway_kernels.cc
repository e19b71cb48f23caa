// Float kernels, one source compiled for AVX2 and for AVX-512. Which one runs follows the caller's
// CpuIsa and not Highway's own choice, so that tests reach each of them.
#include "engine/compute/attention/group_pass.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compute/attention/highway_kernels.cc"
#define HWY_COMPILE_ALL_ATTAINABLE
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include "hwy/highway.h"

#define RF_HAS_KERNELS (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)

#if RF_HAS_KERNELS
HWY_BEFORE_NAMESPACE();
namespace ringfill {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using Words = hn::Repartition<uint32_t, D>;

constexpr int kLanes = static_cast<int>(HWY_LANES(float));
constexpr int kSliceVectors = kSliceTokens / kLanes;
// Accumulators of 6 rows: 6 x 4 vectors of 32 registers, or 6 x 2 of 16.
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;
constexpr int kTileSlices = kTileVectors / kSliceVectors;
constexpr ptrdiff_t kWordBytes = 4;
constexpr ptrdiff_t kVectorBytes = kLanes * kWordBytes;
constexpr float kNegInf = -__builtin_inff();

// How a word of K or V becomes floats: itself, or the two halves of a bf16 pair.
struct FloatWords {
  static constexpr int kValues = 1;
  template <int kValue>
  static HWY_INLINE V Load(const std::byte* p) {
    return hn::LoadU(D(), reinterpret_cast<const float*>(p));
  }
};

struct Bf16PairWords {
  static constexpr int kValues = 2;
  template <int kValue>
  static HWY_INLINE V Load(const std::byte* p) {
    const auto words = hn::LoadU(Words(), reinterpret_cast<const uint32_t*>(p));
    if constexpr (kValue == 0) {
      return hn::BitCast(D(), hn::ShiftLeft<16>(words));
    } else {
      return hn::BitCast(D(), hn::And(words, hn::Set(Words(), 0xffff0000u)));
    }
  }
};

// 2^x for x <= 0 by a minimax polynomial on the rounded-off part, relative error 1e-7. Below -126
// the result is 0. NaN stays NaN: Max answers with its second operand then, and the power of two is
// multiplied in, since adding it to the bits could make a number of a NaN.
HWY_INLINE V Exp2(V x) {
  const D d;
  const Words words;
  const V least = hn::Set(d, -126.0f);
  // Adding it leaves the rounded x + 127 in the low bits.
  const V rounder = hn::Set(d, 0x1.8p23f + 127.0f);
  const V clamped = hn::Max(least, x);
  const V rounded = hn::Add(clamped, rounder);
  const V f = hn::Sub(clamped, hn::Sub(rounded, rounder));
  V p = hn::Set(d, 0.0013276472f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.00967554133f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555071327f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240221197f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693146967f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(words, rounded)));
  return hn::IfThenZeroElse(hn::Lt(x, least), hn::Mul(p, power));
}

// acc[r][j] += weight[r] * value[j] for one of the values of each word at `at` + offset.
template <class KvWords, int kValue, int R, int N>
HWY_INLINE void Accumulate(const std::byte* const* at, ptrdiff_t offset, const float* weights,
                           ptrdiff_t weight_stride, V (&acc)[R][N]) {
  V value[N];
  HWY_UNROLL(8)
  for (int j = 0; j < N; ++j) {
    value[j] = KvWords::template Load<kValue>(at[j / kSliceVectors] + offset +
                                              (j % kSliceVectors) * kVectorBytes);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    const V weight = hn::Set(D(), weights[r * weight_stride]);
    HWY_UNROLL(8)
    for (int j = 0; j < N; ++j) acc[r][j] = hn::MulAdd(weight, value[j], acc[r][j]);
  }
}

// The first `n` lanes; none below 0.
HWY_INLINE hn::Mask<D> LanesBelow(int n) {
  return hn::FirstN(D(), static_cast<size_t>(HWY_MIN(HWY_MAX(n, 0), kLanes)));
}

// Where the group's rows start or stop seeing within `vectors` vectors of stored scores from key
// `first`: the unseen ones become -inf, the others enter the rows' maxima. Out of line, so that the
// hot loops keep the registers.
HWY_NOINLINE void MaskScores(const RowGroup& group, int first, int vectors, V* max) {
  const D d;
  for (int r = 0; r < group.rows; ++r) {
    for (int j = 0; j < vectors; ++j) {
      const int key = first + j * kLanes;
      float* at = group.scores + r * kScoreStride + key;
      const auto seen = hn::AndNot(LanesBelow(group.skip - key), LanesBelow(group.seen[r] - key));
      const V scores = hn::IfThenElse(seen, hn::Load(d, at), hn::Set(d, kNegInf));
      hn::Store(scores, d, at);
      max[r] = hn::Max(max[r], scores);
    }
  }
}

// Scores of R rows against the slices from `slice` that make N vectors, into `group.scores`; the
// rows' running maxima into `max`.
template <class KvWords, int R, int N>
HWY_INLINE void ScoreTile(const KvPass& pass, const RowGroup& group, int slice, V* max) {
  const D d;
  const std::byte* k[N / kSliceVectors];
  V acc[R][N];
  for (int j = 0; j < N / kSliceVectors; ++j) k[j] = pass.k[slice + j];
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int j = 0; j < N; ++j) acc[r][j] = hn::Zero(d);
  }
  const auto* q = static_cast<const float*>(group.q);
  const ptrdiff_t k_step = pass.page_tokens * kWordBytes;
  const ptrdiff_t k_end = k_step * (pass.head_dim / KvWords::kValues);
  for (ptrdiff_t at = 0; at < k_end; at += k_step, q += R * KvWords::kValues) {
    Accumulate<KvWords, 0>(k, at, q, 1, acc);
    if constexpr (KvWords::kValues == 2) Accumulate<KvWords, 1>(k, at, q + R, 1, acc);
  }
  const int first = slice * kSliceTokens;
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int j = 0; j < N; ++j) {
      hn::Store(acc[r][j], d, group.scores + r * kScoreStride + first + j * kLanes);
    }
  }
  if (group.seen[0] < first + N * kLanes || first < group.skip) {
    MaskScores(group, first, N, max);
    return;
  }
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int j = 0; j < N; ++j) max[r] = hn::Max(max[r], acc[r][j]);
  }
}

// Turns a row's scores into probabilities relative to `max`, in place; returns their sum.
HWY_INLINE float Exponentiate(float* scores, int slices, float max) {
  const D d;
  const V shift = hn::Set(d, max);
  V sum = hn::Zero(d);
  for (int i = 0; i < slices * kSliceTokens; i += kLanes) {
    const V p = Exp2(hn::Sub(hn::Load(d, scores + i), shift));
    sum = hn::Add(sum, p);
    hn::Store(p, d, scores + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// acc = acc * scale + probabilities * values, for R rows and N vectors of head dimensions from
// `dim`.
template <class KvWords, int R, int N>
HWY_INLINE void ValueTile(const KvPass& pass, const RowGroup& group, const float* scale, int dim) {
  const D d;
  V acc[R][N];
  float* out = group.state.acc + dim;
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int j = 0; j < N; ++j) {
      acc[r][j] = hn::Mul(hn::LoadU(d, out + r * pass.head_dim + j * kLanes), hn::Set(d, scale[r]));
    }
  }
  const ptrdiff_t v_step = pass.head_dim * kWordBytes;
  int keys = group.keys;
  int skip = group.skip;
  for (int slice = 0; keys > 0; ++slice, keys -= kSliceTokens, skip = 0) {
    const std::byte* v[N / kSliceVectors];
    for (int j = 0; j < N / kSliceVectors; ++j) {
      v[j] = pass.v[slice] + (dim + j * kSliceTokens) * kWordBytes;
    }
    const int words = HWY_MIN(keys, kSliceTokens) / KvWords::kValues;
    int w = skip / KvWords::kValues;
    ptrdiff_t at = w * v_step;
    const float* p = group.scores + slice * kSliceTokens + w * KvWords::kValues;
    // Either half of a pair may be unseen, and then be NaN: a weight of 0 is not enough.
    if constexpr (KvWords::kValues == 2) {
      if (skip % 2 != 0) {
        Accumulate<KvWords, 1>(v, at, p + 1, kScoreStride, acc);
        ++w, at += v_step, p += 2;
      }
    }
    for (; w < words; ++w, at += v_step, p += KvWords::kValues) {
      Accumulate<KvWords, 0>(v, at, p, kScoreStride, acc);
      if constexpr (KvWords::kValues == 2) {
        Accumulate<KvWords, 1>(v, at, p + 1, kScoreStride, acc);
      }
    }
    if (KvWords::kValues == 2 && keys < kSliceTokens && keys % 2 != 0) {
      Accumulate<KvWords, 0>(v, at, p, kScoreStride, acc);
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int j = 0; j < N; ++j) {
      hn::StoreU(acc[r][j], d, out + r * pass.head_dim + j * kLanes);
    }
  }
}

// Moves the row's maximum and sum on; returns what its accumulator is to be multiplied by.
HWY_INLINE float UpdateRow(const RowGroup& group, int r, int slices, V max_lanes) {
  float& max = group.state.max[r];
  float& sum = group.state.sum[r];
  const float seen_max = hn::GetLane(hn::MaxOfLanes(D(), max_lanes));
  const float new_max = seen_max > max ? seen_max : max;
  // A row that has seen nothing yet has no maximum to subtract: all its probabilities are 0.
  const float shift = new_max == kNegInf ? 0.0f : new_max;
  const float scale = new_max == max ? 1.0f : __builtin_exp2f(max - shift);
  const float added = Exponentiate(group.scores + r * kScoreStride, slices, shift);
  max = new_max;
  sum = sum * scale + added;
  return scale;
}

template <class KvWords, int R>
void AttendRows(const KvPass& pass, const RowGroup& group) {
  const int slices = (group.keys + kSliceTokens - 1) / kSliceTokens;
  V max[R];
  for (int r = 0; r < R; ++r) max[r] = hn::Set(D(), kNegInf);
  int slice = 0;
  for (; slice + kTileSlices <= slices; slice += kTileSlices) {
    ScoreTile<KvWords, R, kTileVectors>(pass, group, slice, max);
  }
  for (; slice < slices; ++slice) ScoreTile<KvWords, R, kSliceVectors>(pass, group, slice, max);

  float scale[R];
  for (int r = 0; r < R; ++r) scale[r] = UpdateRow(group, r, slices, max[r]);

  constexpr int kTileDims = kTileVectors * kLanes;
  int dim = 0;
  for (; dim + kTileDims <= pass.head_dim; dim += kTileDims) {
    ValueTile<KvWords, R, kTileVectors>(pass, group, scale, dim);
  }
  for (; dim < pass.head_dim; dim += kSliceTokens) {
    ValueTile<KvWords, R, kSliceVectors>(pass, group, scale, dim);
  }
}

template <class KvWords>
void Attend(const KvPass& pass, const RowGroup& group) {
  switch (group.rows) {
    case 1:
      return AttendRows<KvWords, 1>(pass, group);
    case 2:
      return AttendRows<KvWords, 2>(pass, group);
    case 3:
      return AttendRows<KvWords, 3>(pass, group);
    case 4:
      return AttendRows<KvWords, 4>(pass, group);
    case 5:
      return AttendRows<KvWords, 5>(pass, group);
    default:
      return AttendRows<KvWords, 6>(pass, group);
  }
}

}  // namespace

GroupKernels HighwayKernels() { return {Attend<FloatWords>, Attend<Bf16PairWords>}; }

}  // namespace HWY_NAMESPACE
}  // namespace ringfill
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace ringfill {

GroupKernels Avx2GroupKernels() {
#if HWY_TARGETS & HWY_AVX2
  return N_AVX2::HighwayKernels();
#else
  return {nullptr, nullptr};
#endif
}

GroupKernels Avx512GroupKernels() {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::HighwayKernels();
#else
  return {nullptr, nullptr};
#endif
}

}  // namespace ringfill
#endif
