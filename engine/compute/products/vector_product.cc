#include "engine/compute/products/vector_product.h"

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

constexpr int kChains = 2;  // partial sums of one (row, entry)
// Entries that share one expansion of a group in registers.
constexpr int kMaxEntries = HWY_CAP_GE512 ? 8 : 5;
// How far ahead of use weights are fetched: the hardware's own prefetch stops at every page.
constexpr size_t kPrefetchBytes = 4096;

HWY_INLINE float SumOf(const VF (&chains)[kChains]) {
  return hn::GetLane(hn::SumOfLanes(F32(), hn::Add(chains[0], chains[1])));
}

// The columns of a row past its last whole group, padded with zeros to a group.
template <WeightType kType>
struct LastGroup {
  // REQUIRES: cols < kGroup.
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

// Sums of one row with kBatch entries, straight from the stored weights.
template <WeightType kType, int kBatch>
HWY_INLINE void RowProduct(const uint8_t* HWY_RESTRICT p, const float* HWY_RESTRICT x,
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

// All rows with `count` entries from `entry`. REQUIRES: 1 <= count <= kEntries.
template <WeightType kType, int kEntries>
void ProductOf(const VectorProductArgs& args, int entry, int count) {
  if constexpr (kEntries > 1) {
    if (count < kEntries) return ProductOf<kType, kEntries - 1>(args, entry, count);
  }
  const WeightMatrix& w = *args.w;
  const size_t row_bytes = WeightRowBytes(kType, w.cols);
  const auto* p = reinterpret_cast<const uint8_t*>(w.data) + WeightRowBytes(kType, args.col_begin);
  const float* x = args.x + entry * args.x_stride + args.col_begin;
  float* y = args.y + entry * args.y_stride;
  for (int64_t row = args.row_begin; row < args.row_end; ++row) {
    RowProduct<kType, kEntries>(p + static_cast<size_t>(row) * row_bytes, x, args.x_stride,
                                args.col_end - args.col_begin, y + row, args.y_stride);
  }
}

// Entries go in the fewest groups of nearly equal size.
template <WeightType kType>
void ProductOfAll(const VectorProductArgs& args) {
  const int pieces = (args.batch + kMaxEntries - 1) / kMaxEntries;
  for (int piece = 0; piece < pieces; ++piece) {
    const int begin = args.batch * piece / pieces;
    const int end = args.batch * (piece + 1) / pieces;
    ProductOf<kType, kMaxEntries>(args, begin, end - begin);
  }
}

void VectorProductAs(const VectorProductArgs& args) {
  switch (args.w->type) {
    case WeightType::kF32:
      return ProductOfAll<WeightType::kF32>(args);
    case WeightType::kF16:
      return ProductOfAll<WeightType::kF16>(args);
    case WeightType::kBF16:
      return ProductOfAll<WeightType::kBF16>(args);
    case WeightType::kQ4_0:
      return ProductOfAll<WeightType::kQ4_0>(args);
    case WeightType::kQ4_1:
      return ProductOfAll<WeightType::kQ4_1>(args);
    case WeightType::kQ8_0:
      return ProductOfAll<WeightType::kQ8_0>(args);
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
