// Extents of launches.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ringfill::gpu {

// Blocks that take `each` of `n` items. REQUIRES: fewer than 2^31 blocks, which nothing on a device
// comes near.
inline dim3 BlocksOf(int64_t n, int each) {
  return dim3(static_cast<unsigned>((n + each - 1) / each));
}

}  // namespace ringfill::gpu
