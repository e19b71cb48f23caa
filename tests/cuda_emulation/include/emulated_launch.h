// The half of launch.h for the emulation, included by it alone.
#pragma once

#include <cuda_runtime.h>

#include <tuple>
#include <type_traits>

namespace ringfill::cuda_emulation {

struct KernelLaunch {
  const void* kernel = nullptr;
  // Runs the kernel's body on the calling fiber.
  void (*run)(const void* kernel, const void* arguments) = nullptr;
  // Copied, so that a launch outlives the call and a graph can replay it. No shared_ptr: this is
  // instantiated in kernel files, whose every access is instrumented.
  const void* (*copy)(const void* arguments) = nullptr;
  void (*destroy)(const void* arguments) = nullptr;
  const void* arguments = nullptr;
  size_t argument_bytes = 0;
  dim3 grid, block;
  size_t shared_bytes = 0;
};

// Checks the launch against the device's limits, copies it and queues it.
cudaError_t LaunchKernel(const KernelLaunch& launch, cudaStream_t stream);

template <typename... P>
cudaError_t LaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, P... arguments) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "a kernel's parameters are plain values");
  using Arguments = std::tuple<P...>;
  const Arguments values(arguments...);
  KernelLaunch launch;
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.run = [](const void* function, const void* from) {
    std::apply(reinterpret_cast<void (*)(P...)>(const_cast<void*>(function)),
               *static_cast<const Arguments*>(from));
  };
  launch.copy = [](const void* from) -> const void* {
    return new Arguments(*static_cast<const Arguments*>(from));
  };
  launch.destroy = [](const void* what) { delete static_cast<const Arguments*>(what); };
  launch.arguments = &values;
  launch.argument_bytes = sizeof(Arguments);
  launch.grid = grid;
  launch.block = block;
  launch.shared_bytes = shared_bytes;
  return LaunchKernel(launch, stream);
}

}  // namespace ringfill::cuda_emulation
