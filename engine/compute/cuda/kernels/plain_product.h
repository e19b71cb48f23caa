// The plain matrix product that libraries are held to, and that serves where there is none.
#pragma once

#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

struct PlainProductArgs {
  const void* w;  // [n][k] bf16, rows ldw elements apart
  int64_t ldw;
  const void* x;  // [rows][k] bf16, rows ldx elements apart
  int64_t ldx;
  int64_t rows;
  int64_t n;
  int64_t k;
  Element y_type;  // kF32 or kBF16
  void* y;         // [rows][n], rows ldy elements apart
  int64_t ldy;
};
// y = x w^T: products of bf16, summed in float32 in the order of k, 16 at a time. Any extents and
// strides; k = 0 gives zeros.
[[nodiscard]] int PlainProduct(const PlainProductArgs& args, KernelStream stream);

}  // namespace ringfill::gpu
