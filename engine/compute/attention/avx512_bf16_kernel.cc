// Compiled for AVX-512 with bf16 and reached only on machines that have it. Everything here is
// file-local and calls no inline function of another header, so that no code for that set can be
// linked into other files.
#include <immintrin.h>

#include "engine/compute/attention/group_pass.h"

#if defined(__clang__)
#define RF_UNROLL _Pragma("unroll")
#else
#define RF_UNROLL _Pragma("GCC unroll 8")
#endif
#define RF_INLINE inline __attribute__((always_inline))

namespace ringfill {
namespace {

// 6 rows x 4 vectors of accumulators, 4 vectors of keys and a broadcast fill the registers.
constexpr int kTileVectors = 4;
constexpr ptrdiff_t kWordBytes = 4;
constexpr ptrdiff_t kVectorBytes = 64;
constexpr int kPairsPerSlice = kSliceTokens / 2;
constexpr float kNegInf = -__builtin_inff();

RF_INLINE __m512bh LoadWords(const std::byte* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}

RF_INLINE __m512bh Broadcast(const uint32_t* p) {
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(*p)));
}

// 2^x by a minimax cubic on the fraction, relative error 7.5e-5; 0 at -inf, NaN at NaN.
RF_INLINE __m512 Exp2(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  __m512 p = _mm512_set1_ps(0.0780245226f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.226067155f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69583354f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999925219f));
  return _mm512_scalef_ps(p, x);
}

// Lanes of the slice that begins at key `first` which hold keys below `end`.
RF_INLINE uint32_t LanesBelow(int end, int first) {
  const int n = end - first;
  if (n >= kSliceTokens) return 0xffff;
  return n <= 0 ? 0 : (1u << n) - 1;
}

// Scores of R rows against N slices, into `group.scores`; the rows' running maxima into `max`.
template <int R, int N>
RF_INLINE void ScoreTile(const KvPass& pass, const RowGroup& group, int slice, __m512* max) {
  const std::byte* k[N];
  __m512 acc[R][N];
  RF_UNROLL for (int j = 0; j < N; ++j) k[j] = pass.k[slice + j];
  RF_UNROLL for (int r = 0; r < R; ++r) {
    RF_UNROLL for (int j = 0; j < N; ++j) acc[r][j] = _mm512_setzero_ps();
  }
  const auto* q = static_cast<const uint32_t*>(group.q);
  const ptrdiff_t k_step = pass.page_tokens * kWordBytes;
  const ptrdiff_t k_end = k_step * (pass.head_dim / 2);
  for (ptrdiff_t at = 0; at < k_end; at += k_step, q += R) {
    __m512bh key[N];
    RF_UNROLL for (int j = 0; j < N; ++j) key[j] = LoadWords(k[j] + at);
    RF_UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh query = Broadcast(q + r);
      RF_UNROLL for (int j = 0; j < N; ++j) {
        acc[r][j] = _mm512_dpbf16_ps(acc[r][j], query, key[j]);
      }
    }
  }
  const int first = slice * kSliceTokens;
  if (group.seen[0] < first + N * kSliceTokens || first < group.skip) {
    RF_UNROLL for (int r = 0; r < R; ++r) {
      RF_UNROLL for (int j = 0; j < N; ++j) {
        const int key = first + j * kSliceTokens;
        const auto seen =
            static_cast<__mmask16>(LanesBelow(group.seen[r], key) & ~LanesBelow(group.skip, key));
        acc[r][j] = _mm512_mask_blend_ps(seen, _mm512_set1_ps(kNegInf), acc[r][j]);
      }
    }
  }
  RF_UNROLL for (int r = 0; r < R; ++r) {
    __m512 m = max[r];
    RF_UNROLL for (int j = 0; j < N; ++j) {
      m = _mm512_max_ps(m, acc[r][j]);
      _mm512_store_ps(group.scores + r * kScoreStride + first + j * kSliceTokens, acc[r][j]);
    }
    max[r] = m;
  }
}

// Turns a row's scores into bf16 probabilities relative to `max`, in place: the bf16 row begins
// where the float row did. Returns their float sum.
RF_INLINE float Exponentiate(float* scores, int slices, float max) {
  auto* out = reinterpret_cast<std::byte*>(scores);
  const __m512 shift = _mm512_set1_ps(max);
  __m512 even_sum = _mm512_setzero_ps();
  __m512 odd_sum = _mm512_setzero_ps();
  for (int s = 0; s < slices; s += 2) {
    const float* in = scores + s * kSliceTokens;
    const __m512 even = Exp2(_mm512_sub_ps(_mm512_load_ps(in), shift));
    even_sum = _mm512_add_ps(even_sum, even);
    __m512 odd = _mm512_setzero_ps();
    if (s + 1 < slices) {
      odd = Exp2(_mm512_sub_ps(_mm512_load_ps(in + kSliceTokens), shift));
      odd_sum = _mm512_add_ps(odd_sum, odd);
    }
    const __m512bh both = _mm512_cvtne2ps_pbh(odd, even);
    _mm512_store_si512(out + s * kVectorBytes / 2, reinterpret_cast<__m512i>(both));
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(even_sum, odd_sum));
}

// acc += weight * value for one half of a pair alone: the other one is unseen and may be NaN, for
// which its weight of 0 is not enough.
template <int R, int N>
RF_INLINE void AddHalf(const std::byte* v, const uint32_t* weights, uint32_t half,
                       __m512 (&acc)[R][N]) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(half));
  RF_UNROLL for (int j = 0; j < N; ++j) {
    const __m512i pair = _mm512_and_si512(_mm512_loadu_si512(v + j * kVectorBytes), mask);
    RF_UNROLL for (int r = 0; r < R; ++r) {
      acc[r][j] = _mm512_dpbf16_ps(acc[r][j], Broadcast(weights + r * kScoreStride),
                                   reinterpret_cast<__m512bh>(pair));
    }
  }
}

// acc = acc * scale + probabilities * values, for R rows and N vectors of head dimensions from
// `dim`.
template <int R, int N>
RF_INLINE void ValueTile(const KvPass& pass, const RowGroup& group, const float* scale, int dim) {
  __m512 acc[R][N];
  float* out = group.state.acc + dim;
  RF_UNROLL for (int r = 0; r < R; ++r) {
    const __m512 by = _mm512_set1_ps(scale[r]);
    RF_UNROLL for (int j = 0; j < N; ++j) {
      const float* in = out + static_cast<ptrdiff_t>(r) * pass.head_dim + j * kSliceTokens;
      acc[r][j] = _mm512_mul_ps(_mm512_loadu_ps(in), by);
    }
  }
  const ptrdiff_t v_step = pass.head_dim * kWordBytes;
  int keys = group.keys;
  int skip = group.skip;
  for (int slice = 0; keys > 0; ++slice, keys -= kSliceTokens, skip = 0) {
    int pair = skip / 2;
    const std::byte* v = pass.v[slice] + dim * kWordBytes + pair * v_step;
    const auto* p = reinterpret_cast<const uint32_t*>(group.scores) + slice * kPairsPerSlice + pair;
    const int pairs = keys >= kSliceTokens ? kPairsPerSlice : keys / 2;
    if (skip % 2 != 0) {
      AddHalf(v, p, 0xffff0000u, acc);
      ++pair, v += v_step, ++p;
    }
    for (; pair < pairs; ++pair, v += v_step, ++p) {
      __m512bh value[N];
      RF_UNROLL for (int j = 0; j < N; ++j) value[j] = LoadWords(v + j * kVectorBytes);
      RF_UNROLL for (int r = 0; r < R; ++r) {
        const __m512bh weight = Broadcast(p + r * kScoreStride);
        RF_UNROLL for (int j = 0; j < N; ++j) {
          acc[r][j] = _mm512_dpbf16_ps(acc[r][j], weight, value[j]);
        }
      }
    }
    if (keys < kSliceTokens && keys % 2 != 0) AddHalf(v, p, 0x0000ffffu, acc);
  }
  RF_UNROLL for (int r = 0; r < R; ++r) {
    RF_UNROLL for (int j = 0; j < N; ++j) {
      _mm512_storeu_ps(out + static_cast<ptrdiff_t>(r) * pass.head_dim + j * kSliceTokens,
                       acc[r][j]);
    }
  }
}

// Moves the row's maximum and sum on; returns what its accumulator is to be multiplied by.
RF_INLINE float UpdateRow(const RowGroup& group, int r, int slices, __m512 max_lanes) {
  float& max = group.state.max[r];
  float& sum = group.state.sum[r];
  const float seen_max = _mm512_reduce_max_ps(max_lanes);
  const float new_max = seen_max > max ? seen_max : max;
  // A row that has seen nothing yet has no maximum to subtract: all its probabilities are 0.
  const float shift = new_max == kNegInf ? 0.0f : new_max;
  const float scale = new_max == max ? 1.0f : __builtin_exp2f(max - shift);
  const float added = Exponentiate(group.scores + r * kScoreStride, slices, shift);
  max = new_max;
  sum = sum * scale + added;
  return scale;
}

template <int R>
void AttendRows(const KvPass& pass, const RowGroup& group) {
  const int slices = (group.keys + kSliceTokens - 1) / kSliceTokens;
  __m512 max[R];
  RF_UNROLL for (int r = 0; r < R; ++r) max[r] = _mm512_set1_ps(kNegInf);
  int slice = 0;
  for (; slice + kTileVectors <= slices; slice += kTileVectors) {
    ScoreTile<R, kTileVectors>(pass, group, slice, max);
  }
  for (; slice < slices; ++slice) ScoreTile<R, 1>(pass, group, slice, max);

  float scale[R];
  for (int r = 0; r < R; ++r) scale[r] = UpdateRow(group, r, slices, max[r]);

  const int vectors = pass.head_dim / kSliceTokens;
  int dim = 0;
  for (int left = vectors; left > 0;) {
    const int tiles = (left + kTileVectors - 1) / kTileVectors;
    const int n = (left + tiles - 1) / tiles;
    switch (n) {
      case 1:
        ValueTile<R, 1>(pass, group, scale, dim);
        break;
      case 2:
        ValueTile<R, 2>(pass, group, scale, dim);
        break;
      case 3:
        ValueTile<R, 3>(pass, group, scale, dim);
        break;
      default:
        ValueTile<R, 4>(pass, group, scale, dim);
        break;
    }
    left -= n;
    dim += n * kSliceTokens;
  }
}

void Attend(const KvPass& pass, const RowGroup& group) {
  switch (group.rows) {
    case 1:
      return AttendRows<1>(pass, group);
    case 2:
      return AttendRows<2>(pass, group);
    case 3:
      return AttendRows<3>(pass, group);
    case 4:
      return AttendRows<4>(pass, group);
    case 5:
      return AttendRows<5>(pass, group);
    default:
      return AttendRows<6>(pass, group);
  }
}

}  // namespace

GroupKernel Avx512Bf16GroupKernel() { return Attend; }

}  // namespace ringfill
