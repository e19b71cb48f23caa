#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/launch.h"
#include "tests/cuda_emulation/self_test/refused_samples.h"

namespace ringfill::emulation_test {
namespace {

RF_KERNEL void TooMuchStatic(float* data) {
  RF_SHARED(float, first, 8 * 1024);
  RF_SHARED(float, second, 4 * 1024 + 1);
  first[threadIdx.x] = second[threadIdx.x] = data[threadIdx.x];
}

RF_KERNEL void Unasked() {}

}  // namespace

cudaError_t RunTooMuchStatic(float* data) {
  return gpu::Launch(TooMuchStatic, 1, 32, 0, nullptr, data);
}

cudaError_t RunUnasked(size_t shared_bytes) {
  return cuda_emulation::LaunchKernel<>(Unasked, 1, 32, shared_bytes, nullptr);
}

}  // namespace ringfill::emulation_test
