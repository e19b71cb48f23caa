#include "engine/compute/products/vector_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "engine/compute/products/dequantize.h"
#include "engine/compute/products/highway_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compute/products/vector_product.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/compute/products/decode-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

// One order of operations gives every sum, whatever the batch and the rows beside it: two vectors
// of partial sums take the vectors of columns in turn, their lanes are added last. What differs is
// only how many rows and batch entries share the loads.
HWY_BEFORE_NAMESPACE();
namespace ringfill {
namespace HWY_NAMESPACE {
#if HWY_CAP_GE256

constexpr int kChains = 2;                        // partial sums of one (row, entry)
constexpr int kTileRows = HWY_CAP_GE512 ? 4 : 2;  // with kTileBatch: 24 or 12 vectors of sums
constexpr int kTileBatch = 3;
constexpr int kSumFloats = kChains * kLanes;
constexpr int kChunkCols = 768;  // expanded at a time, 12 KiB for kTileRows
constexpr int kChunkBatch = 24;  // entries that share one expansion
// How far ahead of use weights are fetched: the hardware's own prefetch stops at every page.
constexpr size_t kPrefetchBytes = 4096;

HWY_INLINE float SumOf(const VF (&chains)[kChains]) {
  return hn::GetLane(hn::SumOfLanes(F32(), hn::Add(chains[0], chains[1])));
}

// The size of the fewest equal pieces of `n` that are at most `limit` long (1 for nothing).
constexpr int64_t EvenChunk(int64_t n, int64_t limit) {
  const int64_t pieces = std::max<int64_t>(1, (n + limit - 1) / limit);
  return std::max<int64_t>(1, (n + pieces - 1) / pieces);
}

// The columns of a row past its last whole group, padded with zeros to a group.
template <WeightType kType>
struct LastGroup {
  // REQUIRES: 0 < cols < kGroup.
  LastGroup(const uint8_t* p, int64_t cols) {
    std::memcpy(weights, p, static_cast<size_t>(cols) * (Decoder<kType>::kBytes / kGroup));
  }
  uint8_t weights[Decoder<kType>::kBytes] = {};
};
// sum[b] += the products of one row's group with each entry's inputs.
template <WeightType kType, int kBatch>
HWY_INLINE void AddGroup(const uint8_t* HWY_RESTRICT p, const float* HWY_RESTRICT x,
                         ptrdiff_t x_stride, VF (&sum)[kBatch][kChains]) {
  VF w[kVectors];
  Decoder<kType>::Group(p, w);
  for (int v = 0; v < kVectors; ++v) {
    for (int b = 0; b < kBatch; ++b) {
      VF& chain = sum[b][v % kChains];
      chain = hn::MulAdd(w[v], hn::LoadU(F32(), x + b * x_stride + v * kLanes), chain);
    }
  }
}

// Sums of one row with a few entries, straight from the stored weights.
template <WeightType kType, int kBatch>
HWY_INLINE void FewEntries(const uint8_t* HWY_RESTRICT p, const float* HWY_RESTRICT x,
                           ptrdiff_t x_stride, int64_t cols, float* HWY_RESTRICT y,
                           ptrdiff_t y_stride) {
  using D = Decoder<kType>;
  VF sum[kBatch][kChains];
  for (auto& chains : sum) {
    for (VF& chain : chains) chain = hn::Zero(F32());
  }
  int64_t c = 0;
  for (; c + kGroup <= cols; c += kGroup, p += D::kBytes) {
    hwy::Prefetch(p + kPrefetchBytes);
    AddGroup<kType, kBatch>(p, x + c, x_stride, sum);
  }
  if (c < cols) {
    const LastGroup<kType> last(p, cols - c);
    float last_x[kBatch][kGroup] = {};
    for (int b = 0; b < kBatch; ++b) {
      std::memcpy(last_x[b], x + b * x_stride + c, static_cast<size_t>(cols - c) * sizeof(float));
    }
    AddGroup<kType, kBatch>(last.weights, last_x[0], kGroup, sum);
  }
  for (int b = 0; b < kBatch; ++b) y[b * y_stride] = SumOf(sum[b]);
}

// sums: [kBatch][kTileRows][kChains] vectors, added to. w: [kRows][kChunkCols] expanded weights,
// `cols` of them in use, a multiple of the group.
template <int kRows, int kBatch>
HWY_INLINE void AddTile(const float* HWY_RESTRICT w, const float* HWY_RESTRICT x,
                        ptrdiff_t x_stride, int64_t cols, float* HWY_RESTRICT sums) {
  const F32 df;
  VF sum[kBatch][kRows][kChains];
  for (int b = 0; b < kBatch; ++b) {
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kChains; ++i) {
        sum[b][r][i] = hn::LoadU(df, sums + (b * kTileRows + r) * kSumFloats + i * kLanes);
      }
    }
  }
  for (int64_t c = 0; c < cols; c += kSumFloats) {
    for (int i = 0; i < kChains; ++i) {
      VF wv[kRows];
      for (int r = 0; r < kRows; ++r) wv[r] = hn::LoadU(df, w + r * kChunkCols + c + i * kLanes);
      for (int b = 0; b < kBatch; ++b) {
        const VF xv = hn::LoadU(df, x + b * x_stride + c + i * kLanes);
        for (int r = 0; r < kRows; ++r) sum[b][r][i] = hn::MulAdd(wv[r], xv, sum[b][r][i]);
      }
    }
  }
  for (int b = 0; b < kBatch; ++b) {
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kChains; ++i) {
        hn::StoreU(sum[b][r][i], df, sums + (b * kTileRows + r) * kSumFloats + i * kLanes);
      }
    }
  }
}

// Sums of kRows rows with `batch` (up to kChunkBatch) entries; each group is expanded once.
template <WeightType kType, int kRows>
void ManyEntries(const uint8_t* HWY_RESTRICT p, size_t row_bytes, const float* HWY_RESTRICT x,
                 ptrdiff_t x_stride, int64_t cols, int batch, float* HWY_RESTRICT y,
                 ptrdiff_t y_stride) {
  using D = Decoder<kType>;
  constexpr int kEntrySums = kTileRows * kSumFloats;
  HWY_ALIGN float w[kTileRows * kChunkCols];
  HWY_ALIGN float sums[kChunkBatch * kEntrySums];
  std::memset(sums, 0, static_cast<size_t>(batch) * kEntrySums * sizeof(float));
  const int64_t whole = cols / kGroup * kGroup;
  const int64_t chunk = EvenChunk(whole / kGroup, kChunkCols / kGroup) * kGroup;
  for (int64_t c = 0; c < whole; c += chunk) {
    const int64_t n = std::min(chunk, whole - c);
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* row = p + r * row_bytes + static_cast<size_t>(c / kGroup) * D::kBytes;
      DecodeRow<kType>(row, n, w + r * kChunkCols);
    }
    int b = 0;
    for (; b + kTileBatch <= batch; b += kTileBatch) {
      AddTile<kRows, kTileBatch>(w, x + b * x_stride + c, x_stride, n, sums + b * kEntrySums);
    }
    for (; b < batch; ++b) {
      AddTile<kRows, 1>(w, x + b * x_stride + c, x_stride, n, sums + b * kEntrySums);
    }
  }
  if (whole < cols) {
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* end = p + r * row_bytes + static_cast<size_t>(whole / kGroup) * D::kBytes;
      const LastGroup<kType> last(end, cols - whole);
      DecodeRow<kType>(last.weights, kGroup, w + r * kChunkCols);
    }
    for (int b = 0; b < batch; ++b) {
      float last_x[kGroup] = {};
      std::memcpy(last_x, x + b * x_stride + whole,
                  static_cast<size_t>(cols - whole) * sizeof(float));
      AddTile<kRows, 1>(w, last_x, 0, kGroup, sums + b * kEntrySums);
    }
  }
  for (int b = 0; b < batch; ++b) {
    for (int r = 0; r < kRows; ++r) {
      const float* chains = sums + b * kEntrySums + r * kSumFloats;
      const VF sum[kChains] = {hn::LoadU(F32(), chains), hn::LoadU(F32(), chains + kLanes)};
      y[b * y_stride + r] = SumOf(sum);
    }
  }
}

template <WeightType kType, int kBatch>
void ProductOfFew(const VectorProductArgs& args) {
  const WeightMatrix& w = *args.w;
  const size_t row_bytes = WeightRowBytes(kType, w.cols);
  const auto* p = reinterpret_cast<const uint8_t*>(w.data) + WeightRowBytes(kType, args.col_begin);
  for (int64_t row = args.row_begin; row < args.row_end; ++row) {
    FewEntries<kType, kBatch>(p + static_cast<size_t>(row) * row_bytes, args.x + args.col_begin,
                              args.x_stride, args.col_end - args.col_begin, args.y + row,
                              args.y_stride);
  }
}

template <WeightType kType>
void ProductOfMany(const VectorProductArgs& args) {
  const WeightMatrix& w = *args.w;
  const size_t row_bytes = WeightRowBytes(kType, w.cols);
  const auto* p = reinterpret_cast<const uint8_t*>(w.data) + WeightRowBytes(kType, args.col_begin);
  const int64_t cols = args.col_end - args.col_begin;
  const int chunk = static_cast<int>(EvenChunk(args.batch, kChunkBatch));
  for (int b = 0; b < args.batch; b += chunk) {
    const int batch = std::min(chunk, args.batch - b);
    const float* x = args.x + b * args.x_stride + args.col_begin;
    float* y = args.y + b * args.y_stride;
    int64_t row = args.row_begin;
    for (; row + kTileRows <= args.row_end; row += kTileRows) {
      ManyEntries<kType, kTileRows>(p + static_cast<size_t>(row) * row_bytes, row_bytes, x,
                                    args.x_stride, cols, batch, y + row, args.y_stride);
    }
    for (; row < args.row_end; ++row) {
      ManyEntries<kType, 1>(p + static_cast<size_t>(row) * row_bytes, row_bytes, x, args.x_stride,
                            cols, batch, y + row, args.y_stride);
    }
  }
}

template <WeightType kType>
void ProductOf(const VectorProductArgs& args) {
  switch (args.batch) {
    case 1:
      return ProductOfFew<kType, 1>(args);
    case 2:
      return ProductOfFew<kType, 2>(args);
    case 3:
      return ProductOfFew<kType, 3>(args);
    case 4:
      return ProductOfFew<kType, 4>(args);
    default:
      return ProductOfMany<kType>(args);
  }
}

void VectorProductAs(const VectorProductArgs& args) {
  switch (args.w->type) {
    case WeightType::kF32:
      return ProductOf<WeightType::kF32>(args);
    case WeightType::kF16:
      return ProductOf<WeightType::kF16>(args);
    case WeightType::kBF16:
      return ProductOf<WeightType::kBF16>(args);
    case WeightType::kQ4_0:
      return ProductOf<WeightType::kQ4_0>(args);
    case WeightType::kQ4_1:
      return ProductOf<WeightType::kQ4_1>(args);
    case WeightType::kQ8_0:
      return ProductOf<WeightType::kQ8_0>(args);
  }
}

#endif  // HWY_CAP_GE256
}  // namespace HWY_NAMESPACE
}  // namespace ringfill
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfill {
namespace {

void CheckArgs(const VectorProductArgs& args) {
  const WeightMatrix& w = *args.w;
  const int block = GetWeightTypeInfo(w.type).block_weights;
  RF_CHECK(args.col_begin % block == 0 && args.col_end % block == 0);
  RF_CHECK(0 <= args.row_begin && args.row_end <= w.rows);
  RF_CHECK(0 <= args.col_begin && args.col_begin <= args.col_end && args.col_end <= w.cols);
  RF_CHECK(1 <= args.batch && args.batch <= kMaxVectorBatch);
}

}  // namespace

void VectorProduct(const VectorProductArgs& args, CpuIsa isa) {
  CheckArgs(args);
  RF_KERNEL(isa, VectorProductAs, VectorProductReference)(args);
}

void VectorProductReference(const VectorProductArgs& args) {
  CheckArgs(args);
  const WeightMatrix& w = *args.w;
  const int64_t n = args.col_end - args.col_begin;
  std::vector<float> row(static_cast<size_t>(n));
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    const std::byte* begin = w.Row(r) + WeightRowBytes(w.type, args.col_begin);
    DequantizeRowOn(CpuIsa::kBaseline, w.type, begin, n, row.data());
    for (int b = 0; b < args.batch; ++b) {
      const float* x = args.x + b * args.x_stride + args.col_begin;
      double sum = 0;
      for (int64_t c = 0; c < n; ++c) sum += static_cast<double>(row[c]) * x[c];
      args.y[b * args.y_stride + r] = static_cast<float>(sum);
    }
  }
}

}  // namespace ringfill
#endif  // HWY_ONCE
