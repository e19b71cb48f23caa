#include "engine/compute/products/pack.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "engine/compute/products/dequantize.h"
#include "engine/compute/products/highway_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compute/products/pack.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/compute/products/decode-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfill {
namespace HWY_NAMESPACE {
#if HWY_CAP_GE256

constexpr int kStripRows = 16;    // rows transposed together
constexpr int kStripDepth = 256;  // units of 4 bytes of each row at a time
// A stride that is no multiple of 1 KiB, so that the rows of a strip use all of the cache.
constexpr int kStripStride = kStripDepth + 16;

// The same 4 units of rows first, first + 4, ... side by side, one row a block of 128 bits.
HWY_INLINE hn::Vec<U32> LoadEveryFourthRow(const uint32_t* HWY_RESTRICT strip, int first) {
  const hn::Full128<uint32_t> d128;
  const auto row = [&](int i)
                       HWY_ATTR { return hn::LoadU(d128, strip + (first + 4 * i) * kStripStride); };
#if HWY_CAP_GE512
  const hn::Full256<uint32_t> d256;
  return hn::Combine(U32(), hn::Combine(d256, row(3), row(2)), hn::Combine(d256, row(1), row(0)));
#else
  return hn::Combine(U32(), row(1), row(0));
#endif
}

// out[u][c] = strip[c][u] for 4 units u and the kLanes rows c from `first`; rows of `out` are
// `width` apart.
HWY_INLINE void TransposeQuad(const uint32_t* HWY_RESTRICT strip, int first, int64_t width,
                              uint32_t* HWY_RESTRICT out) {
  const U32 du;
  const auto r0 = LoadEveryFourthRow(strip, first);
  const auto r1 = LoadEveryFourthRow(strip, first + 1);
  const auto r2 = LoadEveryFourthRow(strip, first + 2);
  const auto r3 = LoadEveryFourthRow(strip, first + 3);
  const auto even01 = hn::InterleaveLower(du, r0, r2);
  const auto odd01 = hn::InterleaveLower(du, r1, r3);
  const auto even23 = hn::InterleaveUpper(du, r0, r2);
  const auto odd23 = hn::InterleaveUpper(du, r1, r3);
  hn::StoreU(hn::InterleaveLower(du, even01, odd01), du, out);
  hn::StoreU(hn::InterleaveUpper(du, even01, odd01), du, out + width);
  hn::StoreU(hn::InterleaveLower(du, even23, odd23), du, out + 2 * width);
  hn::StoreU(hn::InterleaveUpper(du, even23, odd23), du, out + 3 * width);
}

// Writes `depth` units of the strip's first `columns` rows as columns of `out`.
HWY_INLINE void TransposeStrip(const uint32_t* HWY_RESTRICT strip, int64_t depth, int64_t columns,
                               int64_t width, uint32_t* HWY_RESTRICT out) {
  int64_t u = 0;
  if (columns == kStripRows) {
    for (; u + 4 <= depth; u += 4) {
      for (int c = 0; c < kStripRows; c += kLanes) {
        TransposeQuad(strip + u, c, width, out + u * width + c);
      }
    }
  }
  for (; u < depth; ++u) {
    for (int64_t c = 0; c < columns; ++c) out[u * width + c] = strip[c * kStripStride + u];
  }
}

template <WeightType kType, typename Element>
void PackPanelsOf(const WeightMatrix& w, int64_t row_begin, int64_t n, const PanelOrder& order,
                  uint32_t* HWY_RESTRICT out) {
  constexpr int64_t kUnit = sizeof(uint32_t) / sizeof(Element);  // inputs in 4 bytes
  HWY_ALIGN uint32_t strip[kStripRows * kStripStride];
  const int64_t depth = order.k_padded / kUnit;
  const size_t row_bytes = WeightRowBytes(kType, w.cols);
  const auto* data = reinterpret_cast<const uint8_t*>(w.data);
  for (int64_t panel = 0; panel < n; panel += order.width, out += depth * order.width) {
    for (int64_t column = 0; column < order.width; column += kStripRows) {
      const int64_t columns = std::min<int64_t>(kStripRows, order.width - column);
      const int64_t rows = std::clamp<int64_t>(n - panel - column, 0, columns);
      const uint8_t* first_row = data + static_cast<size_t>(row_begin + panel + column) * row_bytes;
      for (int64_t u = 0; u < depth; u += kStripDepth) {
        const int64_t units = std::min<int64_t>(kStripDepth, depth - u);
        const int64_t inputs = std::clamp<int64_t>(w.cols - u * kUnit, 0, units * kUnit);
        if (rows < columns || inputs < units * kUnit) std::memset(strip, 0, sizeof(strip));
        for (int64_t r = 0; r < rows; ++r) {
          const uint8_t* p = first_row + static_cast<size_t>(r) * row_bytes +
                             static_cast<size_t>(u * kUnit / kGroup) * Decoder<kType>::kBytes;
          DecodeRow<kType>(p, inputs, reinterpret_cast<Element*>(strip + r * kStripStride));
        }
        TransposeStrip(strip, units, columns, order.width, out + u * order.width + column);
      }
    }
  }
}

template <WeightType kType>
void PackPanelsFrom(const WeightMatrix& w, int64_t row_begin, int64_t n, const PanelOrder& order,
                    std::byte* packed) {
  auto* out = reinterpret_cast<uint32_t*>(packed);
  if (order.dtype == DType::kF32) return PackPanelsOf<kType, float>(w, row_begin, n, order, out);
  PackPanelsOf<kType, Bf16>(w, row_begin, n, order, out);
}

void PackPanelsAs(const WeightMatrix& w, int64_t row_begin, int64_t n, const PanelOrder& order,
                  std::byte* packed) {
  switch (w.type) {
    case WeightType::kF32:
      return PackPanelsFrom<WeightType::kF32>(w, row_begin, n, order, packed);
    case WeightType::kF16:
      return PackPanelsFrom<WeightType::kF16>(w, row_begin, n, order, packed);
    case WeightType::kBF16:
      return PackPanelsFrom<WeightType::kBF16>(w, row_begin, n, order, packed);
    case WeightType::kQ4_0:
      return PackPanelsFrom<WeightType::kQ4_0>(w, row_begin, n, order, packed);
    case WeightType::kQ4_1:
      return PackPanelsFrom<WeightType::kQ4_1>(w, row_begin, n, order, packed);
    case WeightType::kQ8_0:
      return PackPanelsFrom<WeightType::kQ8_0>(w, row_begin, n, order, packed);
  }
}

#endif  // HWY_CAP_GE256
}  // namespace HWY_NAMESPACE
}  // namespace ringfill
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfill {
namespace {

template <typename Element>
void PackPlainOf(const WeightMatrix& w, int64_t row_begin, int64_t n, const PanelOrder& order,
                 Element* out) {
  constexpr int64_t kUnit = sizeof(uint32_t) / sizeof(Element);
  const int64_t panels = (n + order.width - 1) / order.width;
  std::fill_n(out, panels * order.width * order.k_padded, Element{});
  std::vector<Element> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < n; ++r) {
    DequantizeRowOn(CpuIsa::kBaseline, w.type, w.Row(row_begin + r), w.cols, row.data());
    Element* panel = out + r / order.width * order.width * order.k_padded;
    const int64_t column = r % order.width;
    for (int64_t i = 0; i < w.cols; ++i) {
      panel[(i / kUnit * order.width + column) * kUnit + i % kUnit] = row[i];
    }
  }
}

void PackPlain(const WeightMatrix& w, int64_t row_begin, int64_t n, const PanelOrder& order,
               std::byte* packed) {
  if (order.dtype == DType::kF32) {
    PackPlainOf(w, row_begin, n, order, reinterpret_cast<float*>(packed));
  } else {
    PackPlainOf(w, row_begin, n, order, reinterpret_cast<Bf16*>(packed));
  }
}

}  // namespace

void PackPanels(CpuIsa isa, const WeightMatrix& w, int64_t row_begin, int64_t n,
                const PanelOrder& order, std::byte* packed) {
  RF_CHECK(0 <= row_begin && 0 <= n && row_begin + n <= w.rows && order.width > 0);
  RF_CHECK(order.k_padded >= w.cols && order.k_padded * DTypeBytes(order.dtype) % 4 == 0);
  RF_KERNEL(isa, PackPanelsAs, PackPlain)(w, row_begin, n, order, packed);
}

}  // namespace ringfill
#endif  // HWY_ONCE
