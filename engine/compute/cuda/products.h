// Matrix products on a GPU: y = x w^T in bf16 with float32 accumulation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/compute/cuda/cuda_memory.h"
#include "engine/compute/cuda/kernels/types.h"

namespace ringfill {

struct Product {
  const void* w;  // [n][k] bf16, rows ldw elements apart
  int64_t ldw;
  const void* x;  // [rows][k] bf16, rows ldx elements apart
  int64_t ldx;
  int64_t rows, n, k;
  gpu::Element y_type;  // kF32 or kBF16
  void* y;              // [rows][n], rows ldy elements apart
  int64_t ldy;
};

// Products of one device, queued on its stream. Used by its host thread.
class Products {
 public:
  virtual ~Products() = default;
  // REQUIRES: the device is current, the pointers are aligned to their elements.
  virtual absl::Status Run(const Product& product, cudaStream_t stream) = 0;
};

// By kernels/plain_product.h: the reference, for any extents and strides.
std::unique_ptr<Products> MakePlainProducts(int device);

// By cuBLASLt: the fastest of what its heuristics offer for the extents at hand, looked up once.
absl::StatusOr<std::unique_ptr<Products>> MakeCublasProducts(CudaMemory& memory);
// FAILED_PRECONDITION when cuBLASLt is not there.
absl::Status CheckCublas();

}  // namespace ringfill
