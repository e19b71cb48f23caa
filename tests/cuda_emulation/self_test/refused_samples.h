// Kernels that nvcc would refuse, for the emulation alone.
#pragma once

#include <cuda_runtime.h>

namespace ringfill::emulation_test {

// Has 16 bytes more than 48 KiB of static shared memory.
cudaError_t RunTooMuchStatic(float* data);
// With so much dynamic shared memory, which is not asked for by cudaFuncSetAttribute.
cudaError_t RunUnasked(size_t shared_bytes);

}  // namespace ringfill::emulation_test
