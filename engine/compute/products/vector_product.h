// Products of few activation rows with weights in their stored type: dequantise and multiply in one
// pass, so each weight byte is read once. What decode runs on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compute/cpu_isa.h"
#include "engine/compute/products/weight_type.h"

namespace ringfill {

// y[b * y_stride + r] = sum over c in [col_begin, col_end) of w(r, c) * x[b * x_stride + c]
// for r in [row_begin, row_end), b in [0, batch). x and y are indexed by the matrix's own rows and
// columns (not relative to the slice). Float32 accumulation; batch is 1 to kMaxVectorBatch.
// REQUIRES: col_begin and col_end are multiples of the weight block. Only y rows of the slice are
// written. Thread-safe for disjoint row ranges. The sum of one (b, r) does not depend on the row
// range, on the batch or on the other batch rows: bits are equal for any split over threads.
struct VectorProductArgs {
  const WeightMatrix* w;
  int64_t row_begin, row_end;
  int64_t col_begin, col_end;
  const float* x;
  ptrdiff_t x_stride;
  float* y;
  ptrdiff_t y_stride;
  int batch;
};

inline constexpr int kMaxVectorBatch = 256;

void VectorProduct(const VectorProductArgs& args, CpuIsa isa);
// Plain reference.
void VectorProductReference(const VectorProductArgs& args);

}  // namespace ringfill
