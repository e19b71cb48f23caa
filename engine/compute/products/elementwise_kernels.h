// Internal to products/: the operations of elementwise.h on a named instruction set, so that tests
// can force one. REQUIRES: the machine has it.
#pragma once

#include <cstdint>

#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"
#include "engine/compute/products/elementwise.h"

namespace ringfill {

struct ElementwiseKernels {
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
                   DType out_type, void* out);
  void (*add_in_place)(float* x, const float* y, int64_t n);
  void (*silu_mul)(DType type, const void* gate, const void* up, int64_t n, void* out);
  void (*convert_floats)(const float* x, int64_t n, DType type, void* out);
  bool (*all_finite)(const float* x, int64_t n);
  LogSumExpResult (*log_sum_exp)(const float* x, int64_t n);
  // x: [heads, head_dim]; cos_sin: [rope_dims].
  void (*rotate)(const float* cos_sin, int rope_dims, int heads, int head_dim, float* x);
};

const ElementwiseKernels& ElementwiseKernelsFor(CpuIsa isa);

}  // namespace ringfill
