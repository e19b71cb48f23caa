// Launch(kernel, grid, block, shared_bytes, stream, arguments...): the one way a kernel is started.
// Arguments convert to the kernel's parameter types, which are plain values, copied. Dynamic shared
// memory beyond 48 KiB is allowed for on the way. Kernel templates are launched from their own .cu
// file (nvcc makes their stubs static): each ends with plain launch functions.
//
// Returns what the launch returned; what the kernel does wrong shows at a later synchronisation.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#ifndef __CUDACC__
#include <emulated_launch.h>
#endif

namespace ringfill::gpu {

// Dynamic shared memory that a block may use without asking.
inline constexpr size_t kPlainSharedBytes = 48 * 1024;

// A parameter's type where it takes no part in deduction.
template <typename T>
struct SameType {
  using Type = T;
};

template <typename... P>
[[nodiscard]] cudaError_t Launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                 cudaStream_t stream, typename SameType<P>::Type... arguments) {
  if (shared_bytes > kPlainSharedBytes) {
    const cudaError_t allowed = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     static_cast<int>(shared_bytes));
    if (allowed != cudaSuccess) return allowed;
  }
#ifdef __CUDACC__
  void* pointers[sizeof...(P) + 1] = {static_cast<void*>(&arguments)..., nullptr};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers,
                          shared_bytes, stream);
#else
  return cuda_emulation::LaunchKernel<P...>(kernel, grid, block, shared_bytes, stream,
                                            arguments...);
#endif
}

}  // namespace ringfill::gpu
