#include "engine/compute/cuda/products.h"

namespace ringfill {

absl::StatusOr<std::unique_ptr<Products>> MakeProducts(CudaMemory& memory) {
  return MakeCublasProducts(memory);
}

}  // namespace ringfill
