// What the files of CUDA's runtime calls share. They contain no knowledge of their own: they check
// arguments as the toolkit documents it and hand on to streams/ and memory/.
#pragma once

#include <cuda_runtime.h>

namespace ringfill::cuda_emulation {

// Notes an error for cudaGetLastError and returns it.
cudaError_t Return(cudaError_t error);
// The error of the current device, or of having none.
cudaError_t CheckDevice();

}  // namespace ringfill::cuda_emulation
