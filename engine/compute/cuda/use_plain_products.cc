#include "engine/compute/cuda/products.h"

namespace ringfill {

absl::StatusOr<std::unique_ptr<Products>> MakeProducts(CudaMemory& memory) {
  return MakePlainProducts(memory.stream().device());
}

}  // namespace ringfill
