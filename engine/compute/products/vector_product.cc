#include "engine/compute/products/vector_product.h"

#include <vector>

#include "base/check.h"

namespace ringfill {

void VectorProductReference(const VectorProductArgs& args) {
  const WeightMatrix& w = *args.w;
  const WeightTypeInfo& info = GetWeightTypeInfo(w.type);
  RF_CHECK(args.col_begin % info.block_weights == 0 && args.col_end % info.block_weights == 0);
  RF_CHECK(0 <= args.row_begin && args.row_end <= w.rows);
  RF_CHECK(0 <= args.col_begin && args.col_begin <= args.col_end && args.col_end <= w.cols);
  RF_CHECK(1 <= args.batch && args.batch <= kMaxVectorBatch);
  const int64_t n = args.col_end - args.col_begin;
  std::vector<float> row(static_cast<size_t>(n));
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    const std::byte* begin = w.Row(r) + WeightRowBytes(w.type, args.col_begin);
    DequantizeRow(w.type, begin, n, row.data());
    for (int b = 0; b < args.batch; ++b) {
      const float* x = args.x + b * args.x_stride + args.col_begin;
      double sum = 0;
      for (int64_t c = 0; c < n; ++c) sum += static_cast<double>(row[c]) * x[c];
      args.y[b * args.y_stride + r] = static_cast<float>(sum);
    }
  }
}

void VectorProduct(const VectorProductArgs& args, CpuIsa) { VectorProductReference(args); }

}  // namespace ringfill
